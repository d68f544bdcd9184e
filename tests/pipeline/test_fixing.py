"""`--fix`: dims as constants in the artifact, and what `optimize` says that it would bring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

import onnxopt
from onnxopt.artifact.open import read_manifest
from onnxopt.artifact.summary import fixing_text
from onnxopt.errors import UsageError
from onnxopt.tools.cli import main
from tests.support.fusing import compile_nothing
from tests.support.graphs import graph, hold

# Numbers that are counted and added up on the GPU: constants once the number of tokens is fixed.
ROWS = " ".join(
    f"n{k} = Add (n, i{k}) r{k} = Range (i{k}, n{k}, one) f{k} = Cast <to = 1> (r{k}) c{k} = CumSum (f{k}, i0) "
    f"a{k} = Softmax <axis = 1> (y{k}) y{k + 1} = Mul (a{k}, c{k})"
    for k in range(3)
)
BODY = f"s = Shape <start = 1, end = 2> (x) n = Squeeze (s) y0 = Neg (x) {ROWS} y = Neg (y3)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    model = graph("float[batch, tokens] x, int64 i0, int64 i1, int64 i2, int64 one", "float[batch, tokens] y", BODY)
    hold(model, {"one": np.array(1), **{f"i{k}": np.array(k) for k in range(3)}}, np.int64)
    ir.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_the_gain_is_said_and_reached(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_nothing(monkeypatch)
    artifact = onnxopt.optimize(file, tmp_path / "dynamic", archs=("sm_90",), shapes={"tokens": (64,)})
    gain = artifact.manifest.fixing
    assert gain is not None and gain.dims == ("tokens",) and gain.launches_before == artifact.result.launches.after
    assert fixing_text(gain) == (
        f"optimize --shape tokens=SIZE --fix, if it never changes: {gain.launches_before} launches of the whole model "
        f"become {gain.launches_after}"
    )
    assert "--shape tokens=SIZE --fix" in onnxopt.explain(artifact)
    fixed = onnxopt.optimize(file, tmp_path / "fixed", archs=("sm_90",), shapes={"tokens": (64,)}, fix=True).manifest
    assert [t.dims for t in (*fixed.inputs, *fixed.outputs)] == [("batch", 64), ("batch", 64)]
    assert (fixed.verify.status, fixed.fixing) == ("passed", None)
    assert onnxopt.verify(tmp_path / "fixed").status == "passed"


def test_a_fixed_model_runs_at_its_sizes_alone(file: Path, tmp_path: Path) -> None:
    fixed = onnxopt.optimize(file, tmp_path / "fixed", archs=(), shapes={"x": (2, 8)}, fix=["tokens"])
    session, other = fixed.session(providers=["CPUExecutionProvider"]), onnxopt.optimize(file, tmp_path / "o", archs=())
    x = np.ones((3, 8), np.float32)
    (expected,) = other.session(providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5)
    with pytest.raises(Exception, match="Got: 9 Expected: 8"):
        session.run(None, {"x": np.ones((3, 9), np.float32)})


def test_the_users_data_has_the_fixed_sizes(file: Path, tmp_path: Path) -> None:
    options = {"archs": (), "shapes": {"tokens": (8,)}, "fix": True}
    with pytest.raises(UsageError, match="set 0: shape of x: dim 1 is 8, not 9"):
        onnxopt.optimize(file, tmp_path / "a", data=[{"x": np.ones((3, 9), np.float32)}], **options)
    made = onnxopt.optimize(file, tmp_path / "a", data=[{"x": np.ones((3, 8), np.float32)}], **options)
    assert made.manifest.verify.status == "passed"


def test_the_command_line(file: Path, tmp_path: Path) -> None:
    shared = [str(file), "--arch", "none", "-q"]
    both = ["--shape", "x=2x8"]
    for k, (arguments, dims) in enumerate(
        [
            ([*both, "--fix"], (2, 8)),
            ([*both, "--fix", "tokens"], ("batch", 8)),
            ([*both, "--fix=batch,tokens"], (2, 8)),
        ]
    ):
        result = CliRunner().invoke(main, ["optimize", *shared, "-o", str(tmp_path / f"a{k}"), *arguments])
        assert result.exit_code == 0, result.output
        assert read_manifest(tmp_path / f"a{k}").inputs[0].dims == dims
    result = CliRunner().invoke(main, ["optimize", *both, "--fix", *shared, "-o", str(tmp_path / "b")])
    assert result.exit_code == 2 and f"--fix {file}: took the file for its value; write --fix after" in result.output
