"""Model packages: what is written is opened by ONNX Runtime's own API, which runs it with the library and without."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import onnxopt
from onnxopt.artifact import layout
from onnxopt.artifact.export import ort_package
from onnxopt.artifact.folder import hash_files
from onnxopt.artifact.manifest import File
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.runtime import sessions
from tests.support.artifacts import edit_manifest, make, with_weights
from tests.support.command import assert_refused, run
from tests.support.fakes.model_package_api import RELEASE, Api, ModelPackageError
from tests.support.small_models import CHAIN, write

pytestmark = pytest.mark.usefixtures("library")
has_the_api = pytest.mark.skipif(
    not ort.__version__.startswith(f"{RELEASE}."), reason=f"the C API's table is known for ONNX Runtime {RELEASE} only"
)


@pytest.fixture(scope="module")
def api() -> Api:
    return Api()


@pytest.fixture
def made(artifact: Path) -> Path:
    """A package; its artifact lies beside it."""
    return ort_package.export_ort_package(make(artifact, archs=("sm_90",)), artifact.with_name("chain.ortpackage"))


@pytest.fixture
def feeds() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"x": (5, 8), "bias": (8,), "weight": (8, 8)}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


@has_the_api
def test_onnxruntime_opens_it(made: Path, api: Api) -> None:
    opened = api.open(made)
    assert api.schema_version(opened) == 1
    assert api.components(opened) == ["chain"]
    assert sorted(api.variants(opened, "chain")) == ["cpu", "cuda"]
    assert api.provider_of(opened, "chain", "cpu") == "CPUExecutionProvider"
    assert api.provider_of(opened, "chain", "cuda") == "CUDAExecutionProvider"
    selected = api.select(opened, "chain")
    assert api.selected_variant(selected) == "cpu"
    assert api.selected_folder(selected) == made / "chain" / "cpu"


@has_the_api
@pytest.mark.parametrize("with_library", [True, False])
def test_onnxruntime_runs_it(made: Path, api: Api, feeds: dict[str, np.ndarray], with_library: bool) -> None:
    expected = onnxopt.load(made.with_name("artifact"), providers=[sessions.CPU]).run(None, feeds)[0]
    opened = api.open(made)
    options = None
    if with_library:
        document = json.loads((made / "manifest.json").read_text())
        library = api.resolve(opened, document["additional_metadata"]["onnxopt"]["library"])
        assert (library.parent / "kernels.json").is_file()
        options = api.session_options(library)
    session = api.session(api.select(opened, "chain"), options)
    np.testing.assert_allclose(api.run(session, feeds, "y", (5, 8)), expected, rtol=1e-5, atol=1e-6)


@has_the_api
def test_the_api_notices_what_is_missing(made: Path, api: Api) -> None:
    """That the two tests above can fail."""
    (model,) = made.glob("shared_assets/*/model.onnx")
    model.rename(model.with_name("elsewhere.onnx"))
    with pytest.raises(ModelPackageError):
        api.session(api.select(api.open(made), "chain"), None)
    (kernels,) = made.glob("shared_assets/*/kernels.json")
    kernels.write_text("{")
    with pytest.raises(ModelPackageError, match=r"kernels\.json"):
        api.session_options(kernels.with_name("libonnxopt_ops.so"))
    (made / "chain" / "component.json").write_text('{"variants": {}, "surprise": 1}')
    with pytest.raises(ModelPackageError, match="surprise"):
        api.open(made)


@has_the_api
def test_weights_beside_the_model(artifact: Path, tmp_path: Path, api: Api) -> None:
    weight = with_weights(artifact)
    made = ort_package.export_ort_package(artifact, tmp_path / "m.ortpackage", name="m")
    (data,) = made.glob("shared_assets/*/model.onnx.data")
    assert data.stat().st_size >= weight.nbytes
    x = np.ones((2, 64), np.float32)
    session = api.session(api.select(api.open(made), "m"))
    np.testing.assert_allclose(api.run(session, {"x": x}, "y", (2, 64)), x @ weight, rtol=1e-4, atol=1e-4)
    assert json.loads((made / "manifest.json").read_text())["additional_metadata"]["onnxopt"]["library"] is None


@has_the_api
def test_tensorrt_takes_the_portable_graph(artifact: Path, tmp_path: Path, api: Api) -> None:
    make(artifact)
    portable = write(tmp_path / "portable.onnx", CHAIN).read_bytes()
    (artifact / layout.PORTABLE_MODEL).write_bytes(portable)
    edit_manifest(artifact, files={n: f.model_dump() for n, f in hash_files(artifact).items()})
    made = ort_package.export_ort_package(artifact, tmp_path / "chain.ortpackage")
    opened = api.open(made)
    assert sorted(api.variants(opened, "chain")) == ["cpu", "cuda", "tensorrt"]
    assert api.provider_of(opened, "chain", "tensorrt") == "TensorrtExecutionProvider"
    info = json.loads((made / "chain/tensorrt/ort_info.json").read_text())
    assert api.resolve(opened, info["model_file"]).read_bytes() == portable


def test_assets_are_named_by_their_content(made: Path) -> None:
    for folder in (made / "shared_assets").iterdir():
        lines = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in sorted(folder.iterdir()))
        assert folder.name == f"sha256-{hashlib.sha256(lines.encode()).hexdigest()}"


def test_the_name_follows_from_names_and_contents() -> None:
    one, other = (File(sha256=digit * 64, bytes=1) for digit in "12")
    assert ort_package.asset_uri([("a", one), ("b", other)]) == ort_package.asset_uri([("b", other), ("a", one)])
    assert ort_package.asset_uri([("a", one)]) != ort_package.asset_uri([("b", one)])
    assert ort_package.asset_uri([("a", one)]) != ort_package.asset_uri([("a", other)])


def test_the_same_artifact_gives_the_same_package(made: Path, tmp_path: Path) -> None:
    again = ort_package.export_ort_package(made.with_name("artifact"), tmp_path / "again.ortpackage")
    files = sorted(p.relative_to(made) for p in made.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(again) for p in again.rglob("*") if p.is_file())
    assert all((made / f).read_bytes() == (again / f).read_bytes() for f in files)


def test_bad_input(artifact: Path, tmp_path: Path) -> None:
    make(artifact, CHAIN)
    assert_refused(run("export-ortpackage", artifact, tmp_path / "chain"), "ends in .ortpackage")
    assert_refused(run("export-ortpackage", tmp_path, tmp_path / "a.ortpackage"), "not an artifact")
    assert_refused(run("export-ortpackage", artifact, tmp_path / "a.ortpackage", "--name", "../x"), "not a name")
    (tmp_path / "there.ortpackage").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        ort_package.export_ort_package(artifact, tmp_path / "there.ortpackage")
    (artifact / "model.onnx").write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        ort_package.export_ort_package(artifact, tmp_path / "a.ortpackage")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["artifact", "there.ortpackage"]


def test_the_command(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    result = run("export-ortpackage", artifact, tmp_path / "a.ortpackage", "--name", "mine")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.ortpackage" / "mine" / "component.json").is_file()
