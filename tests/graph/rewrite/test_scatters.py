"""Scatters of every element and of neighbouring rows, and a Where of a certain condition one of its operands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import RewriteRule

from onnxopt.graph import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.gathers import REPEATS, CertainChoice, ReadersRepeat
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.rewrite.scatters import EveryElementWritten
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, run
from tests.support.refused import reason

CONSTANTS = (
    "int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[1] ones = {1}, int64[1] twos = {2}, "
    "int64[2] middle = {1, 2}, int64[3] behind = {1, 2, 3}, int64[3] rows = {0, 1, 3}, int64[3] columns = {0, 1, 2}, "
    "int64[1] first = {0}, float low = {-1e30}, float none = {0}, float unit = {1}"
)
# mask[:, :, :, :n] = y, as TorchScript writes it: x and y are [batch, 1, length, keys].
POSITIONS = """
    shape = Shape (x) b1 = Shape <start = 0, end = 1> (x) n1 = Shape <start = 2, end = 3> (x)
    k1 = Shape <start = 3, end = 4> (x) b = Squeeze (b1) n = Squeeze (n1) k = Squeeze (k1)
    i = Range (zero, b, one) q = Range (zero, n, one) r = Range (zero, k, one)
    iu = Unsqueeze (i, behind) qu = Unsqueeze (q, rows) ru = Unsqueeze (r, columns)
    ie = Expand (iu, shape) qe = Expand (qu, shape) re = Expand (ru, shape)
    il = Unsqueeze (ie, last) ql = Unsqueeze (qe, last) rl = Unsqueeze (re, last)
    zeros = Sub (il, il)
"""
WRITTEN = POSITIONS + "w = Concat <axis = -1> (il, zeros, ql, rl) y = ScatterND (x, w, u)"
INPUTS = "float[batch, 1, length, keys] x, float[batch, 1, length, keys] u"


def model(body: str, inputs: str = INPUTS) -> ir.Model:
    return graph(inputs, "float[] y", body, constants=CONSTANTS)


def operators(source: ir.Model) -> set[str]:
    return {node.op_type for node in source.graph.all_nodes()} - {"Identity"}


def assert_equal(source: ir.Model, found: ir.Model) -> None:
    for batch, length, keys in ((2, 3, 4), (1, 1, 1), (3, 4, 4)):
        random = np.random.default_rng(batch)
        feeds = {n: random.standard_normal((batch, 1, length, keys)).astype(np.float32) for n in "xu"}
        feeds = {value.name: feeds[str(value.name)] for value in source.graph.inputs if value.name in feeds}
        np.testing.assert_array_equal(run(found, feeds)[0], run(source, feeds)[0])


def test_every_element_is_written(tmp_path: Path) -> None:
    source = model(WRITTEN)
    found = source.clone()
    rewrite(found, tmp_path)
    assert not operators(found)
    assert_equal(source, found)


def refused(body: str, rule: type, inputs: str = INPUTS) -> str:
    source = model(body, inputs)
    made: RewriteRule = rule.rule(IndexValues(source.graph, infer(source)))  # type: ignore[attr-defined]
    return reason(source, "y", made)


_ORDER = "the positions do not count every element in order"


@pytest.mark.parametrize(
    ("body", "inputs", "why"),
    [
        (WRITTEN.replace("ScatterND (", 'ScatterND <reduction = "add"> ('), INPUTS,
         "ScatterND computes with the elements that are there"),
        (WRITTEN.replace("w = Concat <axis = -1> (il, zeros, ql, rl)", "w = Cast <to = 7> (h)"),
         f"{INPUTS}, float[batch, 1, length, keys, 4] h", "the positions, or the dims of the data, are not known"),
        (WRITTEN.replace("(il, zeros, ql, rl)", "(il, zeros, rl, ql)"), INPUTS, _ORDER),  # transposed
        (WRITTEN.replace("(il, zeros, ql, rl)", "(il, zeros, ql, moved)").replace("w =", "moved = Add (rl, one) w ="),
         INPUTS, _ORDER),  # from the second on
        (WRITTEN.replace("(il, zeros, ql, rl)", "(il, zeros, ql, zeros)"), INPUTS, _ORDER),  # one column
        (WRITTEN.replace("Shape (x) b1", "Shape (u) b1").replace("end = 4> (x)", "end = 4> (u)"),
         "float[batch, 1, length, wider] x, float[batch, 1, length, keys] u", _ORDER),  # some columns
    ],
    ids=["reduction", "unknown", "transposed", "moved", "one column", "some columns"],
)  # fmt: skip
def test_other_scatters_stay(body: str, inputs: str, why: str) -> None:
    assert refused(body, EveryElementWritten, inputs) == why


# transformers 4: mask[:, :, :, :n] = mask.masked_fill(mask + padding == 0, low), with a padding of ones
CAUSAL = """
    square = Concat <axis = 0> (n1, n1) filled = Expand (low, square) t = Trilu <upper = 1> (filled, one)
    down = Reshape (q, column) g = Greater (q, down) f = Cast <to = 1> (g) m = Mul (t, f) m4 = Unsqueeze (m, heads)
    ask = Concat <axis = 0> (b1, ones, n1, n1) e = Expand (m4, ask) attended = Concat <axis = 0> (b1, n1)
    p = Expand (unit, attended) p4 = Unsqueeze (p, middle) s = Add (e, p4) hidden = Equal (s, none)
    u = Where (hidden, low, e)
"""


def test_masks_of_transformers_are_causal(tmp_path: Path) -> None:
    """The mask is added to scores, which the rules then know to be causal: nothing of it is computed."""
    body = POSITIONS + CAUSAL + "w = Concat <axis = -1> (il, zeros, ql, rl) c = ScatterND (e, w, u) "
    body += (
        "tk = Transpose <perm = [0, 1, 3, 2]> (h) a = MatMul (h, tk) sc = Add (a, c) v = Softmax (sc) y = MatMul (v, h)"
    )
    source = graph(
        "float[batch, 1, length, length] x, float[batch, 2, length, 8] h", "float[batch, 2, length, 8] y", body,
        constants=f"{CONSTANTS}, int64[2] column = {{-1, 1}}, int64[2] heads = {{0, 1}}",
    )  # fmt: skip
    found = normalize.normalize(source.clone()).model
    rewrite(found, tmp_path)
    assert not {"ScatterND", "Trilu", "Where", "Range", "Softmax"} & operators(found)
    random = np.random.default_rng(0)
    shapes = {"x": (2, 1, 5, 5), "h": (2, 2, 5, 8)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    np.testing.assert_allclose(run(found, feeds)[0], run(source, feeds)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("test", "chosen"), [("Less", "u"), ("GreaterOrEqual", "x")])
def test_a_choice_that_is_certain(test: str, chosen: str, tmp_path: Path) -> None:
    body = POSITIONS + f"c = {test} (q, zero) cu = Unsqueeze (c, last) a = Where (cu, x, u) y = Relu (a)"
    source = model(body)
    found = source.clone()
    rewrite(found, tmp_path)
    (node,) = (node for node in found.graph if node.op_type == "Relu")
    assert operators(found) == {"Relu"} and node.inputs[0] is not None and node.inputs[0].name == chosen
    assert_equal(source, found)


def test_a_choice_that_is_open() -> None:
    assert refused(POSITIONS + "c = Less (q, one) cu = Unsqueeze (c, last) y = Where (cu, x, u)", CertainChoice) == (
        "the condition may hold or not"
    )


def test_an_expand_whose_readers_repeat(tmp_path: Path) -> None:
    """As a mask that is the same for all samples; the sizes are those of the other operand."""
    source = model("s = Shape (x) m = ReduceMax <keepdims = 1> (u, first) e = Expand (m, s) y = Add (e, x)")
    found = source.clone()
    rewrite(found, tmp_path)
    assert operators(found) == {"ReduceMax", "Add"}
    assert_equal(source, found)


@pytest.mark.parametrize("read", ["y = Identity (e)", "y = Transpose <perm = [0, 1, 3, 2]> (e)", "y = Add (e, m)"])
def test_an_expand_that_is_needed(read: str) -> None:
    body = f"s = Shape (x) m = ReduceMax <keepdims = 1> (u, first) e = Expand (m, s) {read}"
    source = model(body)
    made: RewriteRule = ReadersRepeat.rule(IndexValues(source.graph, infer(source)))  # type: ignore[attr-defined]
    assert reason(source, "e", made) == REPEATS


_RANGES = (
    "int64[3,1] ahead = {0, 1, 2}, int64[3,1] inner = {1, 2, 3}, int64[2,1] ending = {-2, -1}, "
    "int64[1,1] single = {2}, "
    "int64[3,1] apart = {0, 2, 3}, int64[3,1] back = {2, 1, 0}, int64[1,5,1] third = {2, 2, 2, 2, 2}, "
    "int64[1,5,2] next = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2}, int64[1,5,1] mixed = {2, 2, 1, 2, 2}"
)


def _rows(body: str, updates: str, data: str = "4, n, 3", dtype: str = "float") -> ir.Model:
    return graph(f"{dtype}[{data}] x, {dtype}[{updates}] u", f"{dtype}[] y", body, constants=_RANGES)


@pytest.mark.parametrize(
    ("body", "data", "updates"),
    [
        ("y = ScatterND (x, ahead, u)", "4, n, 3", "3, n, 3"),
        ("y = ScatterND (x, inner, u)", "5, n, 3", "3, n, 3"),
        ("y = ScatterND (x, ending, u)", "4, n, 3", "2, n, 3"),
        ("y = ScatterND (x, single, u)", "4, n, 3", "1, n, 3"),
        ("y = ScatterElements <axis = 2> (x, third, u)", "1, 5, 3", "1, 5, 1"),
        ("y = ScatterElements <axis = -1> (x, next, u)", "1, 5, 4", "1, 5, 2"),
        (
            "t = Transpose <perm = [2, 0, 1]> (x) v = Transpose <perm = [2, 0, 1]> (u) s = ScatterND (t, inner, v)"
            " y = Transpose <perm = [1, 2, 0]> (s)",
            "n, 3, 4", "n, 3, 3",
        ),
    ],
)  # fmt: skip
def test_neighbouring_rows_are_joined(body: str, data: str, updates: str, tmp_path: Path) -> None:
    source = _rows(body, updates, data)
    found = source.clone()
    rewrite(found, tmp_path)
    assert operators(found) <= {"Concat", "Slice", "Transpose"} and "Concat" in operators(found)
    random = np.random.default_rng(0)
    for n in (1, 2, 5):
        sizes = ([n if d == "n" else int(d) for d in dims.split(", ")] for dims in (data, updates))
        feeds = {name: random.standard_normal(size).astype(np.float32) for name, size in zip("xu", sizes, strict=True)}
        np.testing.assert_array_equal(run(found, feeds)[0], run(source, feeds)[0])


@pytest.mark.parametrize(
    ("body", "data", "updates"),
    [
        ("y = ScatterND (x, apart, u)", "4, n, 3", "3, n, 3"),
        ("y = ScatterND (x, back, u)", "4, n, 3", "3, n, 3"),
        ("y = ScatterND (x, inner, u)", "m, n, 3", "3, n, 3"),
        ("y = ScatterND (x, inner, u)", "3, n, 3", "3, n, 3"),  # outside
        ("y = ScatterND (x, single, u)", "9, n, 3", "1, n, 3"),  # few
        ('y = ScatterND <reduction = "add"> (x, inner, u)', "4, n, 3", "3, n, 3"),
        ("y = ScatterElements <axis = 2> (x, mixed, u)", "1, 5, 3", "1, 5, 1"),
        ("y = ScatterElements <axis = 2> (x, third, u)", "2, 5, 3", "1, 5, 1"),
        ('y = ScatterElements <axis = 2, reduction = "add"> (x, third, u)', "1, 5, 3", "1, 5, 1"),
    ],
)
def test_rows_that_are_apart_or_few_stay(body: str, data: str, updates: str, tmp_path: Path) -> None:
    source = _rows(body, updates, data)
    rewrite(source, tmp_path)
    assert operators(source) & {"ScatterND", "ScatterElements"}
