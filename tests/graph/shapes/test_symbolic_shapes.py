"""Symbolic shape inference, held against what ONNX Runtime makes of every value at several sizes."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import models
from cases.models import fuse
from onnxopt.fusion import eligibility
from onnxopt.graph import input_uses, normalize, read, rewrite, signature
from onnxopt.graph.shapes import infer
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.graph.shapes.dims import broadcasts_exactly, minimum, parse_dim
from onnxopt.verification.sampling import samples
from tests.support import checked_dims, real_models
from tests.support.graphs import graph, run, value

DYNAMIC = [n for n in models.names("exported") if "tiny" in n and n.endswith("dyn") and "fp16" not in n]


@pytest.mark.models
@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize("normalized", [False, True])
def test_every_dim_of_an_exported_model_is_right_at_several_sizes(name: str, normalized: bool) -> None:
    model = read.load(models.path(name)).model
    if normalized:
        normalize.normalize(model)
    inputs, uses = signature.inputs_of(model), input_uses.uses_of_inputs(model)
    for batch, sequence in ((1, 1), (2, 5), (3, 16), (5, 1), (1, 9))[: 5 if normalized else 2]:
        sizes = {s: batch if s == "batch" else sequence for s in signature.symbols(inputs)}
        assert checked_dims.check(model, samples.draw(inputs, sizes, seed=0, uses=uses)).compared > 200


# Trained models that compute dims from what their tensors hold, or whose loops and branches do: the dims left unknown.
# silero_vad_v6 is one If, whose branches are not compared.
UNKNOWN = {
    "logreg_iris": 2, "ppocr_det_v6": 501, "ppocr_rec_v6": 304, "ppocr_cls_v2": 2, "silero_vad_v6": 5,
    "silero_vad_16k_op15": 75, "silero_vad_half_fp16": 72, "aecmos_16k_a": 21, "aecmos_16k_b": 15, "aecmos_48k": 15,
    "plcmos_v2": 15, "tashkeel_bilstm_int8": 111, "tashkeel_rawi_int8": 48, "tashkeel_rawi_ensemble_int8": 104,
    "tashkeel_rawi_v2_int8": 48, "tashkeel_rawi_v3_int8": 58, "piper_vits_joe": 1769,
}  # fmt: skip
LONG = ("piper_vits_joe",)  # to run, and to fetch


@pytest.mark.models
@pytest.mark.parametrize("name", real_models.sampled(models.names("trained", runnable=True), LONG))
def test_every_dim_of_a_trained_model_is_right(name: str) -> None:
    model = read.load(real_models.path(name)).model
    dims = checked_dims.check(normalize.normalize(model).model, models.feeds(name))
    assert dims.unknown <= UNKNOWN.get(name, 0)
    assert dims.compared > 0 or name == "silero_vad_v6"


@pytest.mark.models
@pytest.mark.parametrize("name", DYNAMIC)
def test_no_fusible_node_of_an_exported_model_has_an_unknown_operand(name: str) -> None:
    model = normalize.normalize(read.load(models.path(name)).model).model
    shapes = shape_inference.infer(model)
    host = eligibility.host_values(model.graphs(), shapes)
    fusible = [n for n in model.graph if eligibility.is_elementwise(n)]
    fusible = [n for n in fusible if eligibility.why_not(n, model.opset_imports, shapes, host) is None]
    assert len(fusible) > 20
    for node in fusible:
        for v in (*node.inputs, *node.outputs):
            dims = None if v is None else shapes.dims(v)
            assert v is None or (dims is not None and not any(str(dim).startswith(("unk__", "None")) for dim in dims))


@pytest.mark.models
@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_models_fuse_as_static_ones_do(name: str, tmp_path: Path) -> None:
    """All but joining along a symbolic dim, as a cache of keys grows: the length of the result is a sum, no extent.

    Whether a depthwise convolution takes in what is in front of it goes by the size of its input too, and whether our
    kernel runs the attention of one token by the number of keys; a product ends with the SiLU that it did not take.
    Class tokens of a dynamic batch go into the positions, so that a Pad is left of the Concat
    (rewrite/products/prepended_rows.py).
    """
    by_size = ("depthwise", "squeeze_excite", *(["flash_attention"] if "decode" in name else []))
    dynamic, static = (_regions(n, tmp_path) for n in (name, name.removesuffix("_dyn")))
    missing = {r: count for r, count in (static - dynamic).items() if r[0] not in by_size}
    missing = {r: count for r, count in missing.items() if (*r, "Sigmoid", "Mul") not in dynamic}
    assert [r for r in missing if "Concat" not in r] == []
    padded = {tuple(o.replace("Concat", "Pad") for o in r) for r in missing}
    assert "decode" in name or padded <= dynamic.keys()


def _regions(name: str, folder: Path) -> collections.Counter[tuple[str, ...]]:
    """The operators of each region that the pipeline fuses, its kind first."""
    model = normalize.normalize(read.load(models.path(name)).model).model
    rewrite.rewrite(model, folder, gpu=True)
    regions = [(r.kind.name, *(n.op_type for n in r.nodes)) for r in fuse(model).regions]
    # Sizes that are computed may take one Reshape more before an attention, where it costs nothing.
    views = {"flash_attention": {"Reshape"}}
    return collections.Counter(tuple(op for op in r if op not in views.get(r[0], ())) for r in regions)


_SLICED = "int64[1] o = {1}, int64[1] z = {0}, "
# Pads of the last of three dims, n, to a multiple of four, as torch's exporter writes them: the last dim first.
TO_FOURS = (
    "r = Mod(n, four) l = Sub(four, r) m4 = Mod(l, four) p0 = Concat<axis = 0>(z, m4, z, z, z, z) "
    "p1 = Reshape(p0, pairs) p2 = Slice(p1, last, first, z, last) p3 = Transpose<perm = [1, 0]>(p2) "
    "p = Reshape(p3, last)"
)
FOURS = (
    "int64[1] four = {4}, int64[1] z = {0}, int64[2] pairs = {-1, 2}, int64[1] last = {-1}, "
    "int64[1] first = {-9223372036854775807}, int64[2] flat = {-1, 4}"
)


@pytest.mark.parametrize(
    ("inputs", "body", "constants", "dims"),
    [
        ("float[N, 8] x, float[1, 8] c", "y = Add(x, c)", "", ("N", 8)),
        ("float[N, M] x", "s = Shape(x)  y = Reshape(x, s)", "", ("N", "M")),
        ("float[N, M, 6] x", "y = Reshape(x, c)", "int64[3] c = {0, -1, 3}", ("N", "2*M", 3)),
        ("float[N, M, 6] x", "y = Reshape(x, c)", "int64[2] c = {-1, 6}", ("M*N", 6)),
        ("float[N, M, 6] x", "y = Flatten<axis=2>(x)", "", ("M*N", 6)),
        ("float[N, M, 6] x", "y = Flatten<axis=-2>(x)", "", ("N", "6*M")),
        ("float[N, M] x", "y = Flatten<axis=2>(x)", "", ("M*N", 1)),
        ("float[N, M] x", "s = Size(x)  r = Unsqueeze(s, z)  y = Reshape(x, r)", "int64[1] z = {0}", ("M*N",)),
        ("float[N, M, 8] x", "a = Slice(x, z, e, o) s = Shape<end = 2>(a) c = Concat<axis=0>(s, d) y = Reshape(a, c)",
         _SLICED + "int64[1] e = {-2}, int64[2] d = {-1, 4}", ("N", "Max(0, M - 2)", 2, 4)),  # 0 is copied or stays
        ("float[N, 3, M] x, float[4, 3, 10] w, float[5, 4, 3] u", "a = Conv<strides=[5]>(x, w) "
         "y = Conv<strides=[2]>(a, u)", "", ("N", 5, "floor(M/10) - 1")),
        ("float[N, 3, M] x, float[4, 3, 3] w", "a = Conv<strides=[2]>(x, w) s = Shape<start = 2>(a) "
         "c = Concat<axis=0>(d, s) y = Reshape(a, c)", "int64[1] d = {-1}", ("4*N", "floor(M/2 + 1/2) - 1")),
        ("float[N, 3, M] x, float[4, 3, 3] w", "a = Conv<strides=[2]>(x, w) n = Shape<start = 2>(a) m = Squeeze(n) "
         "r = Range(i, m, j) y = Expand(r, n)", "int64 i = {0}, int64 j = {1}", ("floor(M/2 + 1/2) - 1",)),
        ("float[N, M] x", "y = Slice(x, z, e, o)", _SLICED + "int64[1] e = {4}", ("N", "Min(4, M)")),
        ("float[N, M] x", "y = Slice(x, z, e, o)", _SLICED + "int64[1] e = {-2}", ("N", "Max(0, M - 2)")),
        ("float[N, M] x", "y = Slice(x, z, e, o, t)", _SLICED + "int64[1] e = {9999999999}, int64[1] t = {2}",
         ("N", "floor(M/2 + 1/2)")),
        ("float[N, M] x", "y = Concat<axis=1>(x, x)", "", ("N", "2*M")),
        ("float[N, M] x, float[N, M] c", "y = Where(b, x, c)", "bool[1] b = {1}", ("N", "M")),
        ("float[N, 3, H, H] x, float[4, 3, 3, 3] w", "y = Conv<pads=[1,1,1,1]>(x, w)", "", ("N", 4, "H", "H")),
        ("float[N, 3, H, 9] x", "y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)", "",
         ("N", 3, "floor(H/2 + 1/2)", 5)),
        ("float[N, 3, H, W] x", "y = MaxPool<kernel_shape=[5,5], pads=[2,2,2,2], ceil_mode=1>(x)", "",
         ("N", 3, "H", "W")),
        ('float[N, 3, H, W] x', 'y = AveragePool<kernel_shape=[2,2], strides=[2,2], auto_pad="SAME_UPPER">(x)', "",
         ("N", 3, "floor(H/2 + 1/2)", "floor(W/2 + 1/2)")),
        ("float[N, 3, H, W] x, float[4, 3, 3, 3] w", 'y = Conv<auto_pad="VALID", strides=[2,1]>(x, w)', "",
         ("N", 4, "floor(H/2 + 1/2) - 1", "W - 2")),
        ("float[N, 6, H, W] x, float[6, 4, 2, 2] w", "y = ConvTranspose<strides=[2,2], group=2>(x, w)", "",
         ("N", 8, "2*H", "2*W")),
        ("float[N, 3, H, W] x", "y = Pad(x, c)", "int64[8] c = {0, 0, 1, 2, 0, 0, 1, 0}", ("N", 3, "H + 2", "W + 2")),
        ("float[N, 8, H, W] x", "y = DepthToSpace<blocksize=2>(x)", "", ("N", 2, "2*H", "2*W")),
        ("float[N, 3, H, W] x", "s = Shape(x)  t = Mul(s, c)  y = Resize(x, , , t)", "int64[4] c = {1, 1, 2, 4}",
         ("N", 3, "2*H", "4*W")),
        ("float[N, M] x", "s = Size(x)  f = Cast<to=1>(s)  d = Div(f, c)  e = Ceil(d)  i = Cast<to=7>(e)  "
         "r = Reshape(i, z)  y = ConstantOfShape(r)", "float c = {3}, int64[1] z = {1}", ("ceiling(M*N/3)",)),
        ("float[N, 3, H] x", f"n = Shape<start = 2>(x) {TO_FOURS} y = Pad(x, p)", FOURS,
         ("N", 3, "4*floor(H/4 + 3/4)")),
        ("float[N, 3, H] x, float[3, 3, 4] w", f"a = Conv<strides=[4]>(x, w) n = Shape<start = 2>(a) {TO_FOURS} "
         "b = Pad(a, p) m = Shape<start = 2>(b) k = Div(m, four) s = Shape<end = 2>(x) "
         "d = Concat<axis = 0>(s, k, four) y = Reshape(b, d)", FOURS, ("N", 3, "floor(H/16 + 3/4)", 4)),
        ("float[N, 3, H] x, float[4, 3, 4] w", "a = Conv<strides=[4]>(x, w) t = Transpose<perm = [0, 2, 1]>(a) "
         "r = Reshape(t, flat) n = Shape<end = 1>(r) h = Shape<start = 2>(a) k = Div(n, h) "
         "d = Concat<axis = 0>(k, h, four) y = Reshape(r, d)", FOURS, ("N", "floor(H/4)", 4)),
        ("float[N, M] x", "a = Slice(x, o, e, o) b = Slice(x, z, o, o) y = Concat<axis = 1>(a, b)",
         _SLICED + "int64[1] e = {9999999999}", ("N", "M")),
        ("float[N, M] x", "a = Slice(x, c, e, o) b = Slice(x, z, c, o) y = Concat<axis = 1>(a, b)",
         _SLICED + "int64[1] e = {9999999999}, int64[1] c = {7}", ("N", "M")),
        ("float[N, M] x", "a = Slice(x, c, e, o) b = Slice(x, z, c, o) y = Concat<axis = 1>(a, b)",
         _SLICED + "int64[1] e = {9999999999}, int64[1] c = {-7}", ("N", "M")),
        ("float[N, M] x", "a = Slice(x, c, e, o) b = Slice(x, z, d, o) y = Concat<axis = 1>(a, b)",
         _SLICED + "int64[1] e = {9999999999}, int64[1] c = {-7}, int64[1] d = {-6}",
         ("N", "Max(0, M - 6) + Min(7, M)")),
        ("float[B, S, 4] x, float[B, 4, S] w", "y = MatMul(x, w)", "", ("B", "S", "S")),
        ("float[N] x, float[M] c", "y = Add(x, c)", "", ("Max(M, N)",)),
    ],
)  # fmt: skip
def test_dims(inputs: str, body: str, constants: str, dims: tuple[int | str, ...]) -> None:
    model = graph(inputs, "float[] y", body, constants=constants)
    assert shape_inference.infer(model).dims(value(model, "y")) == dims


@pytest.mark.parametrize(
    ("inputs", "body", "why"),
    [
        ("float[N, M] x, int64[2] s", "y = Reshape(x, s)", "the shape comes from outside"),
        ("float[N, M] x, int64[2] s", "y = Expand(x, s)", "the shape comes from outside"),
        ("float[N, M] x, int64[1] e", "y = Slice(x, e, e)", "the bounds come from outside"),
        ("float[N, M] x", "k = NonZero(x)  y = Transpose(k)", "how many are not zero is in the data"),
        (
            "float[N, 3, H, 9] x",
            "y = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)",
            "a last window may go",
        ),
        ("float[N, 3, H, 9] x, int64[8] p", "y = Pad(x, p)", "the pads come from outside"),
        (
            "float[N] x",
            "s = Shape(x)  f = Cast<to=1>(s)  q = Sqrt(f)  i = Cast<to=7>(q)  y = ConstantOfShape(i)",
            "what is rounded is not known",
        ),
    ],
)
def test_what_cannot_be_known_is_not_guessed(inputs: str, body: str, why: str) -> None:
    model = graph(inputs, "float[] y", body)
    dims = shape_inference.infer(model).dims(value(model, "y"))
    assert dims is not None, why
    assert any(str(dim).startswith("unk__") for dim in dims), why


def test_a_loop_may_change_what_it_carries() -> None:
    model = graph(
        "float[N] x, int64 k", "float[] y",
        "y = Loop(k, , x) <body = b (int64 i, bool c, float[] v) => (bool c2, float[] w) "
        "{ c2 = Identity(c)  w = Concat<axis=0>(v, v) }>",
    )  # fmt: skip
    dims = shape_inference.infer(model).dims(value(model, "y"))
    assert dims is None or str(dims[0]).startswith("unk__")


def test_what_a_loop_carries_keeps_the_dims_that_no_step_changes() -> None:
    model = graph(
        "float[N, 8] x, float[P, 8] p, int64 k, float[8, 8] w", "float[] y, float[] z, float[] u, int64[] s",
        "y, z, u, s = Loop(k, , x, p, p) <body = b (int64 i, bool c, float[] v, float[] q, float[] r) => "
        "(bool c2, float[] a, float[] d, float[] f, int64[] g) { c2 = Identity(c)  m = MatMul(v, w)  a = Add(m, x)  "
        "d = Concat<axis=0>(q, a)  f = Unsqueeze(r, k)  g = Shape(q)  "
        "e = ConstantOfShape(g)}>",
    )  # fmt: skip
    shapes = shape_inference.infer(model)
    assert shapes.dims(value(model, "y")) == ("N", 8)
    assert shapes.dims(value(model, "m")) == ("N", 8)
    inside = shapes.dims(value(model, "d"))
    assert inside is not None
    assert inside[1] == 8
    assert "P" not in str(inside[0])
    found = shapes.dims(model.graph.outputs[1])
    assert found is not None
    assert str(found[0]).startswith("unk__")
    assert shapes.dims(value(model, "f")) is None
    filled = shapes.dims(value(model, "e"))
    assert filled is not None
    assert "P" not in str(filled[0])  # what followed from the first assumption is forgotten


def test_a_scan_reads_elements_of_its_operands() -> None:
    model = graph(
        "float[N, T, 8] x, float[N, 8] h", "float[] y",
        "y, z = Scan<num_scan_inputs = 1, scan_input_axes = [1], body = b (float[] v, float[] e) => "
        "(float[] a, float[] d) { a = Add(v, e) d = Identity(a) }>(h, x)",
    )  # fmt: skip
    assert shape_inference.infer(model).dims(value(model, "a")) == ("N", 8)


def test_both_branches_must_agree() -> None:
    model = graph(
        "float[N, 4] x, bool b", "float[] y, float[] z",
        "y, z = If (b) <then_branch = t () => (float[] p, float[] r) { p = Tanh(x)  r = Tanh(x) }, "
        "else_branch = e () => (float[] q, float[] s) { q = Exp(x)  s = Concat<axis=0>(x, x) }>",
    )  # fmt: skip
    shapes = shape_inference.infer(model)
    assert shapes.dims(value(model, "y")) == ("N", 4)
    (first, second), node = shapes.dims(model.graph.outputs[1]), "z"
    assert second == 4, node
    assert str(first).startswith("unk__"), node


def test_equal_convolutions_of_unknown_size_have_one_size() -> None:
    model = graph(
        "float[N, 3, H, H] x, float[3, 3, 3, 3] w", "float[] y",
        'a = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)  b = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w) '
        "y = Add(a, b)",
    )  # fmt: skip
    shapes = shape_inference.infer(model)
    assert shapes.same(value(model, "a"), value(model, "b"))


def test_symbols_of_a_default_are_not_taken_for_its_value() -> None:
    model = graph("float[N] x, int64[1] s = {3}", "float[] y", "y = Expand(x, s)")
    dims = shape_inference.infer(model).dims(value(model, "y"))
    assert dims is not None
    assert str(dims[0]).startswith("unk__")


_STEPS: Sequence[str] = (
    "Reshape(x, {shape})", "Transpose(x)", "Slice(x, {two}, {big}, {zero})", "Slice(x, {zero}, {minus}, {zero})",
    "Concat<axis=0>(x, x)", "Unsqueeze(x, {zero})", "Tile(x, {repeats})", "Slice(x, {one}, {big}, {zero}, {two})",
    "Slice(x, {minus}, {minimum}, {zero}, {minus})", "ReduceMean<keepdims=1>(x, {zero})",
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(_STEPS), min_size=1, max_size=5), st.integers(1, 5), st.integers(1, 6))
def test_random_chains(steps: list[str], n: int, m: int) -> None:
    names = {"zero": "zero", "one": "one", "two": "two", "big": "big", "minus": "minus", "minimum": "minimum"}
    lines, last, rank = [], "x", 2
    for k, step in enumerate(steps):
        if step.startswith("Tile"):
            lines.append(f"q{k} = Shape(v{k - 1})" if k else f"q{k} = Shape(x)")
            lines.append(f"r{k} = Clip(q{k}, lo, hi)")
        if step.startswith("Reshape"):
            lines.append(
                f"q{k} = Shape({last})  h{k} = Slice(q{k}, zero, one, zero)  r{k} = Concat<axis=0>(h{k}, minus)"
            )
        line = step.replace("(x", f"({last}").replace(", x)", f", {last})")
        lines.append(f"v{k} = " + line.format(shape=f"r{k}", repeats=f"r{k}", **names))
        last = f"v{k}"
        rank += step.startswith("Unsqueeze")
    constants = ", ".join(
        f"int64[1] {k} = {{{v}}}"
        for k, v in {"zero": 0, "one": 1, "two": 2, "big": 2**62, "minus": -1, "minimum": -(2**62)}.items()
    )
    constants += ", int64 lo = {1}, int64 hi = {2}"
    model = graph("float[N, M] x", "float[] y", "  ".join([*lines, f"y = Identity({last})"]), constants=constants)
    feeds = {"x": np.zeros((n, m), np.float32)}
    try:
        checked_dims.every_value(model, feeds)
    except Exception:  # noqa: BLE001 - the runtime refuses this chain, so nothing is to be held against it
        return
    checked_dims.check(model, feeds)


def normalized_graphs(inputs: str, outputs: str, body: str, constants: str = "") -> tuple[ir.Model, ir.Model]:
    """The model as written, and normalized."""
    before, after = (graph(inputs, outputs, body, constants=constants) for _ in range(2))
    return before, normalize.normalize(after).model


def operators_of(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_numbers_known_of_shapes_become_constants() -> None:
    body = "s = Shape(x)  d = Gather(s, k)  f = Cast<to=1>(d)  q = Sqrt(f)  y = Div(x, q)"
    before, after = normalized_graphs("float[N, 16] x", "float[] y", body, "int64 k = {1}")
    assert operators_of(after) == ["Mul"]  # by 1/4, which is exact
    feeds = {"x": np.ones((3, 16), np.float32)}
    np.testing.assert_array_equal(run(after, feeds)[0], run(before, feeds)[0])


def test_a_dim_that_broadcasts_to_another_is_1_or_as_long() -> None:
    size, other = parse_dim("n"), parse_dim("m")
    assert all(broadcasts_exactly(dim, size) for dim in (1, size, minimum(512, size)))
    assert not any(broadcasts_exactly(dim, size) for dim in (2, other, minimum(512, other), size + 1))


def test_values_that_joined_the_graph_after_inference_have_the_dims_that_they_say() -> None:
    model = graph("float[N, total] x", "float[] y", "y = Exp(x)")
    model.graph.inputs[0].shape = ir.Shape(["N", "past + new"])
    known = infer.infer(model)
    joined = ir.Value(name="joined", shape=ir.Shape(["N", "past + new", 3, None]))
    first, second, third, fourth = known.dims(joined)
    assert (first, second, third) == (*known.dims(model.graph.inputs[0]), 3)
    assert fourth not in (first, second)
    assert known.dims(ir.Value(name="unknown")) is None


@pytest.mark.parametrize("sizes", ["<num_outputs = 3> (s)", "(s, ones)"])
def test_parts_of_a_shape(sizes: str) -> None:
    """ONNX Runtime's optimizers split a shape where several Gathers read its dims."""
    body = f"s = Shape (x) a, b, c = Split {sizes} to = Concat <axis = 0> (a, c, b) y = Reshape (x, to)"
    model = graph("float[B, 4, N] x", "float[p, q, r] y", body, constants="int64[3] ones = {1, 1, 1}")
    assert infer.infer(model).dims(value(model, "y")) == (parse_dim("B"), parse_dim("N"), 4)
