"""isolated: a model that kills the process that runs it is reported, by the process that asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.graph.ort_traps import can_end_the_process, trapping_optimizers
from onnxopt.runtime import isolated, sessions, time_limit
from onnxopt.runtime.sessions import RunError, RunTimeout
from tests.support.command import assert_refused, run
from tests.support.graphs import graph, hold
from tests.support.hostile.endless_models import loop
from tests.support.small_models import write

MODULO = "g (int64[n] x, int64[n] d) => (int64[n] y) { y = Mod(x, d) }"
LOWEST = np.iinfo(np.int64).min


def test_the_process_ends_without_isolation(tmp_path: Path) -> None:
    """Guards the tests below: were ONNX Runtime to raise an exception, isolation would be for nothing."""
    model = write(tmp_path / "m.onnx", MODULO)
    program = (
        "import numpy as np, onnxruntime as ort\n"
        f"session = ort.InferenceSession({str(model)!r}, providers=['CPUExecutionProvider'])\n"
        f"session.run(None, dict(x=np.full(3, {LOWEST}), d=np.full(3, -1)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode < 0


def test_a_trial_says_how_it_ended_and_goes_on(tmp_path: Path) -> None:
    trial = isolated.Trial(write(tmp_path / "m.onnx", MODULO), provider=sessions.CPU, library=None)
    try:
        trial.open()
        trial.run({"x": np.array([7, 8]), "d": np.array([2, 3])})
        with pytest.raises(RunError, match=r"^ONNX Runtime ended its process \(SIGFPE\)$"):
            trial.run({"x": np.full(3, LOWEST), "d": np.full(3, -1)})
        trial.run({"x": np.array([7, 8]), "d": np.array([2, 3])})
        with pytest.raises(RunError, match="x"):
            trial.run({"x": np.zeros((2, 2)), "d": np.array([2, 3])})
    finally:
        trial.close()


def test_a_run_that_does_not_end_ends_with_its_process(tmp_path: Path) -> None:
    trial = isolated.Trial(loop(tmp_path / "m.onnx"), provider=sessions.CPU, library=None)
    trial.open()
    child = trial._child
    with (
        time_limit.runs_end_within(time_limit.Limit(0.2, True)),
        pytest.raises(RunTimeout, match=r"did not end within 0\.2 s"),
    ):
        trial.run({"x": np.ones(4, np.float32)})
    assert child is not None and child.poll() is not None and trial._child is None


def test_a_model_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    trial = isolated.Trial(tmp_path / "m.onnx", provider=sessions.CPU, library=None)
    with pytest.raises(RunError, match=r"(?i)protobuf"):
        trial.open()
    trial.close()


def test_optimize_reports_a_model_that_kills_where_it_is_opened(tmp_path: Path, artifact: Path) -> None:
    """ONNX Runtime folds this Mod when it creates the session."""
    constants = f"<int64[1] c = {{{LOWEST}}}, int64[1] d = {{-1}}>"
    model = write(tmp_path / "m.onnx", f"g (int64[n] x) => (int64[n] y) {constants} {{ m = Mod(c, d)  y = Add(x, m) }}")
    result = run("optimize", model, "-o", artifact, "--arch", "none")
    assert_refused(result, "m.onnx: ONNX Runtime does not open the original: ONNX Runtime ended its process (SIGFPE)")
    assert not artifact.exists()


def test_optimize_reports_a_model_that_kills_where_it_runs(tmp_path: Path, artifact: Path) -> None:
    constants = f"<int64[1] c = {{{LOWEST}}}, int64[1] d = {{-1}}>"
    body = "z = Sub(x, x)  a = Add(z, c)  b = Add(z, d)  y = Mod(a, b)"
    model = write(tmp_path / "m.onnx", f"g (int64[7] x) => (int64[7] y) {constants} {{ {body} }}")
    result = run("optimize", model, "-o", artifact, "--arch", "none")
    assert "ONNX Runtime ended its process (SIGFPE)" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("inputs", "body", "constants", "traps"),
    [
        ("int64[N] x, int64[N] d", "y = Div(x, d)", "", True),
        ("int32[N] x, int32[N] d", "y = Mod(x, d)", "", True),
        ("int64[N] x", "y = Div(x, c)", "int64 c = {2}", False),
        ("int64[N] x", "y = Div(x, c)", "int64[2] c = {2, 0}", True),
        ("int64[N] x", "y = Mod(x, c)", "int64 c = {-1}", True),
        ("float[N] x, float[N] d", "y = Div(x, d)", "", False),
        ("float[N] x, float[N] d", "a = Exp(x)  b = Neg(d)  y = Div(a, b)", "", False),
        ("float[N] x, float[N] d", "y = Mod<fmod = 1>(x, d)", "", False),
        ("float[N] x", "s = Shape(x)  t = Size(x)  y = Div(s, t)", "", True),
        ("float[N, 9223372036854775807] x", "y = Neg(x)", "", True),
        ("float[N, 1073741824] x", "y = Neg(x)", "", False),
    ],
)  # fmt: skip
def test_which_models_run_isolated(inputs: str, body: str, constants: str, traps: bool) -> None:
    assert can_end_the_process(graph(inputs, "y", body, constants=constants)) is traps


def test_optimize_opens_what_an_optimizer_of_onnx_runtime_cannot(tmp_path: Path, artifact: Path) -> None:
    body = "t = Transpose<perm = [1, 0, 2]>(x)  y = MatMul(t, w)"  # as torch.nn.TransformerEncoder has it
    model = graph("float16[N, 5, 8] x, float16[8, 4] w", "float16[] y", body)
    hold(model, {"w": np.ones((8, 4))}, np.float16)
    ir.save(model, tmp_path / "m.onnx")
    result = run("optimize", tmp_path / "m.onnx", "-o", artifact, "--arch", "none")
    assert result.exit_code == 0, result.output
    notes = json.loads((artifact / "manifest.json").read_text())["verify"]["notes"]
    assert sum("without ONNX Runtime's optimizer NchwcTransformer" in note for note in notes) == 1
    given = json.loads((artifact / "providers" / "cpu.json").read_text())["session_config"]
    assert given == {"optimization.disable_specified_optimizers": "NchwcTransformer"}
    assert onnxopt.load(artifact, configuration="cpu").get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("inputs", "body", "traps"),
    [
        ("float16[N, 5, 8] x, float16[8, 4] w", "t = Transpose<perm = [1, 0, 2]>(x)  y = MatMul(t, w)", True),
        ("float[N, 5, 8] x, float[8, 4] w", "t = Transpose<perm = [1, 0, 2]>(x)  y = MatMul(t, w)", False),
        ("float16[N, 5, 8] x, float16[5, 4] w", "t = Transpose<perm = [0, 2, 1]>(x)  y = MatMul(t, w)", False),
        ("float16[N, 5, 8] x, float16[8, 4] w", "t = Transpose<perm = [1, 0, 2]>(x)  y = Relu(t)", False),
    ],
)
def test_which_models_need_an_optimizer_left_out(inputs: str, body: str, traps: bool) -> None:
    assert trapping_optimizers(graph(inputs, "y", body)) == (("NchwcTransformer",) if traps else ())
