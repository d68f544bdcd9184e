"""The same artifact on CUDA: load picks it, verify covers it, bench binds to the device."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import onnxopt
from onnxopt.program.dtypes import to_ir
from onnxopt.runtime import sessions
from tests.support.small_models import CHAIN, write

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]


@pytest.fixture(scope="module", params=["float", "float16", "bfloat16"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> onnxopt.Artifact:
    folder = tmp_path_factory.mktemp("gpu")
    model = write(folder / "chain.onnx", CHAIN.replace("float", request.param))
    return onnxopt.optimize(model, folder / "artifact")


def test_verification_covered_cuda_with_and_without_the_library(made: onnxopt.Artifact) -> None:
    assert made.manifest.verify.status == "passed"
    assert not made.manifest.left_out
    ran = {(c.provider, c.library) for c in made.manifest.verify.checks}
    assert {(sessions.CUDA, True), (sessions.CUDA, False)} <= ran


def test_load_picks_cuda_and_is_as_exact_as_the_plain_model(made: onnxopt.Artifact) -> None:
    """Both are held against the same model in float32 on the CPU: kernels round less often than separate operators."""
    session = onnxopt.load(made.path)
    assert session.get_providers()[0] == sessions.CUDA
    random = np.random.default_rng(0)
    dtype = to_ir(made.manifest.inputs[0].dtype).numpy()
    feeds = {
        name: random.standard_normal(shape).astype(dtype)
        for name, shape in (("x", (257, 8)), ("bias", (8,)), ("weight", (8, 8)))
    }
    wide = sessions.open_session(write(made.path.parent / f"wide_{dtype}.onnx", CHAIN), provider=sessions.CPU)
    exact = sessions.run(wide, {name: array.astype(np.float32) for name, array in feeds.items()})["y"]
    plain = sessions.open_session(made.path.parent / "chain.onnx", provider=sessions.CUDA)
    ours, theirs = (
        np.abs(sessions.run(run, feeds)["y"].astype(np.float64) - exact.astype(np.float64)).max()
        for run in (session, plain)
    )
    assert ours <= max(theirs, 1e-2)  # load allows TF32, the plain session does not


def test_bench_on_cuda(made: onnxopt.Artifact) -> None:
    result = onnxopt.bench(made.path, iterations=5, shapes={"batch": (1024,)})
    assert result.provider == sessions.CUDA
    assert result.artifact.runs == 5


def test_one_library_of_a_folder_beside_that_of_an_artifact(made: onnxopt.Artifact, tmp_path: Path) -> None:
    """Four kernel files in one SessionOptions, each with its own fatbin; every session runs its own kernels on CUDA."""
    dtype = made.manifest.inputs[0].dtype
    (tmp_path / "original").mkdir()
    for op in ("Erf", "Sigmoid", "Abs"):
        text = CHAIN.replace("Tanh", op).replace("float", {"float32": "float"}.get(dtype, dtype))
        write(tmp_path / "original" / f"{op}.onnx", text)
    folder = onnxopt.optimize_folder(tmp_path / "original", tmp_path / "made")
    assert folder.exit_code == 0 and folder.library is not None
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(folder.library))
    options.register_custom_ops_library(str(made.path / "lib" / folder.library.name))
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    models = [(made.path / "model.onnx", made.manifest)]
    models += [(folder.path / model.path, model.manifest) for model in folder.models if model.manifest]
    for path, manifest in models:
        session = ort.InferenceSession(path, options, providers=[sessions.CUDA, sessions.CPU])
        shapes = {"x": (257, 8), "bias": (8,), "weight": (8, 8)}
        values = {name: np.linspace(-1, 1, math.prod(shape)).reshape(shape) for name, shape in shapes.items()}
        sessions.run(session, {name: array.astype(to_ir(dtype).numpy()) for name, array in values.items()})
        events = json.loads(Path(session.end_profiling()).read_text())
        ran = {e["args"]["op_name"] for e in events if e.get("args", {}).get("provider") == sessions.CUDA}
        assert {kernel.name for kernel in manifest.kernels} <= ran


def test_a_compiled_module_replays_graphs() -> None:
    """At two sets of shapes, on another stream, with tensors of the CPU too; outputs stay what they were."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))

        def forward(self, x: Any, scale: Any) -> dict[str, Any]:
            y = self.layers(x) * scale + x
            return {"y": y, "large": y > 0.5}

    module = Module().eval()
    batch = torch.export.Dim("batch")
    fast = onnxopt.compile(
        module, (torch.randn(4, 64), torch.ones(64)), dynamic_shapes={"x": {0: batch}, "scale": None}
    )
    module = module.cuda()
    given = [(torch.randn(rows, 64, device="cuda"), torch.rand(64, device="cuda")) for rows in (3, 5, 3, 3, 5, 5, 3)]
    results = [fast(*tensors) for tensors in given]
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        given.append(tuple(tensor * 2 for tensor in given[0]))
        results.append(fast(*given[-1]))
        torch.cuda.current_stream().synchronize()
    given.append((given[1][0].cpu(), given[1][1]))
    results.append(fast(*given[-1]))
    with torch.inference_mode():
        for tensors, found in zip(given, results, strict=True):
            expected = module(*(tensor.cuda() for tensor in tensors))
            assert found["y"].is_cuda
            torch.testing.assert_close(found["y"], expected["y"], rtol=2e-3, atol=2e-3)
            assert (found["large"] == expected["large"]).float().mean() > 0.99
    with pytest.raises(onnxopt.UsageError, match="Unexpected input data type"):
        fast(given[0][0].half(), given[0][1])
