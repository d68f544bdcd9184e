"""Convolutions that are read as tokens become products: what fits, what does not and why, and that nothing changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnxscript.rewriter import MatchingTracer, RewriteRuleClassBase

from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.convolutions import as_products
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support import graphs
from tests.support.attention.attention_graphs import ops

TENSORS = {
    "patch": (6, 3, 2, 4), "pixel": (6, 3, 1, 1), "bias": (6,), "image": (6, 3, 6, 8), "line": (6, 3, 9),
    "tap": (6, 3, 3), "volume": (6, 3, 2, 3, 4), "variance": (6,),
}  # fmt: skip
SHAPES = "int64[3] flat = {0, 6, -1}, int64[3] other = {0, 12, -1}"


def model(inputs: str, body: str, opset: int = 20, dtype: str = "float16") -> ir.Model:
    spelled = dtype.replace("32", "")  # by onnx's parser
    made = graphs.graph(inputs.replace("float16", spelled), f"{spelled}[] y", body, constants=SHAPES, opset=opset)
    rng = np.random.default_rng(0)
    for name, dims in TENSORS.items():
        drawn = rng.standard_normal(dims) * 0.3
        array = (np.abs(drawn) + 0.5 if name == "variance" else drawn).astype(
            dtype.replace("float", "f").replace("16", "2").replace("32", "4")
        )
        value = ir.Value(name=name, const_value=ir.tensor(array, name=name), shape=ir.Shape(dims))
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        for node in made.graph:
            for k, operand in enumerate(node.inputs):
                if operand is not None and operand.name == name:
                    node.replace_input_with(k, value)
        made.graph.register_initializer(value)
        for graph_input in [v for v in made.graph.inputs if v.name == name]:
            made.graph.inputs.remove(graph_input)
    InferShapesPass()(made)
    return made


WEIGHTS = ", ".join(f"float16[{', '.join(map(str, dims))}] {name}" for name, dims in TENSORS.items())
IMAGE = f"float16[n, 3, 6, 8] x, {WEIGHTS}"
PATCHES = "c = Conv<strides = [2, 4]>(x, patch{bias}) r = Reshape(c, flat) y = Transpose<perm = [0, 2, 1]>(r)"


def check(source: ir.Model, found: ir.Model, *shapes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for shape in shapes:
        x = rng.standard_normal(shape).astype(next(v.dtype for v in source.graph.inputs).numpy())
        (expected,), (result,) = graphs.run(source, {"x": x}), graphs.run(found, {"x": x})
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("bias", ["", ", bias"])
def test_patches(bias: str, tmp_path: Path) -> None:
    source = model(IMAGE, PATCHES.format(bias=bias))
    found = source.clone()
    assert rewrite(found, tmp_path).applied["tokens"] == 1
    assert [op for op in ops(found) if op != "Reshape"] == ["Transpose", "MatMul", *(["Add"] if bias else [])]
    check(source, found, (2, 3, 6, 8), (1, 3, 6, 8))


def test_patches_of_a_volume(tmp_path: Path) -> None:
    body = "c = Conv<strides = [2, 3, 4]>(x, volume, bias) r = Reshape(c, flat) y = Transpose<perm = [0, 2, 1]>(r)"
    source = model(f"float16[n, 3, 4, 6, 8] x, {WEIGHTS}", body)
    found = source.clone()
    assert rewrite(found, tmp_path).applied["tokens"] == 1
    assert [op for op in ops(found) if op != "Reshape"] == ["Transpose", "MatMul", "Add"]
    check(source, found, (2, 3, 4, 6, 8))


def test_one_pixel_is_a_token(tmp_path: Path) -> None:
    """Of a map in channels last, no Transpose is left."""
    one = "c = Conv(x, pixel, bias) r = Reshape(c, flat) y = Transpose<perm = [0, 2, 1]>(r)"
    source = model(IMAGE, one)
    found = source.clone()
    assert rewrite(found, tmp_path).applied["tokens"] == 1
    turns = [node.attributes.get_ints("perm") for node in found.graph if node.op_type == "Transpose"]
    assert turns in ([(0, 2, 3, 1)], [(0, 2, 1)])
    check(source, found, (2, 3, 6, 8))


@pytest.mark.parametrize(
    ("inputs", "body", "reason"),
    [
        (IMAGE.replace("n, 3, 6, 8", "n, 3, 6, 10"), PATCHES.format(bias=""), "made of whole patches"),
        (IMAGE.replace("n, 3, 6, 8", "n, 3, h, w"), PATCHES.format(bias=""), "made of whole patches"),
        (IMAGE, PATCHES.format(bias="").replace("[2, 4]", "[2, 2]"), "overlap or have gaps"),
        (IMAGE, PATCHES.format(bias="").replace("[2, 4]", "[2, 4], pads = [0, 0, 2, 0]"), "overlap or have gaps"),
        (IMAGE, PATCHES.format(bias="").replace("flat", "other"), "Reshape does not flatten the patches"),
        (IMAGE, PATCHES.format(bias="").replace("[2, 4]", '[2, 4], auto_pad = "VALID"'), "worked out from the shape"),
    ],
)
def test_patches_that_are_not(inputs: str, body: str, reason: str) -> None:
    assert reason in _reason(model(inputs, body), as_products.Patches)


def test_float32_stays(tmp_path: Path) -> None:
    text = IMAGE.replace("float16", "float")
    source = graphs.graph(text, "float[] y", PATCHES.format(bias=""), constants=SHAPES)
    found = source.clone()
    assert rewrite(found, tmp_path).applied["tokens"] == 0
    assert "Conv" in ops(found)


def _reason(source: ir.Model, rule: type[RewriteRuleClassBase]) -> str:
    """Why the rule leaves the Transpose alone."""
    tracer, compiled = MatchingTracer(), rule.rule()
    transpose = next(n for n in source.graph if n.op_type == "Transpose")
    assert not compiled.match(source, source.graph, transpose, tracer=tracer)
    return str(tracer.best_matches_map[compiled][0].match_result.reason)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("kernel", "attributes", "shape"),
    [
        ("image", "<pads = [0, 0, 0, 0]>", (3, 6, 8)), ("line", "<strides = [2]>", (3, 9)),
        ("volume", "", (3, 2, 3, 4)), ("image", "<pads = [2, 1, 2, 3], strides = [3, 2]>", (3, 3, 5)),
        ("image", '<auto_pad = "SAME_UPPER", strides = [4, 6]>', (3, 4, 6)),
        ("image", '<auto_pad = "SAME_LOWER", strides = [3, 5]>', (3, 3, 5)),
        ("tap", "<pads = [1, 1], strides = [2]>", (3, 2)),
    ],
)  # fmt: skip
def test_a_window_that_covers_its_input(
    kernel: str, attributes: str, shape: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    (tmp_path / "gpu").mkdir()
    image = f"float16[n, {', '.join(map(str, shape))}] x, {WEIGHTS}"
    source = model(image, f"c = Conv{attributes}(x, {kernel}, bias) y = LeakyRelu<alpha = 0.2>(c)", dtype=dtype)
    found = source.clone()
    assert rewrite(found, tmp_path).applied["tokens"] == 1
    assert [op for op in ops(found) if op != "Reshape"] == ["MatMul", "Add", "LeakyRelu"]
    assert ops(found)[-1] == "Reshape"  # after the activation, which the product applies
    check(source, found, (1, *shape), (5, *shape))
    found = source.clone()
    rewrite(found, tmp_path / "gpu", gpu=True)
    turned = len(shape) > 2 and any(side > 1 for side in shape[1:])
    assert ops(found).count("Transpose") == turned  # of images and volumes, which channels last needs none for
    check(source, found, (1, *shape), (5, *shape))


def test_a_normalization_is_folded_before(tmp_path: Path) -> None:
    body = "c = Conv(x, image, bias) n = BatchNormalization(c, bias, bias, bias, variance) y = Relu(n)"
    source = model(IMAGE, body)
    found = source.clone()
    assert rewrite(found, tmp_path).applied["fold"] == 1
    assert ops(found) == ["Reshape", "MatMul", "Add", "Relu", "Reshape"]
    check(source, found, (3, 3, 6, 8))


@pytest.mark.parametrize(
    ("shape", "conv"),
    [
        ("3, 6, 9", "Conv(x, image)"), ("3, n, 8", "Conv(x, image)"), ("3, 1, 1", "Conv(x, pixel)"),
        ("3, 6, 8", "Conv<pads = [1, 0, 1, 0]>(x, image)"), ("6, 6, 8", "Conv<group = 2>(x, image)"),
        ("3, 6, 8", "Conv<dilations = [1, 1], auto_pad = \"SAME_UPPER\">(x, image)"),
        ("3, 7, 8", "Conv<strides = [2, 1]>(x, image)"),
        ("3, 1, 8", "Conv<pads = [5, 7, 5, 7], dilations = [2, 2]>(x, image)"),
        ("3, 11, 15", "Conv<dilations = [2, 2]>(x, image)"),
    ],
)  # fmt: skip
def test_kernels_that_stay(shape: str, conv: str, tmp_path: Path) -> None:
    source = model(f"float16[b, {shape}] x, {WEIGHTS}", f"y = {conv}")
    rewrite(source, tmp_path)
    assert "Conv" in ops(source) and "MatMul" not in ops(source)


def test_one_weight_is_stored_once(tmp_path: Path) -> None:
    """Two inputs of one size share the matrix; where another size needs other rows of it, the convolutions stay."""
    inputs, sizes = f"float16[n, 3, 6, 8] x, float16[n, 3, {{}}, 8] z, {WEIGHTS}", {6: 0, 5: 2}
    for height, stay in sizes.items():
        body = f"a = Conv(x, image) b = Conv<pads = [{6 - height}, 0, 0, 0]>(z, image) y = Add(a, b)"
        source = model(inputs.format(height), body)
        found = source.clone()
        (tmp_path / str(height)).mkdir()
        rewrite(found, tmp_path / str(height))
        assert ops(found).count("Conv") == stay
        assert sum("image" in name for name in found.graph.initializers) == 1
        rng = np.random.default_rng(1)
        feeds = {v.name: rng.standard_normal((2, *v.shape[1:])).astype("f2") for v in source.graph.inputs}  # type: ignore[union-attr]
        (expected,), (result,) = graphs.run(source, feeds), graphs.run(found, feeds)
        np.testing.assert_allclose(result, expected, atol=8e-3, rtol=4e-3)
