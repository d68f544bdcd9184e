"""What known positions gather becomes views, slices and rows; what always holds is not asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from onnxscript.rewriter import RewriteRule

from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.gathers import REPEATS, Certain, EveryElement, EveryFlatElement, KnownRows
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, hold, run
from tests.support.refused import reason

ROWS, WIDTH = 6, 4
CONSTANTS = (
    "int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64[1] first = {0}, int64[1] ones = {1}, "
    "int64[1] last = {-1}, int64[2] outer = {0, 1}, int64[3] in_front = {0, 1, 2}, int64[3] behind = {1, 2, 3}, "
    "int64[1] twos = {2}, int64[1] sevens = {7}, int64[1,6] upwards = {0, 1, 2, 3, 4, 5}, "
    "int64[1,6] zeros = {0, 0, 0, 0, 0, 0}"
)
SIZES = """
    shape = Shape (mask)
    b1 = Shape <start = 0, end = 1> (mask)
    n1 = Shape <start = 1, end = 2> (mask)
    b = Squeeze (b1)
    n = Squeeze (n1)
    i = Range (zero, b, one)
    j = Range (zero, n, one)
"""
POSITIONS = """
    bs = Unsqueeze (i, behind)
    ns = Unsqueeze (j, in_front)
    full = Concat <axis = 0> (b1, ones, ones, n1)
    be = Expand (bs, full)
    ne = Expand (ns, full)
    bl = Unsqueeze (be, last)
    nl = Unsqueeze (ne, last)
"""
MASKED = POSITIONS + "where = Concat <axis = -1> (bl, nl) y = GatherND (mask, where)"


def model(body: str, out: str = "float[] y") -> ir.Model:
    """A model of mask [batch, length] and x [batch, length, WIDTH], with a table of ROWS rows."""
    inputs = f"float[batch, length] mask, float[batch, length, {WIDTH}] x, float[{ROWS}, {WIDTH}] table"
    made = graph(inputs, out, SIZES + body, constants=CONSTANTS)
    hold(made, {"table": np.random.default_rng(0).standard_normal((ROWS, WIDTH))}, np.float32)
    return made


def rewritten(source: ir.Model, folder: Path) -> list[str]:
    """The operators that are left after the rewrite, whose results are the same at several sizes."""
    found = source.clone()
    rewrite(found, folder)
    for batch, length in [(2, 3), (1, 1), (3, ROWS)]:
        random = np.random.default_rng(batch)
        shapes = {"mask": (batch, length), "x": (batch, length, WIDTH)}
        feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        np.testing.assert_array_equal(run(found, feeds)[0], run(source, feeds)[0])
        (one,), (other,) = (ReferenceEvaluator(ir.to_proto(m)).run(None, feeds) for m in (found, source))
        np.testing.assert_array_equal(one, other)
    return [node.op_type for node in found.graph if node.op_type not in ("Shape", "Identity")]


def refused(source: ir.Model, rule: type, *more: object, name: str = "y") -> str:
    values = IndexValues(source.graph, infer(source))
    made: RewriteRule = rule.rule(values, *more)  # type: ignore[attr-defined]
    return reason(source, name, made)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (MASKED, ["Unsqueeze"]),
        # rows of x: the last dim is not counted
        (MASKED.replace("GatherND (mask", "GatherND (x"), ["Unsqueeze"]),
        # every element of one axis alone
        ("where = Unsqueeze (i, last) y = GatherND (mask, where)", []),
        # a reader broadcasts
        (
            POSITIONS.replace("(b1, ones, ones, n1)", "(b1, ones, n1, n1)")
            + "where = Concat <axis = -1> (bl, nl) g = GatherND (mask, where) o = Unsqueeze (mask, ones) "
            "t = Unsqueeze (mask, last) p = Mul (o, t) q = Unsqueeze (p, ones) y = Add (g, q)",
            ["Unsqueeze", "Unsqueeze", "Mul", "Unsqueeze", "Unsqueeze", "Add"],
        ),
    ],
    ids=["mask", "rows", "one axis", "broadcast"],
)  # fmt: skip
def test_every_element_in_order_is_a_view(body: str, expected: list[str], tmp_path: Path) -> None:
    assert sorted(rewritten(model(body), tmp_path)) == sorted(expected)


@pytest.mark.parametrize("batch", [1, 2])
def test_constant_positions_are_read(batch: int, tmp_path: Path) -> None:
    counted = np.stack(np.meshgrid(np.arange(batch), [0], [0], np.arange(3), indexing="ij"), axis=-1)[..., [0, 3]]
    source = graph(
        f"float[{batch}, 3] mask, int64[{batch}, 1, 1, 3, 2] where",
        f"float[{batch}, 1, 1, 3] y",
        "y = GatherND (mask, where)",
    )
    hold(source, {"where": counted}, np.int64)
    found = source.clone()
    rewrite(found, tmp_path)
    assert [node.op_type for node in found.graph] == ["Unsqueeze"]
    mask = np.random.default_rng(0).standard_normal((batch, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(found, {"mask": mask})[0], run(source, {"mask": mask})[0])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("w = Unsqueeze (j, last) y = GatherND <batch_dims = 1> (x, w)", "GatherND has batch dims"),
        ("w = Cast <to = 7> (x) y = GatherND (mask, w)", "the positions, or the dims of the data, are not known"),
        # the length counts the batch, backwards, and from 1 on
        ("w = Unsqueeze (j, last) y = GatherND (x, w)", "the positions do not count every element in order"),
        ("m = Sub (b, one) r = Sub (m, i) w = Unsqueeze (r, last) y = GatherND (x, w)",
         "the positions do not count every element in order"),
        ("k = Sub (i, one) w = Unsqueeze (k, last) y = GatherND (x, w)",
         "the positions do not count every element in order"),
        # transposed
        (POSITIONS.replace("Unsqueeze (i, behind)", "Unsqueeze (i, in_front)")
         .replace("Unsqueeze (j, in_front)", "Unsqueeze (j, behind)")
         .replace("(b1, ones, ones, n1)", "(n1, ones, ones, b1)")
         + "w = Concat <axis = -1> (bl, nl) y = GatherND (mask, w)",
         "the positions do not count every element in order"),
        # repeated, for the model's output
        (MASKED.replace("(b1, ones, ones, n1)", "(b1, n1, ones, n1)"), REPEATS),
    ],
    ids=["batch dims", "unknown", "another length", "backwards", "before the first", "transposed", "repeated"],
)  # fmt: skip
def test_other_positions_are_gathered(body: str, why: str) -> None:
    assert refused(model(body), EveryElement) == why


# transformers 5 through TorchScript: mask[b, k] as the element b * length + k of the mask as one vector.
FLAT = "bs = Unsqueeze (i, behind) ns = Unsqueeze (j, in_front) step = Mul (bs, n) where = Add (step, ns)"
BACK = "full = Concat <axis = 0> (b1, ones, ones, n1) v = Reshape (g, last) y = Reshape (v, full)"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{FLAT} f = Flatten <axis = 2> (mask) g = Gather (f, where) {BACK}", ["Unsqueeze"]),
        (f"{FLAT} f = Reshape (mask, last) y = Gather (f, where)", ["Unsqueeze"]),
        (f"{FLAT} f = Flatten <axis = 2> (x) y = Gather (f, where)", ["Unsqueeze"]),
        (f"{FLAT} f = Flatten <axis = -1> (x) g = Gather <axis = -2> (f, where) "
         "t = Unsqueeze (x, in_front) o = Squeeze (t, first) y = Add (g, o)",
         ["Unsqueeze", "Unsqueeze", "Squeeze", "Add"]),
    ],
    ids=["mask", "vector", "rows", "broadcast"],
)  # fmt: skip
def test_every_element_of_merged_dims_is_a_view(body: str, expected: list[str], tmp_path: Path) -> None:
    assert sorted(rewritten(model(body), tmp_path)) == sorted(expected)


@pytest.mark.parametrize("batch", [1, 2])
def test_every_element_of_merged_dims_of_fixed_sizes(batch: int, tmp_path: Path) -> None:
    source = graph(
        f"float[{batch}, 3] mask, int64[{batch}, 1, 1, 3] where",
        f"float[{batch}, 1, 1, 3] y",
        "f = Flatten <axis = 2> (mask) g = Gather (f, where) y = Squeeze (g, last)",
        constants="int64[1] last = {-1}",
    )
    hold(source, {"where": np.arange(batch * 3).reshape(batch, 1, 1, 3)}, np.int64)
    found = source.clone()
    rewrite(found, tmp_path)
    assert "Gather" not in {node.op_type for node in found.graph}
    mask = np.random.default_rng(0).standard_normal((batch, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(found, {"mask": mask})[0], run(source, {"mask": mask})[0])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        # steps of one too many, of the batch, and positions from 1 on
        (FLAT.replace("Mul (bs, n)", "Mul (bs, m)").replace("bs =", "m = Add (n, one) bs =")
         + "f = Reshape (mask, last) y = Gather (f, where)", "the positions do not count every element in order"),
        (FLAT.replace("Mul (bs, n)", "Mul (bs, b)") + "f = Reshape (mask, last) y = Gather (f, where)",
         "the positions do not count every element in order"),
        (FLAT + "u = Add (where, one) f = Reshape (mask, last) y = Gather (f, u)",
         "the positions, or the dims of the data, are not known"),
        # the length first
        (FLAT.replace("(i, behind)", "(i, in_front)").replace("(j, in_front)", "(j, behind)")
         + "f = Reshape (mask, last) y = Gather (f, where)", "the positions do not count every element in order"),
        (FLAT + "f = Flatten <axis = 0> (mask) y = Gather <axis = 1> (f, where)", "Gather does not read rows"),
        (FLAT + "f = Flatten <axis = 1> (x) y = Gather (f, where)", "the first dims of the data are not merged"),
        ("k = Mul (n, j) f = Reshape (mask, last) y = Gather (f, k)",
         "the positions do not count every element in order"),
    ],
    ids=["too long", "of the batch", "from 1", "transposed", "columns", "not merged", "one axis"],
)  # fmt: skip
def test_other_positions_of_merged_dims_are_gathered(body: str, why: str) -> None:
    assert refused(model(body), EveryFlatElement) == why


ZEROS = "z = GatherElements <axis = 1> (zeros, upwards) r = Slice (z, first, n1, ones) t = Expand (r, shape)"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{ZEROS} g = Gather (table, t) y = Add (x, g)", ["Add"]),
        (f"{ZEROS} u = Sub (t, two) g = Gather (table, u) y = Add (g, x)", ["Add"]),
        ("g = Gather (table, j) y = Add (x, g)", ["Slice", "Add"]),
        (
            "u = Unsqueeze (j, first) e = Expand (u, shape) g = Gather (table, e) y = Mul (x, g)",
            ["Slice", "Unsqueeze", "Mul"],
        ),
        ("r = Slice (upwards, first, n1, ones) g = Gather (table, r) y = Add (x, g)", ["Slice", "Unsqueeze", "Add"]),
        ("r = Slice (upwards, first, n1, ones) g = Gather (table, r) y = Identity (g)", ["Slice", "Unsqueeze"]),
        (f"{ZEROS} g = Gather (table, t) h = Gather (table, j) a = Add (g, h) y = Add (x, a)", ["Slice", "Add", "Add"]),
    ],
    ids=["one row", "from the end", "range", "expanded", "slice", "an output", "both"],
)
def test_known_rows_are_not_gathered(body: str, expected: list[str], tmp_path: Path) -> None:
    assert sorted(rewritten(model(body), tmp_path)) == sorted(expected)


def test_rows_begin_behind_the_first(tmp_path: Path) -> None:
    source = model("k = Add (j, two) g = Gather (table, k) y = Add (x, g)")
    found = source.clone()
    rewrite(found, tmp_path)
    assert sorted(n.op_type for n in found.graph) == ["Add", "Add", "Shape", "Slice"]
    for length in (1, ROWS - 2):
        x = np.random.default_rng(length).standard_normal((2, length, WIDTH)).astype(np.float32)
        feeds = {"x": x, "mask": x[..., 0]}
        np.testing.assert_array_equal(run(found, feeds)[0], run(source, feeds)[0])


def test_more_positions_than_rows_stay_an_error(tmp_path: Path) -> None:
    found = model("g = Gather (table, j) y = Add (x, g)")
    rewrite(found, tmp_path)
    x = np.zeros((2, ROWS + 1, WIDTH), np.float32)
    with pytest.raises(Exception, match="Add"):
        run(found, {"x": x, "mask": x[..., 0]})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = Gather (x, j)", "the table is not a constant of floats"),
        ("g = Gather <axis = 1> (table, j) y = Identity (g)", "Gather does not read rows"),
        ("k = Cast <to = 7> (mask) g = Gather (table, k) y = Add (x, g)", "the rows are not known"),
        (f"{ZEROS} u = Sub (t, sevens) g = Gather (table, u) y = Add (x, g)", "the table has no row -7"),
        ("k = Mul (j, two) g = Gather (table, k) y = Add (x, g)", "the rows do not follow each other along one axis"),
        ("k = Sub (j, one) g = Gather (table, k) y = Add (x, g)", "the rows do not follow each other along one axis"),
        ("m = Add (n, one) k = Range (zero, m, one) g = Gather (table, k) y = Identity (g)",
         "the number of rows is no dim of an input, or exceeds the table"),
        ("g = Gather (table, j) y = Identity (g)", REPEATS),
        (f"{ZEROS} g = Gather (table, t) y = Softmax <axis = 1> (g)", REPEATS),
        (f"{ZEROS} g = Gather (table, t) y = Neg (g)", REPEATS),
    ],
    ids=["no table", "columns", "unknown", "no such row", "every other row", "row -1", "no dim of an input",
         "may exceed", "softmax", "no other operand"],
)  # fmt: skip
def test_other_rows_are_gathered(body: str, why: str) -> None:
    source = model(body)
    name = "y" if body.startswith("y") else "g"
    assert refused(source, KnownRows, source.graph, name=name) == why


HOLDS = "jl = Unsqueeze (j, last) c = GreaterOrEqual (jl, first) l = Cast <to = 9> (mask)"


@pytest.mark.parametrize(
    "body",
    [
        f"{HOLDS} cl = Squeeze (c, last) h = And (l, cl) y = Cast <to = 1> (h)",
        f"{HOLDS} ll = Unsqueeze (l, ones) h = And (c, ll) f = Cast <to = 1> (h) xx = MatMul (x, xt) y = Add (xx, f)",
    ],
    ids=["same shape", "broadcast"],
)
def test_a_condition_that_always_holds_goes(body: str, tmp_path: Path) -> None:
    turned = "xt = Transpose <perm = [0, 2, 1]> (x) "
    found = rewritten(model(turned + body), tmp_path)
    assert not {"And", "GreaterOrEqual", "Range"} & set(found)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (f"{HOLDS} d = Greater (jl, first) ll = Unsqueeze (l, ones) y = And (ll, d)", "the condition may not hold"),
        (f"{HOLDS} ll = Unsqueeze (l, ones) y = And (ll, c)", REPEATS),
    ],
    ids=["may not hold", "repeated"],
)
def test_other_conditions_stay(body: str, why: str) -> None:
    assert refused(model(body, "bool[] y"), Certain, 1) == why
