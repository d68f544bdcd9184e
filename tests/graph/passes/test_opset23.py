"""Operators of opset 23 as those of opset 20: the same results as onnx's reference evaluator, in all their forms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxopt.graph import normalize
from tests.support.graphs import run

_DTYPES = {np.dtype(np.float32): 1, np.dtype(np.bool_): 9, np.dtype(np.int64): 7, np.dtype(np.float16): 10}


def _model(op_type: str, feeds: dict[str, np.ndarray], outputs: int, dynamic: bool, **attributes: object) -> ir.Model:
    names = [f"y{k}" for k in range(outputs)]
    inputs = []
    for name, array in feeds.items():
        free = (0, array.ndim - 2) if dynamic else ()
        dims = [f"{name}{k}" if k in free else size for k, size in enumerate(array.shape)]
        inputs.append(helper.make_tensor_value_info(name, _DTYPES[array.dtype], dims))
    positions = {"mask": 3, "past_k": 4, "past_v": 5}
    operands = list(feeds)
    if op_type == "Attention":
        operands = ["q", "k", "v", *(n if n in feeds else "" for n in positions)]
        while not operands[-1]:
            operands.pop()
    node = helper.make_node(op_type, operands, names, name="n", **attributes)
    first = next(iter(feeds.values()))
    infos = [helper.make_tensor_value_info(name, _DTYPES[first.dtype], None) for name in names]
    graph = helper.make_graph([node], "g", inputs, infos)
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11))


def _check(
    op_type: str, feeds: dict[str, np.ndarray], *, outputs: int = 1, dynamic: bool = False, **attributes
) -> None:
    model = _model(op_type, feeds, outputs, dynamic, **attributes)
    expected = ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)
    normalized = normalize.normalize(model).model
    assert op_type not in [node.op_type for node in normalized.graph]
    assert normalized.opset_imports[""] == 20
    limit = 2e-3 if next(iter(feeds.values())).dtype == np.float16 else 2e-6
    for actual, wanted in zip(run(normalized, feeds), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=limit, atol=limit)


def _drawn(dtype: type = np.float32, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


IN_HEADS = {"q": (2, 4, 5, 8), "k": (2, 4, 7, 8), "v": (2, 4, 7, 6)}
GROUPED = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 8)}
FLAT = {"q": (2, 5, 32), "k": (2, 7, 16), "v": (2, 7, 16)}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("shapes", "attributes"),
    [
        (IN_HEADS, {}),
        (IN_HEADS, {"scale": 0.3}),
        (GROUPED, {}),
        (FLAT, {"q_num_heads": 4, "kv_num_heads": 2}),
        (FLAT | {"k": (2, 7, 32), "v": (2, 7, 32)}, {"q_num_heads": 4, "kv_num_heads": 4}),
    ],
)
def test_attention(shapes: dict, attributes: dict, dynamic: bool) -> None:
    _check("Attention", _drawn(**shapes), dynamic=dynamic, **attributes)


@pytest.mark.parametrize("shape", [(5, 7), (2, 1, 5, 7), (2, 4, 5, 7)])
def test_masks(shape: tuple[int, ...]) -> None:
    _check("Attention", _drawn(**IN_HEADS) | _drawn(mask=shape))


def test_a_bool_mask_stays() -> None:
    """It may hide all keys of a query, which gets zeros then, where Softmax gives NaN."""
    feeds = _drawn(**IN_HEADS) | {"mask": np.random.default_rng(1).random((5, 7)) > 0.4}
    model = _model("Attention", feeds, 1, False)
    assert [node.op_type for node in normalize.normalize(model).model.graph] == ["Attention"]


def test_a_cache() -> None:
    feeds = _drawn(**IN_HEADS, past_k=(2, 4, 3, 8), past_v=(2, 4, 3, 6))
    _check("Attention", feeds, outputs=3)


def test_softmax_in_float32() -> None:
    _check("Attention", _drawn(np.float16, **IN_HEADS), softmax_precision=1)


@pytest.mark.parametrize("attributes", [{"softcap": 2.0}, {"is_causal": 1}, {"qk_matmul_output_mode": 1}])
def test_attention_that_stays(attributes: dict) -> None:
    outputs = 4 if "qk_matmul_output_mode" in attributes else 1
    model = _model("Attention", _drawn(**IN_HEADS), outputs, False, **attributes)
    assert [node.op_type for node in normalize.normalize(model).model.graph] == ["Attention"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_rotary_embedding(dynamic: bool) -> None:
    tables = _drawn(cos=(2, 5, 4), sin=(2, 5, 4))
    _check("RotaryEmbedding", _drawn(x=(2, 3, 5, 8)) | tables, dynamic=dynamic)
    _check("RotaryEmbedding", _drawn(x=(2, 5, 24)) | tables, dynamic=dynamic, num_heads=3)
    positions = {"positions": np.random.default_rng(0).integers(0, 9, (2, 5))}
    _check("RotaryEmbedding", _drawn(x=(2, 3, 5, 8), cos=(9, 4), sin=(9, 4)) | positions)


@pytest.mark.parametrize("attributes", [{"interleaved": 1}, {"rotary_embedding_dim": 4}])
def test_rotary_embedding_that_stays(attributes: dict) -> None:
    half = attributes.get("rotary_embedding_dim", 8) // 2
    model = _model(
        "RotaryEmbedding", _drawn(x=(2, 3, 5, 8), cos=(2, 5, half), sin=(2, 5, half)), 1, False, **attributes
    )
    assert [node.op_type for node in normalize.normalize(model).model.graph] == ["RotaryEmbedding"]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_norms_without_a_mean(dtype: type) -> None:
    feeds = _drawn(dtype, x=(2, 5, 8), scale=(8,))
    _check("RMSNormalization", feeds, epsilon=1e-6)
