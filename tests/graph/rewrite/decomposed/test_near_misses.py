"""What looks like a GELU or a norm and is none that the rules know: the node at which the nearest rule stops."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.artifact.manifest import Manifest
from onnxopt.graph.refusal import Refusal
from onnxopt.tools import explain
from tests.support.fusing import compile_nothing
from tests.support.graphs import graph

GELU = "a = Div (x, root) b = Erf (a) c = Add (b, one) d = Mul (x, c) y = Mul (d, half)"
TANH = (
    "p = Pow (x, three) q = Mul (p, cubic) s = Add (x, q) t = Mul (s, root) b = Tanh (t) c = Add (b, one) "
    "d = Mul (x, half) y = Mul (d, c)"
)
NORM = "s = Mul (x, x) m = ReduceMean (s, axes) e = Add (m, half) r = Sqrt (e) y = Div (x, r)"


@pytest.fixture
def manifest_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compile_nothing(monkeypatch)

    def manifest(body: str, outputs: str = "float[4,8,64] y", axes: str = "-1", **changes: float) -> Manifest:
        numbers = {"root": 0.7978845608 if "Tanh" in body else 2**0.5, "one": 1.0, "half": 0.5, "three": 3.0}
        numbers |= {"cubic": 0.044715} | changes
        constants = [f"float {name} = {{{number}}}" for name, number in numbers.items() if name in body]
        if "axes" in body:
            constants.append(f"int64[{len(axes.split(','))}] axes = {{{axes}}}")
        ir.save(graph("float[4,8,64] x", outputs, body, constants=", ".join(constants)), tmp_path / "m.onnx")
        return onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "made", archs=("sm_90",), verify=False).manifest

    return manifest


@pytest.mark.parametrize("body", [GELU, TANH, NORM])
def test_what_is_recognised_is_not_listed(manifest_of, body: str) -> None:
    assert "looks like" not in explain.describe(manifest_of(body))


@pytest.mark.parametrize(
    ("body", "changes", "text"),
    [
        (GELU, {"root": 1.5}, "GELU: `root` is not the constant 1.41421 (Erf `b`)"),
        (GELU, {"half": 0.25}, "GELU: `half` is not the constant 0.5 (Erf `b`)"),
        (GELU, {"outputs": "float[4,8,64] y, float[4,8,64] c"}, "GELU: a value between its nodes has other readers"),
        (TANH, {"cubic": 0.05}, "GELU: `cubic` is not the constant 0.044715 (Tanh `b`)"),
        (NORM, {"axes": "0,2"}, "a norm: ReduceMean reduces the axes (0, 2), which are not adjacent (ReduceMean `m`)"),
    ],
)
def test_the_first_node_where_the_rule_stops(manifest_of, body: str, changes: dict, text: str) -> None:
    said = explain.describe(manifest_of(body, **changes))
    section = said[said.index("looks like one operator, and was not recognised (please report these lines):") :]
    assert section.splitlines()[1].strip().startswith(f"1 x {text}")
    assert len(section.split("\n\n")[0].splitlines()) == 2


def test_at_most_ten_lines(manifest_of) -> None:
    rows = tuple(
        Refusal(f"n{k}", "Softmax", "", f"not recognised as attention: {'an operator ' * k}is here") for k in range(12)
    )
    manifest = manifest_of(NORM).model_copy(update={"refusals": rows})
    lines = explain.describe(manifest).split("looks like")[1].splitlines()[1:]
    assert len(lines) == 10 and lines[-1].strip() == "and 3 more (--all lists them)"
    assert len(explain.describe(manifest, every_refusal=True).split("looks like")[1].splitlines()[1:]) == 12
