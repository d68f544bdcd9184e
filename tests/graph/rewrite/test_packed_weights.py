"""Products of packed codes that read one value become one product, and nothing else of the model changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.packed_weights import Products, Weight
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.products import packed_weights
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.infer import InferShapesPass
from tests.support.decoders import genai_graphs

DEPTH = 64


def gated(gate: Weight, up: Weight, dtype: str = "float32", **settings: int) -> onnx.ModelProto:
    """silu(gate(x)) * up(x); settings: attributes of up's product."""
    products = Products()
    products.product("gate", "x", gate)
    products.product("up", "x", up, **settings)
    products.node("Sigmoid", ["gate"], "sigmoid")
    products.node("Mul", ["gate", "sigmoid"], "silu")
    products.node("Mul", ["silu", "up"], "y")
    return products.model({"x": (dtype, ["s", DEPTH])}, {"y": dtype})


def merged(proto: onnx.ModelProto, folder: Path) -> ir.Model:
    model = ir.serde.deserialize_model(proto)
    InferShapesPass()(model)
    rewrite(model, folder)
    ir.external_data.load_to_model(model)
    return model


def products_of(model: ir.Model) -> list[ir.Node]:
    return [n for n in model.graph if n.op_type == "MatMulNBits"]


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["middle", "codes"])
def test_gate_and_up(tmp_path: Path, bits: int, zeros: str) -> None:
    weight = Weight(24, DEPTH, bits, zeros=zeros, dtype="float32")
    before = gated(weight, weight)
    model = merged(before, tmp_path)
    (node,) = products_of(model)
    assert node.attributes["N"].as_int() == 48 and node.domain == "com.microsoft"
    assert [tuple(v.const_value.shape) for v in node.inputs[1:3]] == [(48, 2, 4 * bits), (48, 2)]
    feeds = {"x": np.random.default_rng(1).standard_normal((3, DEPTH)).astype(np.float32)}
    np.testing.assert_allclose(run(ir.to_proto(model), feeds), run(before, feeds), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("up", "settings"),
    [
        (Weight(24, DEPTH, 8, dtype="float32"), {}),
        (Weight(24, DEPTH, group=64, dtype="float32"), {}),
        (Weight(24, DEPTH, zeros="codes", dtype="float32"), {}),
        (Weight(24, DEPTH, dtype="float32"), {"accuracy_level": 4}),
    ],
)
def test_weights_that_are_packed_in_different_ways_stay(tmp_path: Path, up: Weight, settings: dict[str, int]) -> None:
    proto = gated(Weight(24, DEPTH, dtype="float32"), up, **settings)
    model = merged(proto, tmp_path)
    assert [n.name for n in products_of(model)] == ["gate", "up"]


def test_a_weight_with_another_reader_stays(tmp_path: Path) -> None:
    proto = gated(Weight(24, DEPTH, dtype="float32"), Weight(24, DEPTH, dtype="float32"))
    up = next(n for n in proto.graph.node if n.name == "up")
    up.input[1] = "gate.0"  # the codes of both
    assert len(products_of(merged(proto, tmp_path))) == 2


def test_a_product_with_a_bias_of_its_own_stays(tmp_path: Path) -> None:
    proto = gated(Weight(24, DEPTH, dtype="float32"), Weight(24, DEPTH, dtype="float32"))
    up = next(n for n in proto.graph.node if n.name == "up")
    up.input.extend(["", "", "up.2"])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(24, np.float32), "up.2"))
    assert len(products_of(merged(proto, tmp_path))) == 2


def test_what_is_not_merged_stays_as_it_is(tmp_path: Path) -> None:
    products = Products()
    products.product("y", "x", Weight(24, DEPTH, zeros="codes"), accuracy_level=0)
    before = products.model({"x": ("float16", ["s", DEPTH])}, {"y": "float16"})
    model = ir.serde.deserialize_model(before)
    kept = ir.to_proto(model).SerializeToString()
    with packed_weights.as_products(model.graph):
        (node,) = model.graph
        assert (node.op_type, len(node.inputs)) == ("MatMul", 2)
        assert packed_weights.of(node.inputs[1]) is not None
        with pytest.raises(AssertionError, match="packed"):
            node.inputs[1].const_value.numpy()
    assert ir.to_proto(model).SerializeToString() == kept


def test_large_weights_are_joined_in_a_file(tmp_path: Path) -> None:
    rows = [np.full((600, 8, 256), k, np.uint8) for k in range(2)]
    joined = Joiner(tmp_path).rows([ir.Tensor(a) for a in rows], "codes")
    assert isinstance(joined, ir.ExternalTensor)
    np.testing.assert_array_equal(joined.numpy(), np.concatenate(rows))


def test_projections_of_a_genai_graph(tmp_path: Path) -> None:
    proto = genai_graphs.genai(layers=2, zero_points=True, dtype=onnx.TensorProto.FLOAT16)
    model = merged(proto, tmp_path)
    assert sorted(n.attributes["N"].as_int() for n in products_of(model)) == sorted([50, *[128, 64, 192, 64] * 2])
    (attention, _) = (n for n in model.graph if n.op_type == "GroupQueryAttention")
    assert attention.inputs[1] is None and attention.inputs[2] is None
