"""Dims of inputs that can only be 1: which graphs say so, and that the optimized model refuses other sizes too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import sympy
from onnxruntime.capi import onnxruntime_pybind11_state as ort

import onnxopt
from onnxopt.artifact.manifest import Manifest
from onnxopt.errors import UsageError
from onnxopt.graph import normalize, rewrite, signature, traits
from onnxopt.graph.shapes import infer
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.graph.shapes.dims import parse_dim
from onnxopt.graph.sizes import single_sizes
from tests.support import graphs
from tests.support.graphs import graph, run, value

REFUSED = (ort.Fail, ort.InvalidArgument, ort.RuntimeException)
CONSTANTS = (
    "int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1}, int64[1] last = {-1}, "
    "int64[1] four = {4}, int64[1] eight = {8}, int64[2] row = {1, 8}, int64[3] open = {1, -1, 4}, "
    "float[1, 8] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[1, 6] table = {1, 2, 3, 4, 5, 6}, "
    "float[4] bias = {1, 2, 3, 4}, float low = {-1e30}, float none = {0}"
)
SIZES = "b1 = Shape<start = 0, end = 1>(x) n1 = Shape<start = 1, end = 2>(x) b = Squeeze(b1) n = Squeeze(n1)"
ROWS = "i = Range(zero, b, one) j = Unsqueeze(i, second)"
# By operator: an output y that is there where batch is 1 alone.
EVIDENCE = {
    "Reshape": "s = Concat<axis = 0>(second, n1, second, four) y = Reshape(x, s)",
    "Reshape of a part": "p = ReduceSum(x, second) y = Reshape(p, open4)",
    "MatMul": "t = Transpose<perm = [1, 2, 0]>(x) r = Squeeze(t, last) y = MatMul(t, w)",
    "Gemm": "p = ReduceSum<keepdims = 0>(x, second) y = Gemm<transA = 1>(p, w)",
    "Concat": "p = ReduceSum<keepdims = 0>(x, second) y = Concat<axis = 1>(p, w)",
    "Squeeze": "p = Neg(x) y = Squeeze(p, first)",
    "GatherND": f"{ROWS} k = Concat<axis = 1>(j, j) t = GatherND(table, k) u = Unsqueeze(t, last) "
    "v = Unsqueeze(u, last) y = Add(x, v)",
    "Gather": f"{ROWS} t = Gather(table, i) u = ReduceSum(t, last) v = Unsqueeze(u, last) y = Add(x, v)",
}


def model_of(body: str, inputs: str = "float[batch, seq, 4] x", constants: str = "") -> ir.Model:
    more = f", {constants}" if constants else ""
    return graph(inputs, "float[] y", f"{SIZES} {body}", constants=f"{CONSTANTS}, int64[2] open4 = {{1, 4}}{more}")


def feeds(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("name", EVIDENCE)
def test_a_graph_says_that_a_dim_is_1(name: str) -> None:
    model = model_of(EVIDENCE[name])
    normalized = normalize.normalize(model.clone())
    after = normalized.model
    operator = name.split()[0]
    assert [f"accepts 1 for `batch`: {operator} `" in note for note in normalized.notes] == [True]
    assert normalized.checked == {"batch": 1}
    assert [str(dim) for dim in value(after, "x").shape] == ["batch", "seq", "4"]
    assert "batch" not in str([infer.infer(after).dims(v) for node in after.graph for v in node.outputs])
    for length in (1, 7):
        np.testing.assert_allclose(run(after, feeds(1, length, 4))[0], run(model, feeds(1, length, 4))[0], rtol=1e-6)
    for batch in (2, 3):
        with pytest.raises(REFUSED):
            run(model, feeds(batch, 7, 4))
        with pytest.raises(REFUSED, match=r"batch_must_be_1.*must be 1"):
            run(after, feeds(batch, 7, 4))


@pytest.mark.parametrize(
    "body",
    [
        "y = Reshape(x, open)",
        "s = Concat<axis = 0>(n1, b1, four) y = Reshape(x, s)",
        "s = Concat<axis = 0>(four, last) y = Reshape(x, s)",
        "p = ReduceSum<keepdims = 0>(x, second) y = Add(p, bias)",
        "s = Concat<axis = 0>(second, n1, four) y = Expand(x, s)",
        "t = Transpose<perm = [1, 0, 2]>(x) u = Transpose<perm = [0, 2, 1]>(x) y = MatMul(t, u)",
        "p = ReduceSum<keepdims = 0>(x, last) y = Concat<axis = 0>(p, table)",
        "t = Transpose(table) u = ReduceSum<keepdims = 0>(x, last) y = MatMul(u, t)",
        f"{ROWS} t = Gather<axis = 1>(table, i) u = Unsqueeze(t, last) y = Mul(u, bias)",
        f"{ROWS} k = Concat<axis = 1>(j, j) d = ReduceSum<keepdims = 0>(x, last) y = GatherND(d, k)",
        "unused = Squeeze(x, first) y = Neg(x)",
        "c = Greater(n, one) y = If(c) <then_branch = a () => (float[] p) { p = Squeeze(x, first) }, "
        "else_branch = e () => (float[] q) { q = Neg(x) }>",
    ],
    ids=[
        "a size is left over", "another order", "other factors", "Add", "Expand", "MatMul's batch",
        "the axis of Concat", "seq is fixed to another size", "a longer table", "batch may be less than seq",
        "not needed", "in a branch",
    ],
)  # fmt: skip
def test_a_graph_that_may_run_with_other_sizes(body: str) -> None:
    normalized = normalize.normalize(model_of(body))
    assert normalized.notes == () and normalized.checked == {}
    assert not any("must_be_1" in (node.name or "") for node in normalized.model.graph)


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ("a*b - b", "a"), ("3*a*b - 3*b", "a"), ("a*a*b - b", "a"), ("a*b - 1", "ab"), ("1 - a*b", "ab"),
        ("a + b - 2", "ab"), ("a*b + b - 2*b", "a"), ("a - 2", ""), ("a - b", ""), ("2*a - 3", ""),
        ("(a - 1) * (b - 1)", ""), ("a*b - c", ""), ("a*b - b - 1", ""),
    ],
)  # fmt: skip
def test_which_sizes_are_1_where_an_expression_is_0(zero: str, expected: str) -> None:
    assert [str(symbol) for symbol in single_sizes.ones_of(sympy.sympify(parse_dim(zero)))] == list(expected)


def test_which_sizes_are_1_is_not_found_in_other_expressions() -> None:
    a = parse_dim("a")
    for zero in (sympy.Min(a, 512) - 1, sympy.floor(a / 2) - 1, sympy.Symbol("k", integer=True) - 1):
        assert single_sizes.ones_of(zero) == ()


def test_several_dims_and_several_inputs() -> None:
    """The check stands at one input that is read; the same symbol is 1 in the others, and so is one without a name."""
    model = model_of(
        "length = Shape<start = 1, end = 2>(mask) s = Concat<axis = 0>(second, length, four) u = Reshape(x, s) "
        "v = Reshape(z, row) w8 = Add(v, w) u3 = Reshape(u, rows8) y = Concat<axis = 0>(u3, w8)",
        "float[batch, seq, 4] mask, float[batch, seq, 4] x, float[?, 8] z",
        "int64[2] rows8 = {-1, 8}",
    )
    normalized = normalize.normalize(model)
    assert ["`batch`" in note or "`z.0`" in note for note in normalized.notes] == [True, True]
    after, known = normalized.model, infer.infer(normalized.model)
    checks = {node.name: node.inputs[0].name for node in after.graph if node.op_type == "Squeeze"}
    assert checks == {"batch_must_be_1": "x", "z.0_must_be_1": "z"}
    assert known.dims(value(after, "mask"))[0] == 1
    assert shape_inference.infer(after).dims(value(after, "mask")) == (1, "seq", 4)
    assert [str(value(after, name).shape[0]) for name in ("mask", "x")] == ["batch", "batch"]


def test_a_check_is_added_once() -> None:
    first = normalize.normalize(model_of(EVIDENCE["Reshape"])).model
    second = normalize.normalize(first.clone())
    assert second.notes == () and second.checked == {"batch": 1}
    assert sum(node.op_type == "Squeeze" for node in second.model.graph) == 1


def test_no_elements_are_refused_rather_than_given_another_shape() -> None:
    """Where seq is 0, the original may run with other batches. The optimized model says why it does not."""
    model = model_of("s = Concat<axis = 0>(second, n1, four) y = Reshape(x, s)")
    after = normalize.normalize(model.clone()).model
    assert run(model, feeds(2, 0, 4))[0].shape == (1, 0, 4)
    with pytest.raises(REFUSED, match="batch_must_be_1"):
        run(after, feeds(2, 0, 4))
    assert run(after, feeds(1, 0, 4))[0].shape == (1, 0, 4)


# What transformers' exporter writes where the example had one sequence: the mask has the batch, and queries have 1.
MASKED = """
  e = Gather(words, x)
  r = Range(zero, n, one) r2 = Unsqueeze(r, first)
  start = Slice(r2, first, second, second, second) before = Sub(start, one) shifted = Concat<axis = -1>(before, r2)
  left = Slice(shifted, first, n1, last, second) n2 = Add(one, n) n3 = Unsqueeze(n2, first)
  right = Slice(shifted, second, n3, last, second) step = Sub(right, left) next = Equal(step, one) jumps = Not(next)
  jumps_i = Cast<to = 7>(jumps) sequences = CumSum(jumps_i, last1)
  bn = Concat<axis = 0>(b1, second) p = Expand(r2, bn)
  rb = Range(zero, b, one) rb4 = Unsqueeze(rb, axes123)
  rq = Unsqueeze(r2, axes13) rk = Unsqueeze(r2, axes12)
  mq = Max(rb4, rq) sq = Shape(mq) bq = Expand(rb4, sq) bq5 = Unsqueeze(bq, last) rq4 = Expand(rq, sq)
  rq5 = Unsqueeze(rq4, last) iq = Concat<axis = -1>(bq5, rq5)
  mk = Max(rb4, rk) sk = Shape(mk) bk = Expand(rb4, sk) bk5 = Unsqueeze(bk, last) rk4 = Expand(rk, sk)
  rk5 = Unsqueeze(rk4, last) ik = Concat<axis = -1>(bk5, rk5)
  pq = GatherND(p, iq) pk = GatherND(p, ik) causal = LessOrEqual(pk, pq)
  oq = GatherND(sequences, iq) ok = GatherND(sequences, ik) same = Equal(oq, ok) shown = And(causal, same)
  mask = Where(shown, none, low)
  q0 = MatMul(e, w0) k0 = MatMul(e, w1) v0 = MatMul(e, w2)
  q1 = Reshape(q0, heads) k1 = Reshape(k0, heads) v1 = Reshape(v0, heads)
  q = Transpose<perm = [0, 2, 1, 3]>(q1) k = Transpose<perm = [0, 2, 3, 1]>(k1) v = Transpose<perm = [0, 2, 1, 3]>(v1)
  scores = MatMul(q, k) scaled = Mul(scores, scale) masked = Add(scaled, mask)
  a0 = Softmax<axis = -1>(masked) nan = IsNaN(a0) a1 = Where(nan, none, a0) o = MatMul(a1, v)
  o1 = Transpose<perm = [0, 2, 1, 3]>(o) o2 = Reshape(o1, rows) y = Add(o2, e)
"""
MASKED_CONSTANTS = (
    "int64 last1 = {-1}, int64[3] axes123 = {1, 2, 3}, int64[2] axes13 = {1, 3}, int64[2] axes12 = {1, 2}, "
    "int64[4] heads = {1, -1, 2, 8}, int64[3] rows = {1, -1, 16}, float scale = {0.3535534}"
)
WEIGHTS = ", ".join(f"float[{50 if name == 'words' else 16}, 16] {name}" for name in ("words", "w0", "w1", "w2"))


def masked_attention() -> ir.Model:
    model = model_of(MASKED, f"int64[batch, seq] x, {WEIGHTS}", MASKED_CONSTANTS)
    random = np.random.default_rng(1)
    arrays = {n: random.standard_normal((50 if n == "words" else 16, 16)) for n in ("words", "w0", "w1", "w2")}
    graphs.hold(model, arrays, np.float32)
    return model


def test_attention_whose_mask_alone_has_the_batch(tmp_path: Path) -> None:
    model = masked_attention()
    normalized = normalize.normalize(model.clone())
    after = normalized.model
    assert ["GatherND" in note for note in normalized.notes] == [True]
    assert rewrite.rewrite(after, tmp_path).applied["attention"] == 1
    assert not any(node.op_type in ("Softmax", "GatherND", "Where") for node in after.graph)
    random = np.random.default_rng(2)
    for length in (1, 2, 7, 40):
        ids = {"x": random.integers(0, 50, (1, length))}
        np.testing.assert_allclose(run(after, ids)[0], run(model, ids)[0], rtol=1e-4, atol=1e-5)
    for shape in ((2, 7), (2, 1)):
        for refusing in (model, after):
            with pytest.raises(REFUSED):
                run(refusing, {"x": np.zeros(shape, np.int64)})


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Of the artifact of that attention, verified."""
    folder = tmp_path_factory.mktemp("artifact")
    ir.save(masked_attention(), folder / "model.onnx")
    return onnxopt.optimize(folder / "model.onnx", folder / "artifact", archs=()).manifest


def test_verification_takes_the_size_that_the_graph_accepts(manifest: Manifest) -> None:
    assert manifest.verify.status == "passed"
    assert {check.case.split(",")[0] for check in manifest.verify.checks} == {"batch=1"}
    usual = {check.case.split(",")[1] for check in manifest.verify.checks if check.case.count(",") == 2}
    assert len(usual) == 5
    assert manifest.verify.skipped == ()
    assert any("only accepts 1 for `batch`" in note for note in manifest.notes)


def test_sizes_of_a_user() -> None:
    inputs = traits.of(masked_attention()).inputs
    assert signature.pin(inputs, {"seq": (5,)}, {"batch": 1}) == {"seq": 5, "batch": 1}
    with pytest.raises(UsageError, match="dim 'batch' is 2, and the graph only accepts 1"):
        signature.pin(inputs, {"x": (2, 5)}, {"batch": 1})


def test_traits_take_what_an_equivalent_model_checks() -> None:
    model = masked_attention()
    original, normalized = traits.of(model), traits.of(normalize.normalize(model).model)
    assert (original.checked, traits.completed(original, normalized).checked) == ({}, {"batch": 1})


# --- channels that a weight states -----------------------------------------------------------------------------------

IMAGE = "float[batch, channels, height, width] x"
CHANNELS = {
    "Conv": "y = Conv(x, w)",
    "Conv of groups": "y = Conv<group = 3>(x, g)",
    "ConvTranspose": "y = ConvTranspose(x, t)",
    "BatchNormalization": "y = BatchNormalization(x, s, s, s, s)",
    "InstanceNormalization": "y = InstanceNormalization(x, s, s)",
    "behind a Cast": "h = Cast<to = 10>(x) f = Cast<to = 1>(h) y = Conv(f, w)",
}
FILTERS = (
    "float[2, 3, 1, 1] w = {1, 2, 3, 4, 5, 6}, float[3, 1, 1, 1] g = {1, 2, 3}, "
    "float[3, 2, 1, 1] t = {1, 2, 3, 4, 5, 6}, float[3] s = {1, 2, 3}, int64[3] tokens = {0, 3, -1}, "
    "float[1, 4, 1, 1] four = {1, 2, 3, 4}"
)


@pytest.mark.parametrize("name", CHANNELS)
def test_a_weight_says_how_many_channels_an_image_has(name: str) -> None:
    model = graph(IMAGE, "float[] y", CHANNELS[name], constants=FILTERS)
    normalized = normalize.normalize(model.clone())
    assert normalized.checked == {"channels": 3}
    assert [str(dim) for dim in value(normalized.model, "x").shape] == ["batch", "channels", "height", "width"]
    checked = next(n for n in normalized.model.graph if n.name == "channels_must_be_3").outputs[0]
    assert infer.infer(normalized.model).dims(checked)[1] == 3
    image = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(run(normalized.model, {"x": image})[0], run(model, {"x": image})[0])
    again = normalize.normalize(normalized.model.clone())
    assert again.checked == {"channels": 3} and again.notes == ()
    for wrong in (2, 4, 6):
        with pytest.raises(REFUSED):
            run(normalized.model, {"x": np.ones((2, wrong, 4, 4), np.float32)})


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul(x, four)",  # one channel broadcasts
        "c = Concat<axis = 1>(x, x) y = Conv(c, w)",  # 2 * channels = 3 has no solution, and Conv reads another value
        "b = If (on) <then_branch = a () => (float[] r) {r = Conv(x, w)}, "
        "else_branch = e () => (float[] q) {q = Neg(x)}> y = Neg(b)",
    ],
    ids=["broadcast", "a multiple", "in a branch"],
)  # fmt: skip
def test_a_graph_that_may_run_with_other_channels(body: str) -> None:
    model = graph(f"{IMAGE}, bool on" if "If" in body else IMAGE, "float[] y", body, constants=FILTERS)
    assert normalize.normalize(model).checked == {}


def test_no_rule_removes_the_check_of_channels(tmp_path: Path) -> None:
    model = graph(IMAGE, "float[] y, float[] z", "z = Reshape(x, tokens) y = Conv(x, w)", constants=FILTERS)
    normalized = normalize.normalize(model).model
    rewrite.rewrite(normalized, tmp_path)
    for wrong in (6, 12):
        with pytest.raises(REFUSED):
            run(normalized, {"x": np.ones((2, wrong, 4, 4), np.float32)})
    z = next(n for n in normalized.graph if n.outputs[0].name == "z")
    assert z.inputs[0].producer() is not None


def test_an_image_model_with_symbolic_channels_is_verified(tmp_path: Path) -> None:
    """Vision exports of optimum: no size is tried that the weight excludes, and no `--shape` is needed."""
    model = graph(IMAGE, "float[] y", "c = Conv(x, w) y = Relu(c)", constants=FILTERS)
    ir.save(model, tmp_path / "m.onnx")
    manifest = onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "a", archs=()).manifest
    assert manifest.verify.status == "passed"
    assert all("channels=3" in check.case for check in manifest.verify.checks)
    with pytest.raises(UsageError, match="dim 'channels' is 4, and the graph only accepts 3"):
        onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "b", archs=(), shapes={"channels": (4,)})


def test_commands_draw_the_channels_that_a_weight_states(tmp_path: Path) -> None:
    """The original alone does not say what its channels are: the normalized or the optimized model does."""
    filters, matrix = (", ".join(["0.25"] * n) for n in (64 * 3 * 9, 64 * 64))
    model = graph(
        IMAGE, "float[] y", "c = Conv(x, w) r = Relu(c) g = GlobalAveragePool(r) f = Flatten(g) y = MatMul(f, m)",
        constants=f"float[64, 3, 3, 3] w = {{{filters}}}, float[64, 64] m = {{{matrix}}}",
    )  # fmt: skip
    ir.save(model, tmp_path / "m.onnx")
    lowered = onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "a", archs=(), precision="float16").manifest
    assert lowered.verify.status == "passed"
    assert onnxopt.verify(tmp_path / "a").status == "passed"
    assert onnxopt.bench(tmp_path / "a", iterations=1, footprints=False).artifact.p50 > 0
    onnxopt.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", format="int8-weights")


# By name: inputs, the graph, its constants, sizes that it takes, and sizes that it refuses.
SEVERAL = {
    "two ones": (
        "float[a, b, 4] x", "p = Neg(x) y = Squeeze(p, axes)", "int64[2] axes = {0, 1}", (1, 1, 4),
        [(2, 1, 4), (1, 2, 4)],
    ),
    "three ones": (
        "float[a, b, c, 4] x", "p = Neg(x) q = Squeeze(p, axes) r = Abs(x) s = Squeeze(r, third) y = Add(q, s)",
        "int64[2] axes = {0, 1}, int64[1] third = {2}", (1, 1, 1, 4), [(2, 1, 1, 4), (1, 2, 1, 4), (1, 1, 2, 4)],
    ),
    "a one, then channels": (
        "float[batch, channels, height, width] x", "c = Conv(x, w) s = Squeeze(c, axes) r = Reshape(x, rows) "
        "y = Add(r, s)", "int64[1] axes = {2}, int64[2] rows = {3, 4}, float[1, 3, 1, 1] w = {1, 2, 3}", (1, 3, 1, 4),
        [(3, 1, 1, 4), (1, 1, 3, 4), (1, 3, 2, 2)],
    ),
    "channels, then a one": (
        "float[batch, channels, 4] x", "c = Conv(x, w) r = Reshape(x, rows) y = Add(r, c)",
        "int64[2] rows = {3, 4}, float[1, 3, 1] w = {1, 2, 3}", (1, 3, 4), [(3, 1, 4), (2, 3, 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_differently_named_dims_of_one_input(name: str) -> None:
    """Each check stays one of the input: the pass ends, and what follows knows all sizes."""
    inputs, body, constants, accepted, refused = SEVERAL[name]
    model = graph(inputs, "float[] y", body, constants=constants)
    normalized = normalize.normalize(model.clone())
    after = normalized.model
    known = infer.infer(after)
    assert len(normalized.notes) == len(normalized.checked) >= 2
    assert normalize.normalize(after.clone()).notes == ()
    reader = next(node for node in after.graph if node.op_type in ("Neg", "Conv"))
    assert normalized.checked.keys().isdisjoint(map(str, known.dims(reader.inputs[0])))
    np.testing.assert_allclose(run(after, feeds(*accepted))[0], run(model, feeds(*accepted))[0], rtol=1e-6)
    for shape in refused:
        with pytest.raises(REFUSED):
            run(model, feeds(*shape))
        with pytest.raises(REFUSED, match="_must_be_"):
            run(after, feeds(*shape))
