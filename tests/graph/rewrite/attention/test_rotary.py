"""Rotary embedding in its spellings: what becomes the first one, what is refused, and that results stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.rotary import DoubledTable, RotatedByParts, SplitHalves, halves_of, repeats
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, run

_INPUTS = "float[2, 3, S, 8] x, float[2, 1, S, 8] cos, float[2, 1, S, 8] sin"
_BOUNDS = (
    "int64[1] zero = {0}, int64[1] half = {4}, int64[1] back = {-4}, int64[1] end = {99}, int64[1] last = {-1}, "
    "int64[4] ahead = {0, 1, 2, 3}, int64[4] behind = {4, 5, 6, 7}, int64[2] unequal = {2, 6}"
)
_SPLIT = "l, r = Split<axis = 3, num_outputs = 2>({0})"
_TURNED = "n = Neg(r) t = Concat<axis = 3>(n, l) a = Mul(x, cos) b = Mul(t, sin) y = Add(b, a)"
_FIRST = ["Slice", "Neg", "Slice", "Concat", "Mul", "Mul", "Add"]
_PARTS = (
    "c, d = Split<axis = 3, num_outputs = 2>(cos) e, f = Split<axis = 3, num_outputs = 2>(sin) "
    "p = Mul(l, c) q = Mul(e, r) u = Sub(p, q) v = Mul(d, r) w = Mul(l, f) z = Add(w, v) y = Concat<axis = -1>(u, z)"
)
SPELLINGS = {
    "Slices": f"l = Slice(x, zero, half, last) r = Slice(x, half, end, last) {_TURNED}",
    "bounds from the end": f"l = Slice(x, zero, back, last) r = Slice(x, back, end, last) {_TURNED}",
    "Gathers": f"l = Gather<axis = 3>(x, ahead) r = Gather<axis = 3>(x, behind) {_TURNED}",
    "Split": f"{_SPLIT.format('x')} {_TURNED}",
    "parts of all": f"{_SPLIT.format('x')} {_PARTS}",
    "parts by Slices": f"l = Slice(x, zero, half, last) r = Slice(x, half, end, last) {_PARTS}",
}


def _model(body: str) -> ir.Model:
    return graph(_INPUTS, "float[] y", body, constants=_BOUNDS)


@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings_become_one(name: str, tmp_path: Path) -> None:
    source = _model(SPELLINGS[name])
    found = normalize(source.clone()).model
    rewrite(found, tmp_path)
    assert sorted(node.op_type for node in found.graph) == sorted(_FIRST)
    rng = np.random.default_rng(0)
    feeds = {
        str(v.name): rng.standard_normal([d if isinstance(d, int) else 5 for d in v.shape or ()]).astype(np.float32)
        for v in source.graph.inputs
    }
    np.testing.assert_array_equal(run(found, feeds)[0], run(source, feeds)[0])


def test_unequal_parts_stay(tmp_path: Path) -> None:
    found = normalize(_model("l, r = Split<axis = 3>(x, unequal) n = Neg(r) y = Concat<axis = 3>(n, l)")).model
    infer(found).write()
    concat = found.graph[-1]
    negative, first = concat.inputs
    assert negative is not None and first is not None
    second = negative.producer().inputs[0]  # type: ignore[union-attr]
    assert second is not None and halves_of(first, second) is None
    assert "does not swap two halves" in SplitHalves().check(None, first=first, second=second).reason  # type: ignore[arg-type]


def test_other_tables_are_refused() -> None:
    model = _model(f"{_SPLIT.format('x')} {_PARTS.replace('Mul(d, r)', 'Mul(c, r)')}")
    infer(model).write()
    values = {v.name: v for n in model.graph for v in n.outputs}
    names = {"x1": "l", "x2": "r", "c1": "c", "c2": "c", "s1": "e", "s2": "f"}
    reason = RotatedByParts().check(None, **{key: values[name] for key, name in names.items()}).reason  # type: ignore[arg-type]
    assert "`c` and `c` are not the two halves of a tensor" in reason


_TABLES = {
    "Concat of the last dim": ("c = Concat<axis = -1>(t, t)", True),
    "turned after Concat": ("u = Transpose<perm = [0, 2, 1]>(t) v = Concat<axis = 1>(u, u) w = Sin(v) "
                            "c = Transpose<perm = [0, 2, 1]>(w)", True),
    "turned twice": ("u = Transpose<perm = [2, 0, 1]>(t) v = Concat<axis = 0>(u, u) k = Mul(v, f) "
                     "w = Transpose<perm = [2, 1, 0]>(k) c = Transpose<perm = [1, 0, 2]>(w)", True),
    "dims added before and after": ("u = Transpose<perm = [2, 0, 1]>(t) v = Concat<axis = 0>(u, u) "
                                    "w = Unsqueeze(v, one) c = Transpose<perm = [1, 2, 3, 0]>(w)", True),
    "Concat of another dim": ("u = Transpose<perm = [0, 2, 1]>(t) v = Concat<axis = 2>(u, u) "
                              "c = Transpose<perm = [0, 2, 1]>(v)", False),
    "moved to another dim": ("v = Concat<axis = -1>(t, t) c = Transpose<perm = [0, 2, 1]>(v)", False),
    "an added dim": ("v = Concat<axis = -1>(t, t) c = Unsqueeze(v, four)", False),
    "rows": ("v = Concat<axis = -1>(t, t) w = Slice(v, one, four, one) c = Gather(w, none)", True),
    "rows of another dim": ("v = Concat<axis = 1>(t, t) c = Slice(v, one, four, one)", False),
    "elements of rows": ("v = Concat<axis = -1>(t, t) c = Gather<axis = 2>(v, four)", False),
}  # fmt: skip


@pytest.mark.parametrize("name", _TABLES)
def test_tables_with_each_angle_twice(name: str) -> None:
    body, twice = _TABLES[name]
    constants = "float f = {0.5}, int64[1] one = {1}, int64[1] four = {3}, int64[1] none = {0}"
    model = graph("float[1, S, 4] t", "float[] c", body, constants=constants)
    infer(model).write()
    assert repeats(model.graph.outputs[0]) is twice
    (table,) = run(model, {"t": np.random.default_rng(0).standard_normal((1, 6, 4)).astype(np.float32)})
    first, second = np.array_split(table, 2, -1)
    assert (first.shape == second.shape and np.array_equal(first, second)) is twice


_DOUBLED = {
    "sines and cosines": ("c = Cos(t) s = Sin(t) d = Concat<axis = -1>(c, c) e = Concat<axis = 2>(s, s) y = Mul(d, e)",
                          ["Concat", "Cos", "Sin", "Mul"]),
    "their multiples": ("c = Cos(t) s = Sin(t) f = Mul(c, k) g = Mul(s, k) d = Concat<axis = -1>(f, f) "
                        "e = Concat<axis = -1>(g, g) y = Add(d, e)",
                        ["Concat", "Cos", "Sin", "Mul", "Mul", "Add"]),
    "other functions": ("c = Tanh(t) d = Concat<axis = -1>(c, c) y = Abs(d)", ["Tanh", "Concat", "Abs"]),
    "another dim": ("c = Cos(t) d = Concat<axis = 1>(c, c) y = Abs(d)", ["Cos", "Concat", "Abs"]),
    "two tables": ("c = Cos(t) s = Sin(t) d = Concat<axis = -1>(c, s) y = Abs(d)", ["Cos", "Sin", "Concat", "Abs"]),
}  # fmt: skip


@pytest.mark.parametrize("name", _DOUBLED)
def test_angles_are_repeated_not_their_sines(name: str, tmp_path: Path) -> None:
    body, left = _DOUBLED[name]
    source = graph("float[1, S, 4] t", "float[] y", body, constants="float k = {0.7}")
    found = normalize(source.clone()).model
    rewrite(found, tmp_path)
    assert sorted(node.op_type for node in found.graph) == sorted(left)
    feeds = {"t": np.random.default_rng(0).standard_normal((1, 6, 4)).astype(np.float32)}
    np.testing.assert_array_equal(run(found, feeds)[0], run(source, feeds)[0])


def test_why_a_table_stays() -> None:
    model = graph("float[1, S, 4] t", "float[] y", _DOUBLED["other functions"][0])
    infer(model).write()
    values = {v.name: v for n in model.graph for v in n.outputs}
    assert DoubledTable().check(None, table=values["c"], y=values["d"]).reason == (  # type: ignore[arg-type]
        "`c` is no table of sines or cosines"
    )
