"""package, manifest, providers: the folder is whole or not there, and every change to it is noticed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import onnxopt
from onnxopt.artifact import layout
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import hash_file, staging
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.graph.signature import Tensor
from onnxopt.runtime import providers
from tests.support.artifacts import edit_manifest, with_weights
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE, write


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of CHAIN; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("package")
    return onnxopt.optimize(write(folder / "chain.onnx", CHAIN), folder / "artifact", archs=()).path


@pytest.fixture
def copy(made: Path, artifact: Path) -> Path:
    shutil.copytree(made, artifact)
    return artifact


@pytest.mark.usefixtures("library")
def test_what_an_artifact_holds(made: Path) -> None:
    files = {p.relative_to(made).as_posix() for p in made.rglob("*") if p.is_file()}
    assert files == {
        "manifest.json",
        "model.onnx",
        "lib/libonnxopt_ops.so",
        "lib/kernels.json",
        "providers/cpu.json",
        "providers/cuda.json",
        "report.html",
    }
    manifest = manifests.load(made)
    assert set(manifest.files) == files - {"manifest.json"}
    assert manifest.source.name == "chain.onnx"
    assert manifest.source.sha256 == hash_file(made.parent / "chain.onnx").sha256
    assert manifest.inputs[0] == Tensor("x", "float32", ("batch", 8))
    assert [k.ops for k in manifest.kernels] == [("Add", "Tanh", "Mul", "Sub"), ("Sigmoid", "Mul")]
    (domain,) = [name for name in manifest.opsets if name.startswith("onnxopt.")]
    assert manifest.opsets[domain] == 1
    assert manifest.verify.status == "passed"
    assert list(manifest.seconds) == [
        "load",
        "normalize",
        "rewrite",
        "fuse",
        "lower",
        "outline",
        "entry_points",
        "generate",
        "dims",
        "package",
        "compile",
        "verify",
    ]
    assert made.stat().st_mode & 0o077  # readable for others, as the umask says


def test_the_library_is_a_copy(made: Path) -> None:
    copied = made / "lib" / layout.LIBRARY
    assert copied.stat().st_nlink == 1
    assert not copied.is_symlink()


def test_a_manifest_comes_back_as_it_was_written(made: Path) -> None:
    text = (made / "manifest.json").read_text("utf-8")
    assert manifests.load(made).to_json() == text


def test_optimizing_twice_gives_the_same_files(made: Path, artifact: Path) -> None:
    again = onnxopt.optimize(made.parent / "chain.onnx", artifact, archs=()).manifest
    assert again.files == manifests.load(made).files


def test_nothing_to_fuse_makes_an_artifact_without_library(tmp_path: Path, artifact: Path) -> None:
    manifest = onnxopt.optimize(write(tmp_path / "m.onnx", NOTHING_TO_FUSE), artifact).manifest
    assert not (artifact / "lib").exists()
    assert "nothing was fused" in manifest.notes[-1]
    assert manifest.verify.status == "passed"
    assert onnxopt.load(artifact).get_inputs()[0].name == "x"


def test_external_data(artifact: Path) -> None:
    weight = with_weights(artifact)
    manifest = manifests.load(artifact)
    assert manifest.verify.status == "passed"
    assert manifest.files["model.onnx.data"].bytes >= weight.nbytes
    assert manifest.files["model.onnx"].bytes < 1000
    onnxopt.load(artifact)


# --- staging ---------------------------------------------------------------------------------------------------------


def test_staging_becomes_the_output(tmp_path: Path) -> None:
    output = tmp_path / "a" / "b" / "out"
    with staging(output) as folder:
        (folder / "file").write_text("x")
        assert not output.exists()
    assert (output / "file").read_text() == "x"
    assert [p.name for p in output.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def fail() -> None:
        with staging(tmp_path / "made" / "out") as folder:
            (folder / "file").write_text("x")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert not list(tmp_path.iterdir())


def test_the_file_systems_refusal_is_a_usage_error(tmp_path: Path) -> None:
    def fill_the_disk() -> None:
        with staging(tmp_path / "out"):
            raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match="out: cannot be written: No space left on device"):
        fill_the_disk()
    assert not list(tmp_path.iterdir())


def test_an_output_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    def race() -> None:
        with staging(tmp_path / "out"):
            (tmp_path / "out").mkdir()

    with pytest.raises(UsageError, match="another process made it"):
        race()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["model.onnx", "lib/libonnxopt_ops.so", "lib/kernels.json", "providers/cpu.json"])
def test_each_file_is_checked(copy: Path, name: str) -> None:
    path = copy / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=rf"{name}: is not the file that was packaged"):
        onnxopt.load(copy)
    path.write_bytes(content + b"\n")
    with pytest.raises(ArtifactError, match=rf"{name}: has {len(content) + 1} bytes, the manifest says {len(content)}"):
        onnxopt.load(copy)
    path.unlink()
    with pytest.raises(ArtifactError, match=rf"{name}: is missing"):
        onnxopt.load(copy)


def test_damaged_manifests(copy: Path, tmp_path: Path) -> None:
    edit_manifest(copy, kernels=[{"name": 3}])
    with pytest.raises(ArtifactError, match=r"manifest.json: damaged: kernels.0"):
        onnxopt.load(copy)
    edit_manifest(copy, schema_version=99)
    with pytest.raises(
        ArtifactError, match=r"has schema version 99 \(onnxopt .*\), this onnxopt reads 2, 3 and 4; upgrade"
    ):
        onnxopt.load(copy)
    edit_manifest(copy, schema_version=1)
    with pytest.raises(ArtifactError, match=r"has schema version 1 .* optimize the model again"):
        onnxopt.load(copy)
    (copy / "manifest.json").write_text("{")
    with pytest.raises(ArtifactError, match="damaged, it is not JSON"):
        onnxopt.load(copy)
    (copy / "manifest.json").write_text("[]")
    with pytest.raises(ArtifactError, match="it has no schema version"):
        onnxopt.load(copy)
    (copy / "manifest.json").unlink()
    with pytest.raises(ArtifactError, match=r"it has no manifest\.json"):
        onnxopt.load(copy)
    with pytest.raises(ArtifactError, match="no such artifact folder"):
        onnxopt.load(tmp_path / "nowhere")


def test_a_manifest_cannot_name_files_outside(copy: Path) -> None:
    for name in ("../secret", "/etc/passwd", "lib/../../secret", "lib//x", "./x", "a\\b"):
        edit_manifest(copy, files={name: {"sha256": "0" * 64, "bytes": 1}})
        with pytest.raises(ArtifactError, match=f"names a file outside the folder: {re.escape(name)}"):
            onnxopt.load(copy)


# --- providers -------------------------------------------------------------------------------------------------------


def test_configurations_are_plain_data_with_reasons(made: Path) -> None:
    for name in ("cpu", "cuda"):
        read = providers.read(made, name)
        assert all(isinstance(v, str) for part in ("provider_options", "session_config") for v in read[part].values())
        options = {**read["provider_options"], **read["session_options"], **read["session_config"]}
        assert set(read["why"]) == set(options)


def test_unusable_configurations(tmp_path: Path) -> None:
    (tmp_path / "providers").mkdir()
    path = tmp_path / "providers" / "cpu.json"
    for text, reason in (
        ("{", "cannot be read"),
        ("{}", "names no provider"),
        ('{"provider": "x"}', "needs the objects"),
    ):
        path.write_text(text)
        with pytest.raises(ArtifactError, match=reason):
            providers.read(tmp_path, "cpu")
