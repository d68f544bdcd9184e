"""What tensors of dims, indices and masks hold is found out, and what cannot be known is left open."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.passes.shape_subgraphs import SimplifyShapesPass
from onnxopt.graph.rewrite.masks import masks
from onnxopt.graph.rewrite.masks.index_functions import ALWAYS, NEVER, Affine, Choice, Truth, fit, fit_choice
from onnxopt.graph.rewrite.masks.index_values import IndexValues
from onnxopt.graph.shapes.infer import InferShapesPass, infer
from tests.support import graphs

CONSTANTS = (
    "int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] last = {-1}, int64[1] ones = {1}, "
    "int64 axis = {1}, float low = {-1e30}, float none = {0}, int64[1] start = {0}, int64[1] far = {512}, "
    "float unit = {1}, float cut = {-100}, float least = {-inf}"
)
# As transformers writes causal masks.
TRIANGLE = "f = Expand(low, shape) t = Trilu<upper = 1>(f, one) g = Greater(i, j) h = Cast<to = 1>(g)"
DIMS = """
  shape = Shape(x) b1 = Slice(shape, start, ones) n1 = Slice(shape, ones, far) n = Squeeze(n1, first)
  i = Range(zero, n, one) j = Unsqueeze(i, last)
"""


def known(body: str, constants: str = "", inputs: str = "int64[batch, length] x") -> tuple[ir.Model, IndexValues]:
    declared = ", ".join(c for c in (CONSTANTS, constants) if c)
    model = graphs.graph(inputs, "int64[] unused", f"{DIMS} {body} unused = Identity(zero)", constants=declared)
    InferShapesPass()(model)
    return model, IndexValues(model.graph, infer(model))


def dims(body: str, name: str, **more: str) -> list[str]:
    model, _ = known(body, **more)
    shape = graphs.value(model, name).shape
    assert shape is not None
    return [str(d) for d in shape]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s = Concat<axis = 0>(b1, n1, last) y = Reshape(x, s)", ["batch", "length", "1"]),
        ("s = Concat<axis = 0>(last, n1) y = Reshape(x, s)", ["batch", "length"]),
        ("y = Concat<axis = 1>(x, x)", ["batch", "2*length"]),
        ("s = Concat<axis = 0>(b1, n1) y = Expand(zero, s)", ["batch", "length"]),
        ("t = Transpose<perm = [1, 0]>(x) y = MatMul(x, t)", ["batch", "batch"]),
        ("y = Unsqueeze(x, ones)", ["batch", "1", "length"]),
        ("y = Add(x, i)", ["batch", "length"]),
        # a table of 512 rows cut to `length` broadcasts against `length` to `length`, or the model cannot run
        ("r = Range(zero, big, one) c = Slice(r, start, n1, first, ones) y = Add(x, c)", ["batch", "length"]),
    ],
)
def test_dims_follow_the_inputs(body: str, expected: list[str]) -> None:
    assert dims(body, "y", constants="int64 big = {512}") == expected


def test_unlike_dims_stay_unknown() -> None:
    model, _ = known("y = Add(x, z)", inputs="int64[batch, length] x, int64[batch, other] z")
    shape = graphs.value(model, "y").shape
    assert shape is not None
    assert str(shape[0]) == "batch"
    assert str(shape[1]) not in ("length", "other")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Add(i, one)", Affine(1, (1,))),
        ("y = Sub(j, i)", Affine(0, (1, -1))),
        ("y = GreaterOrEqual(j, i)", Truth(Affine(0, (1, -1)))),
        ("y = Greater(j, i)", Truth(Affine(-1, (1, -1)))),
        ("y = LessOrEqual(i, j)", Truth(Affine(0, (1, -1)))),
        ("g = Less(j, i) y = Not(g)", Truth(Affine(0, (1, -1)))),
        ("a = GreaterOrEqual(i, zero) g = LessOrEqual(i, j) y = And(a, g)", Truth(Affine(0, (1, -1)))),
        (
            "c = Add(i, one) d = Sub(c, i) e = Equal(d, one) m = Not(e) k = Cast<to = 7>(m) y = CumSum(k, zero)",
            Affine(0, (0,)),
        ),
        ("k = Sub(i, one) h = Slice(k, start, ones, first, ones) y = Concat<axis = 0>(h, i)", Affine(-1, (1,))),
        ("z = Mul(i, zero) y = GatherElements(z, i)", Affine(0, (0,))),
        ("y = GatherElements(i, i)", None),
        ("p = Unsqueeze(i, last) k = Add(i, one) y = GatherND(k, p)", Affine(1, (1,))),
        ("k = Mul(i, i) y = Identity(k)", None),
        ("h = Slice(i, start, ones, first, ones) y = Concat<axis = 0>(h, i)", None),
        ("y = Equal(j, i)", None),
        ("f = Expand(low, shape) y = Trilu<upper = 1>(f, one)", Choice(Truth(Affine(-1, (-1, 1))), -1e30, 0.0)),
        ("g = LessOrEqual(i, j) y = Where(g, none, low)", Choice(Truth(Affine(0, (1, -1))), 0.0, -1e30)),
        ("f = Expand(low, shape) t = Trilu<upper = 0>(f) y = Equal(t, none)", Truth(Affine(-1, (-1, 1)))),
        ("g = LessOrEqual(i, j) y = Cast<to = 1>(g)", Choice(Truth(Affine(0, (1, -1))), 1.0, 0.0)),
        (f"{TRIANGLE} y = Mul(t, h)", Choice(Truth(Affine(-1, (-1, 1))), -1e30, 0.0)),
        (f"{TRIANGLE} m = Mul(t, h) y = Add(m, unit)", Choice(Truth(Affine(-1, (-1, 1))), -1e30, 1.0)),
        (f"{TRIANGLE} m = Mul(t, h) y = Max(m, cut)", Choice(Truth(Affine(-1, (-1, 1))), -100.0, 0.0)),
        (f"{TRIANGLE} y = Sub(h, h)", Choice(Truth(Affine(-1, (-1, 1))), 0.0, 0.0)),
        (f"{TRIANGLE} a = Add(t, unit) e = Equal(a, none) y = Where(e, low, t)",  # the condition never holds
         Choice(Truth(Affine(-1, (-1, 1))), -1e30, 0.0)),
        (f"{TRIANGLE} o = LessOrEqual(i, j) k = Cast<to = 1>(o) y = Add(t, k)", None),
        (f"{TRIANGLE} v = Expand(least, shape) u = Trilu<upper = 1>(v, zero) y = Mul(u, h)", None),  # -inf * 0 is NaN
        ("y = Transpose(j)", Affine(0, (0, 1))),
        ("u = Unsqueeze(j, zero) y = Transpose<perm = [1, 2, 0]>(u)", Affine(0, (1, 0, 0))),
        # the second limit is in the first
        ("g = Greater(i, j) k = Add(j, one) h = Greater(i, k) y = And(g, h)", Truth(Affine(-2, (-1, 1)))),
    ],
)  # fmt: skip
def test_what_index_arithmetic_gives(body: str, expected: object) -> None:
    model, values = known(body)
    found = values.of(graphs.value(model, "y"))
    if isinstance(expected, Choice):
        assert isinstance(found, Choice)
        assert found.truth == expected.truth
        assert (found.shown, found.hidden) == pytest.approx((expected.shown, expected.hidden))
    else:
        assert found == expected


@pytest.mark.parametrize("length", [1, 2, 5])
def test_constants_are_fitted_in_every_element(length: int) -> None:
    causal = np.tri(length, dtype=np.bool_)[None]
    assert fit(causal) == (ALWAYS if length == 1 else Truth(Affine(0, (0, 1, -1))))
    assert fit(np.ones((2, length), np.bool_)) == ALWAYS
    assert fit(np.zeros((2, length), np.bool_)) == NEVER
    assert fit(3 * np.arange(length)[:, None] + 7) == Affine(7, (3 if length > 1 else 0, 0))
    if length == 5:
        causal[0, 4, 0] = False
        assert fit(causal) == Truth(Affine(0, (0, 1, -1)), (Affine(3, (0, -1, 1)),))
        causal[0, 4, 2] = False
        assert fit(causal) is None
        assert fit(np.array([0, 1, 2, 3, 5])) is None


def test_constant_masks() -> None:
    causal = np.where(np.tri(4, dtype=np.bool_), 0, -np.inf).astype(np.float32)
    assert fit_choice(causal) == Choice(Truth(Affine(0, (1, -1))), 0.0, -np.inf)
    assert fit_choice(np.array([[0.0, -1.0], [0.0, -2.0]])) is None


@pytest.mark.parametrize(
    ("body", "kind", "finite"),
    [
        ("g = LessOrEqual(i, j) y = Where(g, none, low)", "causal", True),
        ("g = Less(j, i) y = Where(g, low, none)", "causal", True),
        ("g = GreaterOrEqual(i, zero) y = Where(g, none, low)", "none", True),
        ("g = LessOrEqual(i, j) y = Where(g, none, weak)", "any", True),
        ("g = GreaterOrEqual(x, zero) y = Where(g, none, low)", "any", True),
        ("g = GreaterOrEqual(x, zero) y = Where(g, none, infinite)", "any", False),
        ("y = Cast<to = 1>(x)", "any", False),
    ],
)
def test_what_an_added_mask_lets_through(body: str, kind: str, finite: bool) -> None:
    model, values = known(body, constants="float weak = {-2}, float infinite = {-inf}")
    mask = masks.additive(graphs.value(model, "y"), values)
    assert (mask.kind, mask.finite) == (kind, finite)


# i is a key, j the query.
_NEAR = "c = LessOrEqual(i, j) e = Sub(j, three) f = Greater(i, e) g = And(c, f) "


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_NEAR + "y = Where(g, none, low)", masks.Mask("local", 0, before=2)),
        (_NEAR + "t = And(g, all) y = Where(t, none, low)", masks.Mask("local", 0, before=2)),
        (
            "d = Sub(j, i) a = Abs(d) g = LessOrEqual(a, three) y = Where(g, none, low)",
            masks.Mask("local", 3, before=3),
        ),
        (
            "t = Transpose<perm = [1, 0]>(j) d = Sub(t, j) a = Abs(d) g = LessOrEqual(a, three) "
            "y = Where(g, none, low)",
            masks.Mask("local", 3, before=3),
        ),
        ("e = Sub(j, three) g = GreaterOrEqual(i, e) y = Where(g, none, low)", masks.Mask("local", None, before=3)),
        (_NEAR + "n2 = Not(g) y = Where(n2, none, low)", masks.Mask("any")),  # what is far away
        (_NEAR + "h = GreaterOrEqual(i, three) k = And(g, h) y = Where(k, none, low)", masks.Mask("any")),
    ],
)
def test_what_a_local_mask_shows(body: str, expected: masks.Mask) -> None:
    model, values = known(body, constants="int64 three = {3}, bool all = {1}")
    assert masks.additive(graphs.value(model, "y"), values) == expected


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 0), (3, 1), (1, 4), (9, 1)])
def test_constant_local_masks(before: int, after: int) -> None:
    apart = np.arange(6)[:, None] - np.arange(6)
    shown = (apart <= before) & (-apart <= after)
    limits = [Affine(after, (1, -1))] + [Affine(before, (-1, 1))] * (before < 5)
    assert fit(shown) == Truth(limits[0], tuple(limits[1:]))
    assert fit(np.broadcast_to(shown, (2, 6, 6))) is not None


@pytest.mark.parametrize(
    "body",
    [
        "u = Unsqueeze(s, first) y = Concat<axis = 0>(u, u)",
        "u = Unsqueeze(s, first) y = Concat<axis = 1>(u, u)",
        "b = Cast<to = 9>(s) y = Cast<to = 7>(b)",
        "g = Gather(s, zero) y = Gather(pairs, one) z = Mul(g, g)",
        "c = Cast<to = 1>(s) y = Mul(c, half)",
        "c = Cast<to = 6>(s) y = Concat<axis = 0>(c, c)",
    ],
)
def test_dims_that_are_numbers_become_constants_of_the_same_shape_and_dtype(body: str) -> None:
    declared = f"{CONSTANTS}, int64[2, 2] pairs = {{1, 2, 3, 4}}, float half = {{0.5}}"
    model, original = (
        graphs.graph("float[3, 4] x", "float[] out", f"s = Shape(x) {body} out = Cast<to = 1>(y)", constants=declared)
        for _ in range(2)
    )
    InferShapesPass()(model)
    assert SimplifyShapesPass()(model).modified
    feeds = {"x": np.zeros((3, 4), np.float32)}
    np.testing.assert_array_equal(graphs.run(model, feeds)[0], graphs.run(original, feeds)[0])
