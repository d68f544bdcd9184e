"""session.load: an ordinary InferenceSession, with the library or without."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.runtime import sessions
from tests.support.custom_ops import custom_ops_artifact
from tests.support.small_models import CHAIN, write

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("session")
    return onnxopt.optimize(write(folder / "chain.onnx", CHAIN), folder / "artifact", archs=()).path


@pytest.fixture(scope="module")
def feeds() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"x": (5, 8), "bias": (8,), "weight": (8, 8)}
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def _custom_ops_ran(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> set[str]:
    """The op types of the domain onnxopt that ORT's profile saw."""
    session.run(None, feeds)
    with open(session.end_profiling(), encoding="utf-8") as file:
        return {e["args"]["op_name"] for e in json.load(file) if "op_name" in e.get("args", {})}


@pytest.mark.parametrize("library", [True, False])
def test_load_runs_as_the_original(made: Path, feeds: dict[str, np.ndarray], library: bool) -> None:
    session = onnxopt.load(made, library=library, providers=[sessions.CPU])
    original = ort.InferenceSession(made.parent / "chain.onnx", providers=[sessions.CPU])
    np.testing.assert_allclose(session.run(None, feeds)[0], original.run(None, feeds)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", [True, False])
def test_the_library_decides_what_runs(made: Path, feeds: dict[str, np.ndarray], tmp_path: Path, library: bool) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxopt.load(made, session_options=options, library=library, providers=[sessions.CPU])
    ran = _custom_ops_ran(session, feeds)
    names = {k.name for k in manifests.load(made).kernels}
    assert (names <= ran) is library
    assert ("Tanh" in ran) is not library


def test_two_artifacts_in_one_process_keep_their_own_kernels(
    made: Path, feeds: dict[str, np.ndarray], tmp_path: Path
) -> None:
    other_model = write(tmp_path / "other.onnx", CHAIN.replace("Tanh", "Erf"))
    other = onnxopt.optimize(other_model, tmp_path / "other", archs=()).path
    first, second = (onnxopt.load(path, providers=[sessions.CPU]) for path in (made, other))
    a, b = first.run(None, feeds)[0], second.run(None, feeds)[0]
    assert not np.allclose(a, b)
    original = ort.InferenceSession(other_model, providers=[sessions.CPU])
    np.testing.assert_allclose(b, original.run(None, feeds)[0], rtol=1e-5, atol=1e-6)


def test_an_artifact_can_be_moved(made: Path, feeds: dict[str, np.ndarray], tmp_path: Path) -> None:
    made_here = onnxopt.optimize(made.parent / "chain.onnx", tmp_path / "before", archs=()).path
    moved = made_here.rename(tmp_path / "after")
    onnxopt.load(moved, providers=[sessions.CPU]).run(None, feeds)


def test_a_provider_that_is_not_there(made: Path) -> None:
    with pytest.raises(UsageError, match="has no execution provider 'NoSuchExecutionProvider'; it has"):
        onnxopt.load(made, providers=["NoSuchExecutionProvider"])


def test_three_artifacts_and_one_of_them_again_in_one_session_options(
    made: Path, feeds: dict[str, np.ndarray], tmp_path: Path
) -> None:
    artifacts = [made, made]
    for op in ("Erf", "Sigmoid"):
        model = write(tmp_path / f"{op}.onnx", CHAIN.replace("Tanh", op))
        artifacts.append(onnxopt.optimize(model, tmp_path / op, archs=()).path)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(made / "lib" / "libonnxopt_ops.so"))  # load takes another copy of it
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    for artifact in artifacts:
        session = onnxopt.load(artifact, session_options=options, providers=[sessions.CPU])
        manifest = manifests.load(artifact)
        original = ort.InferenceSession(manifest.source.path, providers=[sessions.CPU])
        np.testing.assert_allclose(session.run(None, feeds)[0], original.run(None, feeds)[0], rtol=1e-5, atol=1e-6)
        assert {k.name for k in manifest.kernels} <= _custom_ops_ran(session, feeds)
        (domain,) = [name for name in manifest.opsets if name.startswith("onnxopt.")]
        assert json.loads((artifact / "lib" / "kernels.json").read_text())["domain"] == domain


def test_orts_refusal_is_an_artifact_error(made: Path, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    domain = json.loads((made / "lib" / "kernels.json").read_text())["domain"]
    options.register_custom_ops_library(str(custom_ops_artifact.negation(tmp_path, domain=domain)[0]))
    with pytest.raises(ArtifactError, match=r"cannot use it: .* other kernels in the domain"):
        onnxopt.load(made, session_options=options, providers=[sessions.CPU])


def test_no_providers_asked_for_is_the_machines_best(made: Path, feeds: dict[str, np.ndarray]) -> None:
    session = onnxopt.load(made)
    expected = sessions.CUDA if sessions.cuda_is_usable() else sessions.CPU
    assert session.get_providers()[0] == expected
    session.run(None, feeds)
