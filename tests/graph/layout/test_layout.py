"""Channels last: the form of a graph after the pass, what stays, and where Transposes remain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxopt.fusion import channels_last
from onnxopt.fusion.boundary import inputs_of, outputs_of
from onnxopt.fusion.kernel import Traffic
from onnxopt.fusion.region import Region
from onnxopt.graph import rewrite
from onnxopt.graph.layout import is_channels_last
from onnxopt.graph.layout.orders import TO_NCHW, TO_NHWC
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.kinds.pointwise.kind import POINTWISE
from tests.support.graphs import graph, node, run

INPUT, OUTPUT = "float[N, 8, 16, 16] x", "float[] y"
WEIGHTS = "float[8,8,3,3] w, float[8,8,1,1] p, float[8,1,3,3] d, float[8] b, float[1,8,1,1] c"


def model(
    body: str, inputs: str = INPUT, outputs: str = OUTPUT, weights: str = WEIGHTS, constants: str = "", opset: int = 20
) -> ir.Model:
    """A graph whose floats named in `weights` are random constants."""
    source = graph(f"{inputs}, {weights}", outputs, body, constants=constants, opset=opset)
    rng = np.random.default_rng(5)
    names = {text.split()[1] for text in weights.split(", ")}
    for value in [v for v in source.graph.inputs if v.name in names]:
        assert value.shape is not None and value.dtype is not None
        array = (rng.standard_normal(value.shape.numpy()) * 0.3).astype(value.dtype.numpy())
        source.graph.inputs.remove(value)
        value.const_value = ir.Tensor(array, name=value.name)
        source.graph.register_initializer(value)
    return source


def laid_out(source: ir.Model, folder: Path) -> tuple[ir.Model, int]:
    copy = source.clone()
    return copy, rewrite.rewrite(copy, folder).applied["channels_last"]


def ops(found: ir.Model) -> list[str]:
    return [n.op_type for n in found.graph]


def borders(found: ir.Model) -> list[str]:
    """The operands of Transposes that belong to no operator between two of them, as the names they had."""
    between = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "Resize"}
    between |= {"InstanceNormalization", "GroupNormalization"}
    names = []
    for n in found.graph:
        producer, readers = n.inputs[0].producer() if n.inputs else None, n.outputs[0].consumers()
        readers = [u for r in readers for u in (r.outputs[0].consumers() if r.op_type == "Reshape" else [r])]
        if producer is not None and producer.op_type == "Reshape":
            producer = producer.inputs[0].producer()  # type: ignore[union-attr]
        own = any(r.op_type in between for r in readers) or (producer is not None and producer.op_type in between)
        if n.op_type == "Transpose" and not own:
            names.append(str(n.inputs[0].name).removesuffix("_nhwc"))  # type: ignore[union-attr]
    return names


@pytest.mark.parametrize(
    ("conv", "stored", "order"),
    [
        ("Conv<pads=[1,1,1,1]>(x, w, b)", (8, 3, 3, 8), channels_last.KRSC),
        ("Conv<group=8>(x, d)", (3, 3, 1, 8), channels_last.RSK),
        ("Conv(x, p, b)", (8, 8), ()),
        ("Conv<strides=[2,2]>(x, p)", (8, 8), ()),
        ("ConvTranspose(x, w, b)", (8, 3, 3, 8), channels_last.KRSC),
        ("ConvTranspose(x, p)", (8, 1, 1, 8), channels_last.KRSC),
        ("ConvTranspose<group=8>(x, d)", (8, 3, 3, 1), channels_last.KRSC),
    ],
)
def test_the_normal_form(conv: str, stored: tuple[int, ...], order: tuple[int, ...], tmp_path: Path) -> None:
    source = model(f"y = {conv}")
    found, count = laid_out(source, tmp_path)
    assert count == 1
    (convolution,) = (n for n in found.graph if n.op_type in channels_last.CONVOLUTIONS)
    sandwich = channels_last.sandwich(convolution, shape_inference.infer(found))
    assert not isinstance(sandwich, str), sandwich
    assert sandwich.w.const_value is not None
    assert sandwich.w.const_value.shape.numpy() == stored
    assert sandwich.weight_order == order
    assert (sandwich.bias is not None) == ("b)" in conv)
    assert is_channels_last(sandwich.x)
    assert is_channels_last(sandwich.y)
    same(source, found, 2)


def same(source: ir.Model, found: ir.Model, batch: int) -> None:
    (x,) = (v for v in source.graph.inputs if v.name == "x")
    dims = [d if isinstance(d, int) else batch for d in x.shape]  # type: ignore[union-attr]
    feed = {"x": np.random.default_rng(1).standard_normal(dims).astype(x.dtype.numpy())}  # type: ignore[union-attr]
    tolerance = 1e-5 if x.dtype == ir.DataType.FLOAT else 4e-3
    for one, other in zip(run(found, feed), run(source, feed), strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_a_pad_of_a_few_axes_states_all(tmp_path: Path) -> None:
    """ONNX Runtime's optimizer fails where it moves a Transpose through a Pad with a few axes."""
    body = 'u = Conv<pads=[1,1,1,1]>(x, w, b)  v = Pad<mode = "edge">(u, pads, , axes)  y = Conv(v, p)'
    source = model(body, constants="int64[2] pads = {1, 2}, int64[1] axes = {-2}")
    found, count = laid_out(source, tmp_path)
    assert count == 2
    (pad,) = (n for n in found.graph if n.op_type == "Pad")
    assert pad.inputs[1].const_value.numpy().tolist() == [0, 1, 0, 0, 0, 2, 0, 0]  # type: ignore[union-attr]
    assert pad.inputs[3].const_value.numpy().tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]
    same(source, found, 2)


def test_zeros_in_front_of_a_max_pool_stay_zeros(tmp_path: Path) -> None:
    """ONNX Runtime's optimizer makes them pads of the pool, and so minus infinity, where no axes are named."""
    body = "u = Conv(x, w, b)  v = Pad(u, pads, , axes)  y = MaxPool<kernel_shape = [2, 2]>(v)"
    source = model(body, constants="int64[2] pads = {1, 0}, int64[1] axes = {-2}")
    found, count = laid_out(source, tmp_path)
    assert count == 1
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 8, 16, 16), np.float32)}
    session = ort.InferenceSession(ir.to_proto(found).SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], run(source, feeds)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "channels"), [("float16", 4), ("float", 3)])
def test_an_image_of_16_bits_gets_a_fourth_channel(dtype: str, channels: int, tmp_path: Path) -> None:
    body = "u = Conv<strides = [2, 2], pads = [3, 3, 3, 3]>(x, w, b)  v = Conv(x, p)  r = Relu(u)  y = Conv(r, q)"
    weights = f"{dtype}[8,3,7,7] w, {dtype}[8,3,3,3] p, {dtype}[8,8,3,3] q, {dtype}[8] b"
    source = model(body, f"{dtype}[2, 3, 16, 17] x", f"{dtype}[] y, {dtype}[] v", weights)
    found, count = laid_out(source, tmp_path)
    assert count == 3
    first = [n for n in found.graph if n.op_type == "Conv"][:2]
    assert [n.inputs[1].shape[1] for n in first] == [channels, channels]  # type: ignore[index, union-attr]
    assert ops(found).count("Pad") == (channels == 4)  # both convolutions read one padded image
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 16, 17)).astype(source.graph.inputs[0].dtype.numpy())}
    for a, b in zip(run(found, feeds), run(source, feeds), strict=True):
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=2e-3, atol=2e-3)


def test_two_convolutions_of_one_input_have_transposes_of_their_own(tmp_path: Path) -> None:
    source = model("v = Conv(x, p) u = Conv(x, p, b) y = Mul(u, v)")
    found, count = laid_out(source, tmp_path)
    assert count == 2
    known = shape_inference.infer(found)
    sandwiches = [channels_last.sandwich(n, known) for n in found.graph if n.op_type == "Conv"]
    assert all(isinstance(s, channels_last.Sandwich) for s in sandwiches), sandwiches
    assert len({s.w for s in sandwiches}) == 1  # type: ignore[union-attr]
    assert sorted(borders(found)) == ["x", "y"]


CHAIN = "a = Conv<pads=[1,1,1,1]>(x, w) {} y = Conv<pads=[1,1,1,1]>(v, w, b)"


@pytest.mark.parametrize(
    "body",
    [
        "v = Relu(a)",
        "s = Sigmoid(a) v = Mul(a, s)",
        "v = Mul(c, a)",
        "m = ReduceMean<keepdims=1>(a, hw) s = Sigmoid(m) v = Mul(a, s)",
        "m = GlobalAveragePool(a) s = HardSigmoid(m) v = Mul(a, s)",
        "q, r = Split<axis=1, num_outputs=2>(a) v = Concat<axis=1>(r, q)",
        "v = Concat<axis=-2>(a, a)",
        "v = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(a)",
        'v = Resize<mode="nearest">(a, , scales)',
        "v = ConvTranspose<pads=[1,1,1,1], strides=[2,2], output_padding=[1,0]>(a, w, b)",
        "v = ConvTranspose<group=8>(a, d)",
        "v = Softmax<axis=1>(a)",
        "r = ReduceMax<keepdims=1>(a, one) v = Sub(a, r)",
        "v = Pad(a, pads, zero)",
        "v = Slice(a, one, ten, two)",
        "h = Shape<start=2>(a) q = Cast<to=1>(h) m = ReduceMean<keepdims=0>(q) v = Mul(a, m)",
        "v = BatchNormalization(a, b, b, b, e)  z = Relu(a)",
        "t = Transpose<perm=[0,2,3,1]>(a) n = LayerNormalization(t, b) v = Transpose<perm=[0,3,1,2]>(n)",
    ],
)
def test_what_stands_between_convolutions_needs_no_transposes(body: str, tmp_path: Path) -> None:
    constants = (
        "int64[2] hw = {2, 3}, int64[1] one = {1}, int64[1] ten = {10}, int64[1] two = {2}, float zero = {0}, "
        "float[4] scales = {1, 1, 2, 2}, int64[8] pads = {0,0,1,1,0,0,0,2}, float[8] e = {1,2,1,2,1,2,1,2}"
    )
    outputs = OUTPUT + (", float[] z" if "z =" in body else "")
    source = model(CHAIN.format(body), constants=constants, outputs=outputs)
    found, count = laid_out(source, tmp_path)
    assert count == 2 + ("ConvTranspose" in body)
    assert len(borders(found)) == 2 + ("z =" in body), borders(found)
    same(source, found, 3)


@pytest.mark.parametrize(
    "body",
    [
        "f = Reshape(a, flat) m = MatMul(f, k) v = Reshape(m, back)",
    ],
)
def test_operators_that_need_nchw_get_it(body: str, tmp_path: Path) -> None:
    constants = "int64[3] flat = {0, 8, -1}, int64[4] back = {0, 8, 16, 16}"
    source = model(CHAIN.format(body), constants=constants, weights=WEIGHTS + ", float[256,256] k")
    found, count = laid_out(source, tmp_path)
    assert count == 2
    assert len(borders(found)) == 4, borders(found)
    same(source, found, 2)


@pytest.mark.parametrize(
    "body",
    [
        'v = ConvTranspose<auto_pad="SAME_UPPER">(a, w, b)',
        "v = ConvTranspose<output_shape=[16,16]>(a, w, b)",
        "s = Mul(w, two) v = ConvTranspose<pads=[1,1,1,1]>(a, s, b)",
    ],
)
def test_transposed_convolutions_that_no_kernel_runs_stay(body: str, tmp_path: Path) -> None:
    source = model(CHAIN.format(body), constants="float two = {2}")
    found, count = laid_out(source, tmp_path)
    assert count == 2
    (transposed,) = (n for n in found.graph if n.op_type == "ConvTranspose")
    assert str(transposed.outputs[0].name) == "v"
    same(source, found, 2)


GROUPED = "r = Reshape(a, groups) n = InstanceNormalization(r, s, s) "


@pytest.mark.parametrize(
    "norm",
    [
        "v = InstanceNormalization(a, b, b)",
        "v = GroupNormalization<num_groups=2>(a, b, b)",
        GROUPED + "h = Shape(a) v = Reshape(n, h)",
        GROUPED + "g = Reshape(n, back) m = Mul(g, c) i = Sigmoid(m) v = Mul(m, i)",
        "u = Unsqueeze(t, pixel) q = Add(a, u) r = Reshape(q, groups) n = InstanceNormalization(r, s, s) "
        "v = Reshape(n, back)",
    ],
)
@pytest.mark.parametrize("sizes", ["N, 8, 16, 16", "N, 8, H, W", "2, 8, 16, 16"])
def test_norms_over_groups_lie_between_transposes_of_their_own(norm: str, sizes: str, tmp_path: Path) -> None:
    if "back" in norm and "H" in sizes:
        pytest.skip("the Reshape would state height and width")
    constants = "int64[3] groups = {0, 4, -1}, int64[4] back = {0, 8, 16, 16}, int64[2] pixel = {2, 3}"
    time = f", float[{sizes.split(',')[0]}, 8] t" if "(t," in norm else ""
    source = model(
        CHAIN.format(norm), f"float[{sizes}] x{time}", constants=constants, weights=WEIGHTS + ", float[4] s", opset=21
    )
    found, count = laid_out(source, tmp_path)
    assert count == 2
    assert sorted(borders(found)) == ["x", "y"]
    (node,) = (n for n in found.graph if n.op_type.endswith("Normalization"))
    assert (node.inputs[0].producer().op_type == "Transpose") != ("Reshape" in norm)  # type: ignore[union-attr]
    if not time:
        same(source, found, 2)


@pytest.mark.parametrize(
    "norm",
    [
        "r = Reshape(a, some) n = InstanceNormalization(r, s, s) v = Reshape(n, back)",  # groups of samples too
        GROUPED + "e = Relu(r) k = ReduceMean(e) g = Reshape(n, back) v = Add(g, k)",  # what is grouped is read too
        "r = Reshape(a, h) n = InstanceNormalization(r, s, s) v = Reshape(n, back)",  # of any shape
    ],
)
def test_what_looks_like_a_norm_over_groups_stays_nchw(norm: str, tmp_path: Path) -> None:
    constants = "int64[3] groups = {0, 4, -1}, int64[3] some = {-1, 4, 256}, int64[4] back = {-1, 8, 16, 16}"
    inputs = "float[2, 8, 16, 16] x" + (", int64[3] h" if "h)" in norm else "")
    source = model(CHAIN.format(norm), inputs, constants=constants, weights=WEIGHTS + ", float[4] s")
    found, _ = laid_out(source, tmp_path)
    assert len([n for n in found.graph if n.op_type == "Transpose" and n.inputs[0].const_value is None]) == 6 + 2


def test_norms_without_a_convolution_around_do_not_change(tmp_path: Path) -> None:
    constants = "int64[3] groups = {0, 4, -1}, int64[4] back = {0, 8, 16, 16}"
    body = "r = Reshape(x, groups) n = InstanceNormalization(r, s, s) y = Reshape(n, back)"
    source = model(body, constants=constants, weights="float[4] s")
    found, count = laid_out(source, tmp_path)
    assert count == 0 and ops(found) == ["Reshape", "InstanceNormalization", "Reshape"]


def test_a_map_of_one_position_is_turned_by_a_reshape(tmp_path: Path) -> None:
    source = model(
        "a = Conv(x, p) g = GlobalMaxPool(a) f = InstanceNormalization(g, b, b) z = Flatten(g) y = Add(f, c)",
        outputs=OUTPUT + ", float[] z",
    )
    found, _ = laid_out(source, tmp_path)
    assert borders(found) == ["x"]
    same(source, found, 2)


def test_tokens_need_no_transpose(tmp_path: Path) -> None:
    body = (
        "a = Conv(x, p) f = Reshape(a, flat) t = Transpose<perm=[0,2,1]>(f) m = MatMul(t, k) "
        "s = Transpose<perm=[0,2,1]>(m) r = Reshape(s, back) y = Conv(r, p)"
    )
    constants = "int64[3] flat = {0, 8, -1}, int64[4] back = {0, 8, 16, 16}"
    source = model(body, constants=constants, weights=WEIGHTS + ", float[8,8] k")
    found, count = laid_out(source, tmp_path)
    assert count == 2
    assert sorted(borders(found)) == ["x", "y"]
    same(source, found, 2)


@pytest.mark.parametrize(
    ("body", "inputs", "weights"),
    [
        ("y = Conv(x, w)", "double[N, 8, 16] x", "double[8,8,3] w"),
        ("y = ConvTranspose<output_shape=[20]>(x, w)", "float[N, 8, 16] x", "float[8,8,3] w"),
        ("y = Conv(x, w)", "double[N, 8, 6, 6, 6] x", "double[8,8,3,3,3] w"),
        ("y = Conv(x, w)", "double[N, 8, 16, 16] x", "double[8,8,3,3] w"),
    ],
)
def test_other_convolutions_stay(body: str, inputs: str, weights: str, tmp_path: Path) -> None:
    source = model(body, inputs, OUTPUT.replace("float", inputs.split("[")[0]), weights)
    found, count = laid_out(source, tmp_path)
    assert count == 0
    assert ops(found) == ops(source)


def test_quantized_operands_stay_beside_their_convolution(tmp_path: Path) -> None:
    body = "d = DequantizeLinear(q, s) v = DequantizeLinear(u, s) a = Conv(d, v) y = QuantizeLinear(a, s, o)"
    source = model(
        body, "int8[N,8,16,16] q, int8[8,8,3,3] u", "int8[] y", "float[8] b", constants="float s = {0.1}, int8 o = {0}"
    )
    _, count = laid_out(source, tmp_path)
    assert count == 0


@pytest.mark.parametrize("weight", ["v = Mul(w, factor)", "v = ConstantOfShape(extents)"])
def test_a_convolution_with_a_computed_weight_stays_nchw(weight: str, tmp_path: Path) -> None:
    """No kernel takes it, so nothing would absorb its Transposes; its neighbours are laid out around it."""
    source = model(
        f"{weight} y = Conv(x, v)", inputs=f"{INPUT}, float factor", constants="int64[4] extents = {8, 8, 3, 3}"
    )
    found, count = laid_out(source, tmp_path)
    assert (count, ops(found)) == (0, ops(source))
    body = f"{weight} h = Conv(x, w) i = Relu(h) a = Conv(i, v) r = Relu(a) e = Conv(r, p) y = Relu(e)"
    source = model(body, inputs=f"{INPUT}, float factor", constants="int64[4] extents = {8, 8, 3, 3}")
    found, count = laid_out(source, tmp_path)
    assert count == 2
    (conv,) = (n for n in found.graph if n.op_type == "Conv" and n.inputs[1] is node(found, "v").outputs[0])
    assert not is_channels_last(conv.inputs[0]) and not is_channels_last(conv.outputs[0])


ACTIVATION = "t = Tanh({0}) e = Exp({0}) m = Mul(t, e)"


@pytest.mark.parametrize(
    ("body", "chosen"),
    [
        ("a = Conv(x, p) " + ACTIVATION.format("a") + " y = Conv(m, p)", ("Tanh", "Exp", "Mul")),
        ("a = Conv(x, p) n = Erf(a) y = Add(n, a)", ("Erf", "Add")),
        ("a = Conv(x, p) n = CumSum(a, one) " + ACTIVATION.format("a") + " f = Flatten(m) y = Add(n, a)",
         ("Tanh", "Exp", "Mul")),
        (ACTIVATION.format("x") + " f = CumSum(m, one) y = Conv(m, p)", ("Tanh", "Exp", "Mul")),
    ],
)  # fmt: skip
def test_regions_beside_channels_last_are_not_for_the_cpu(body: str, chosen: tuple[str, ...], tmp_path: Path) -> None:
    """Nor are those with a Transpose of the pass in between. The region is made by hand, of these operators."""
    found, _ = laid_out(
        model(body, outputs=OUTPUT + (", float[] f" if "f =" in body else ""), constants="int64 one = {1}"), tmp_path
    )
    clone = found.clone()
    nodes = tuple(n for n in clone.graph if n.op_type in chosen)
    region = Region(nodes, tuple(inputs_of(nodes)), tuple(outputs_of(nodes)), Traffic(None, None, 3), POINTWISE)
    assert len(nodes) == len(chosen)
    assert not POINTWISE.pays_on_cpu(region)
    for value in (v for n in clone.graph for v in n.outputs):
        value.meta.clear()
    assert POINTWISE.pays_on_cpu(region)


def test_the_pass_runs_in_half_precision(tmp_path: Path) -> None:
    weights = WEIGHTS.replace("float", "float16")
    source = model(CHAIN.format("v = Relu(a)"), "float16[N, 8, 16, 16] x", "float16[] y", weights)
    found, count = laid_out(source, tmp_path)
    assert count == 2
    same(source, found, 2)


def test_orders_are_inverse() -> None:
    assert [TO_NCHW[axis] for axis in TO_NHWC] == [0, 1, 2, 3]


def test_bodies_of_control_flow_read_nchw(tmp_path: Path) -> None:
    body = (
        "a = Conv(x, w) r = If(c0) <then_branch = g1 () => (float[N, 8, 14, 14] t) { t = Relu(a) }, "
        "else_branch = g2 () => (float[N, 8, 14, 14] e) { e = Conv(a, p) }> y = Conv(r, p, b)"
    )
    source = model(body, f"{INPUT}, bool c0")
    found, count = laid_out(source, tmp_path)
    assert count == 2
    x = np.random.default_rng(1).standard_normal((2, 8, 16, 16)).astype(np.float32)
    for condition in (True, False):
        feeds = {"x": x, "c0": np.array(condition)}
        np.testing.assert_allclose(run(found, feeds)[0], run(source, feeds)[0], rtol=1e-5, atol=1e-5)
