"""Operators of ONNX Runtime's optimizers become standard ones: equal results, what stays, and what is put back."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.normalize import normalize
from tests.support.graphs import graph, run

_M = "com.microsoft."
_QKV = "float[B, S, 16] x, float[16, 48] w, float[48] b"
_HEADS = "float[B, S, 16] q, float[B, T, 16] k, float[B, T, 16] v"
_EMBED = (
    "int32[B, S] ids, int32[B, S] kinds, float[9, 8] words, float[7, 8] places, float[2, 8] types, float[8] g, "
    "float[8] beta"
)
_SKIP = "float[B, 3, 8] x, float[B, 3, 8] skip, float[8] g"
_CONV = "float[B, 4, 6, 6] x, float[4, 2, 3, 3] w, float[4] b"
_CONV_ATTRIBUTES = "group = 2, pads = [1, 1, 1, 1], kernel_shape = [3, 3]"
_TABLES = "float[5, 4] cos, float[5, 4] sin"
# Inputs, and the call: what ONNX Runtime's CPU provider runs.
RUN = {
    "BiasGelu": ("float[B, 3, 8] x, float[8] b", "BiasGelu(x, b)"),
    "Gelu": ("float[B, 8] x", "Gelu(x)"),
    "FastGelu": ("float[B, 8] x", "FastGelu(x)"),
    "FastGelu with a bias": ("float[B, 8] x, float[8] b", "FastGelu(x, b)"),
    "QuickGelu": ("float[B, 8] x", "QuickGelu(x)"),
    "QuickGelu, alpha 1": ("float[B, 8] x", "QuickGelu<alpha = 1.0>(x)"),
    "FusedMatMul": ("float[B, 3, 4] x, float[4, 5] w", "FusedMatMul<alpha = 0.3>(x, w)"),
    "FusedMatMul, A turned": ("float[B, 4, 3] x, float[B, 4, 5] w", "FusedMatMul<transA = 1>(x, w)"),
    "FusedMatMul, both turned": ("float[2, B, 4, 3] x, float[5, 4] w", "FusedMatMul<transA = 1, transB = 1>(x, w)"),
    "FusedMatMul, batches of A": ("float[3, B, 4] x, float[B, 4, 5] w", "FusedMatMul<transBatchA = 1>(x, w)"),
    "FusedMatMul, batches of four dims": (
        "float[3, 2, B, 4] x, float[5, 2, B, 4] w",
        "FusedMatMul<transBatchA = 1, transBatchB = 1, transB = 1>(x, w)",
    ),
    "FusedMatMul, batches of both, turned": (
        "float[4, 2, B, 3] x, float[4, 2, B, 5] w",
        "FusedMatMul<transBatchA = 1, transA = 1, transBatchB = 1>(x, w)",
    ),
    "TransposeMatMul": ("float[B, 3, 4] x, float[B, 5, 4] w", "TransposeMatMul<transB = 1, alpha = 2.0>(x, w)"),
    "FusedGemm": (
        "float[B, 4] x, float[5, 4] w, float[5] b",
        'FusedGemm<transB = 1, alpha = 0.5, beta = 2.0, activation = "LeakyRelu", activation_alpha = 0.2>(x, w, b)',
    ),
    "FusedGemm without C": ("float[B, 4] x, float[4, 5] w", 'FusedGemm<activation = "Tanh">(x, w)'),
    "FusedConv": (_CONV, f'FusedConv<{_CONV_ATTRIBUTES}, activation = "Relu">(x, w, b)'),
    "FusedConv, Clip": (
        _CONV,
        f'FusedConv<{_CONV_ATTRIBUTES}, activation = "Clip", activation_params = [0.1, 0.6]>(x, w, b)',
    ),
    "FusedConv, HardSigmoid": (
        _CONV,
        f'FusedConv<{_CONV_ATTRIBUTES}, activation = "HardSigmoid", activation_params = [0.3, 0.4]>(x, w)',
    ),
    "FusedConv with a residual": (
        f"{_CONV}, float[B, 4, 6, 6] z",
        f'FusedConv<{_CONV_ATTRIBUTES}, activation = "LeakyRelu", activation_params = [0.1]>(x, w, b, z)',
    ),
    "SkipLayerNormalization": (_SKIP, "SkipLayerNormalization(x, skip, g)"),
    "SkipLayerNormalization, all": (
        f"{_SKIP}, float[8] beta, float[8] b",
        "SkipLayerNormalization<epsilon = 0.1>(x, skip, g, beta, b)",
    ),
    "SkipLayerNormalization, one skip": (
        "float[B, 3, 8] x, float[1, 3, 8] skip, float[8] g, float[8] beta",
        "SkipLayerNormalization(x, skip, g, beta)",
    ),
    "SkipLayerNormalization in float16": (
        "float16[B, 3, 8] x, float16[B, 3, 8] skip, float16[8] g, float16[8] beta",
        "SkipLayerNormalization(x, skip, g, beta)",
    ),
    "SkipSimplifiedLayerNormalization": (
        f"{_SKIP}, float[8] b",
        "SkipSimplifiedLayerNormalization<epsilon = 0.01>(x, skip, g, b)",
    ),
    "SkipSimplifiedLayerNormalization in float16": (
        "float16[B, 3, 8] x, float16[B, 3, 8] skip, float16[8] g",
        "SkipSimplifiedLayerNormalization(x, skip, g)",
    ),
    "EmbedLayerNormalization": (_EMBED, "EmbedLayerNormalization(ids, kinds, words, places, types, g, beta)"),
    "EmbedLayerNormalization, positions": (
        f"{_EMBED}, int32[B, S] at",
        "EmbedLayerNormalization<epsilon = 0.1>(ids, kinds, words, places, types, g, beta, , at)",
    ),
    "EmbedLayerNormalization, no segments": (_EMBED, "EmbedLayerNormalization(ids, , words, places, , g, beta)"),
    "Attention": (_QKV, "Attention<num_heads = 2>(x, w, b)"),
    "Attention, scale": (_QKV, "Attention<num_heads = 4, scale = 0.7>(x, w, b)"),
    "Attention of other values": (
        "float[B, S, 16] x, float[16, 40] w, float[40] b",
        "Attention<num_heads = 2, qkv_hidden_sizes = [16, 16, 8]>(x, w, b)",
    ),
    "Attention, causal": (_QKV, "Attention<num_heads = 2, unidirectional = 1>(x, w, b)"),
    "Attention, lengths": (f"{_QKV}, int32[B] mask", "Attention<num_heads = 2>(x, w, b, mask)"),
    "Attention, causal, lengths": (
        f"{_QKV}, int32[B] mask",
        "Attention<num_heads = 2, unidirectional = 1>(x, w, b, mask)",
    ),
    "Attention, keys": (f"{_QKV}, int32[B, S] mask", "Attention<num_heads = 2>(x, w, b, mask)"),
    "Attention, filter value": (
        f"{_QKV}, int32[B, S] mask",
        "Attention<num_heads = 2, mask_filter_value = -3.0>(x, w, b, mask)",
    ),
    "Attention, keys of each query": (f"{_QKV}, int32[B, S, S] mask", "Attention<num_heads = 2>(x, w, b, mask)"),
    "Attention with a bias of scores": (
        f"{_QKV}, float[1, 2, S, S] bias",
        "Attention<num_heads = 2>(x, w, b, , , bias)",
    ),
    "MultiHeadAttention": (_HEADS, "MultiHeadAttention<num_heads = 2>(q, k, v)"),
    "MultiHeadAttention, all": (
        f"{_HEADS}, float[48] b, int32[B, T] mask, float[B, 2, S, T] bias",
        "MultiHeadAttention<num_heads = 2, scale = 0.4>(q, k, v, b, mask, bias)",
    ),
    "MultiHeadAttention, keys in heads": (
        "float[B, S, 16] q, float[B, 2, T, 8] k, float[B, 2, T, 8] v",
        "MultiHeadAttention<num_heads = 2>(q, k, v)",
    ),
    "MultiHeadAttention, causal": (
        "float[B, S, 16] q, float[B, S, 16] k, float[B, S, 16] v",
        "MultiHeadAttention<num_heads = 2, unidirectional = 1>(q, k, v)",
    ),
    "RotaryEmbedding": (
        f"float[B, S, 16] x, int64[B, S] at, {_TABLES}",
        "RotaryEmbedding(x, at, cos, sin)",
    ),
    "RotaryEmbedding in heads": (
        f"float[B, 2, S, 8] x, int64[1] at, {_TABLES}",
        "RotaryEmbedding(x, at, cos, sin)",
    ),
}  # fmt: skip
_SIZES = {"B": 2, "S": 3, "T": 4}
_INTEGERS = {"mask": [[1, 1, 0, 1], [0, 1, 1, 1]], "ids": [[8, 0, 3], [2, 2, 7]], "kinds": [[0, 1, 1], [0, 0, 1]],
             "at": [[2, 0, 1], [3, 1, 1]]}  # fmt: skip


def _feeds(model: ir.Model, constant: bool) -> dict[str, np.ndarray]:
    """Random inputs. constant: two-dim and one-dim floats become initializers of the model, as weights are."""
    rng, feeds = np.random.default_rng(0), {}
    for value in list(model.graph.inputs):
        dims = [d if isinstance(d, int) else _SIZES[str(d)] for d in value.shape]
        name, dtype = str(value.name), value.dtype.numpy()
        if name in _INTEGERS and len(dims) == 1:
            array = np.array([2, 3][: dims[0]] if name == "mask" else [1])
        elif name in _INTEGERS and len(dims) == 3:
            array = rng.integers(0, 2, dims)
        elif name in _INTEGERS:
            array = np.array(_INTEGERS[name])[:, : dims[1]]
        else:
            array = rng.normal(size=dims)
        feeds[name] = array.astype(dtype)
        if constant and len(dims) < 3 and value.dtype.is_floating_point() and "B" not in map(str, value.shape):
            model.graph.inputs.remove(value)
            value.const_value = ir.Tensor(feeds.pop(name), name=name)
            model.graph.register_initializer(value)
    return feeds


def _model(inputs: str, call: str, results: str = "y") -> ir.Model:
    """results: those of the node; y and total are the model's."""
    results = "y, n" if call.startswith("Embed") else results  # ONNX Runtime insists on both
    dtype = "float16" if inputs.startswith("float16") else "float"
    outputs = ", ".join(f"{dtype}[] {name}" for name in results.split(", ") if name in ("y", "total"))
    model = graph(inputs, outputs, f"{results} = {_M}{call}", contrib=True)
    for value in model.graph.outputs:
        value.shape = None
    return model


def _operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.domain == "com.microsoft"]


@pytest.mark.parametrize("constant", [True, False], ids=["weights", "operands"])
@pytest.mark.parametrize("name", RUN)
def test_results_are_those_of_onnx_runtime(name: str, constant: bool) -> None:
    model = _model(*RUN[name])
    feeds = _feeds(model, constant)
    (expected,) = run(model, feeds)
    (result,) = run(_decomposed(model), feeds)
    tolerance = 2e-3 if expected.dtype == np.float16 else 2e-5
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def test_constant_tables_are_doubled_once() -> None:
    body = f"q = {_M}RotaryEmbedding(x, at, cos, sin) y = {_M}RotaryEmbedding(q, at, cos, sin)"
    model = graph(f"float[B, S, 16] x, int64[B, S] at, {_TABLES}", "float[] y", body, contrib=True)
    feeds = _feeds(model, True)
    (expected,) = run(model, feeds)
    (result,) = run(normalized := _decomposed(model), feeds)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)
    tables = {node.inputs[0] for node in normalized.graph if node.op_type == "Gather"}
    assert {value.name: list(value.shape or ()) for value in tables if value} == {
        "cos/twice": [5, 8],
        "sin/twice": [5, 8],
    }
    assert sum(node.op_type == "Concat" for node in normalized.graph) == 2  # of x and q


def _decomposed(model: ir.Model) -> ir.Model:
    normalized = normalize(model).model
    assert not _operators(normalized)
    return normalized


@pytest.mark.parametrize("operator", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_sum_that_is_normalized_is_a_result_too(operator: str) -> None:
    last = ", float[8] beta, float[8] b" if operator.startswith("SkipL") else ", float[8] b"
    call = f"{operator}(x, skip, g, {'beta, b' if 'beta' in last else 'b'})"
    model = _model(_SKIP + last, call, "y, , , total")
    feeds = _feeds(model, True)
    for result, expected in zip(run(model, feeds), run(_decomposed(model.clone()), feeds), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


def test_the_number_of_tokens_is_a_result_of_embeddings() -> None:
    call = "EmbedLayerNormalization(ids, kinds, words, places, types, g, beta, mask)"
    model = graph(f"{_EMBED}, int32[B, S] mask", "float[] y, int32[] n", f"y, n = {_M}{call}", contrib=True)
    for value in model.graph.outputs:
        value.shape = None
    feeds = _feeds(model, True)
    expected = run(model, feeds)
    assert expected[1].tolist() == [2, 2]
    for result, wanted in zip(run(_decomposed(model), feeds), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def _group_norm(x: np.ndarray, g: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Of two groups of the last axis, with SiLU."""
    rows = x.reshape(len(x), -1, 2, x.shape[-1] // 2)
    centered = rows - rows.mean((1, 3), keepdims=True)
    normal = (centered / np.sqrt((centered**2).mean((1, 3), keepdims=True) + 1e-5)).reshape(x.shape) * g + beta
    return normal / (1 + np.exp(-normal))


_MAPS = "float[B, 3, 5, 8] x, float[8] g, float[8] beta"
_GROUPS = "groups = 2, activation = 1"
# What only CUDA kernels run: inputs, the call, and the result by numpy.
BY_NUMPY: dict[str, tuple[str, str, Callable[..., np.ndarray]]] = {
    "BiasAdd": ("float[B, 3, 8] x, float[8] b, float[B, 3, 8] s", "BiasAdd(x, b, s)", lambda x, b, s: x + b + s),
    "BiasSplitGelu": (
        "float[B, 3, 8] x, float[8] b", "BiasSplitGelu(x, b)", lambda x, b: (x + b)[..., :4] * _gelu((x + b)[..., 4:])
    ),
    "BiasSoftmax": (
        "float[B, 2, 3, 5] x, float[B, 1, 1, 5] b", "BiasSoftmax<axis = 3, is_inner_broadcast = 1>(x, b)",
        lambda x, b: np.exp(x + b) / np.exp(x + b).sum(-1, keepdims=True),
    ),
    "GroupNorm": (_MAPS, f"GroupNorm<{_GROUPS}>(x, g, beta)", _group_norm),
    "GroupNorm, channels second": (
        "float[B, 8, 3, 5] x, float[8] g, float[8] beta", f"GroupNorm<{_GROUPS}, channels_last = 0>(x, g, beta)",
        lambda x, g, beta: _group_norm(x.transpose(0, 2, 3, 1), g, beta).transpose(0, 3, 1, 2),
    ),
    "SkipGroupNorm": (
        f"{_MAPS}, float[B, 8] skip, float[8] b", f"SkipGroupNorm<{_GROUPS}>(x, g, beta, skip, b)",
        lambda x, g, beta, skip, b: _group_norm(x + skip[:, None, None] + b, g, beta),
    ),
    "NhwcConv": (
        "float[B, 5, 6, 4] x, float[8, 1, 1, 4] w, float[8] b", "NhwcConv<kernel_shape = [1, 1]>(x, w, b)",
        lambda x, w, b: x @ w[:, 0, 0].T + b,
    ),
    "NhwcFusedConv": (
        "float[B, 5, 6, 4] x, float[8, 4, 1, 1] w, float[8] b, float[B, 5, 6, 8] z",
        'NhwcFusedConv<activation = "Relu">(x, w, b, z)',
        lambda x, w, b, z: np.maximum(x @ w[:, :, 0, 0].T + b + z, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BY_NUMPY)
def test_results_of_operators_that_no_cpu_kernel_runs(name: str) -> None:
    inputs, call, expected = BY_NUMPY[name]
    model = _model(inputs, call)
    feeds = _feeds(model, False)
    np.testing.assert_allclose(run(_decomposed(model), feeds)[0], expected(**feeds), rtol=2e-5, atol=2e-5)


_PAST = "float[2, B, 2, P, 8] past"
# Operators without a standard form here, each with what is in the way.
STAYS = {
    "a cache": (f"{_QKV}, {_PAST}", "Attention<num_heads = 2>(x, w, b, , past)"),
    "rotary embedding inside": (_QKV, "Attention<num_heads = 2, do_rotary = 1>(x, w, b)"),
    "two numbers a sequence": (f"{_QKV}, int32[M] mask", "Attention<num_heads = 2>(x, w, b, mask)"),
    "a mask of four dims": (f"{_QKV}, int32[B, 1, S, S] mask", "Attention<num_heads = 2>(x, w, b, mask)"),
    "packed q, k and v": ("float[B, S, 2, 3, 8] q", "MultiHeadAttention<num_heads = 2>(q)"),
    "causal of other keys": (_HEADS, "MultiHeadAttention<num_heads = 2, unidirectional = 1>(q, k, v)"),
    "past keys": (
        f"{_HEADS}, float[B, 2, P, 8] pk, float[B, 2, P, 8] pv",
        "MultiHeadAttention<num_heads = 2>(q, k, v, , , , pk, pv)",
    ),
    "pairs": (f"float[B, S, 16] x, int64[B, S] at, {_TABLES}", "RotaryEmbedding<interleaved = 1>(x, at, cos, sin)"),
    "a part of each head": (
        f"float[B, 2, S, 16] x, int64[1] at, {_TABLES}",
        "RotaryEmbedding(x, at, cos, sin)",
    ),
    "an activation of no name": ("float[B, 4] x, float[4, 5] w", 'FusedGemm<activation = "Other">(x, w)'),
    "no parameter": ("float[B, 4] x, float[4, 5] w", 'FusedGemm<activation = "LeakyRelu">(x, w)'),
    "softmax of several axes": (
        "float[B, 2, 3, 5] x, float[B, 1, 3, 5] b",
        "BiasSoftmax<axis = 2, is_inner_broadcast = 1>(x, b)",
    ),
    "caches": (_HEADS, "GroupQueryAttention<num_heads = 2, kv_num_heads = 2>(q, k, v)"),
}


@pytest.mark.parametrize("name", STAYS)
def test_operators_stay_where_their_meaning_is_not_known(name: str) -> None:
    model = normalize(_model(*STAYS[name])).model
    assert len(model.graph) == len(_operators(model)) == 1


def test_rotary_embedding_stays_before_attention_that_stays() -> None:
    body = (
        f"r = {_M}RotaryEmbedding(q, at, cos, sin) y = {_M}GroupQueryAttention<num_heads = 2, kv_num_heads = 2>"
        "(r, k, v, , , n, t)"
    )
    inputs = f"{_HEADS}, int64[B, S] at, {_TABLES}, int32[B] n, int32 t"
    normalized = normalize(graph(inputs, "float[B, S, 16] y", body, contrib=True)).model
    assert _operators(normalized) == ["RotaryEmbedding", "GroupQueryAttention"]


def test_operators_stay_where_the_deviations_of_rows_are_read() -> None:
    model = graph(_SKIP, "float[] y, float[] d", f"y, , d = {_M}SkipLayerNormalization(x, skip, g)", contrib=True)
    assert _operators(normalize(model).model) == ["SkipLayerNormalization"]


def test_operators_stay_below_the_opset_of_gelu() -> None:
    body = f"z = {_M}Gelu(x) s = onnxopt.test.Other(z) y = Neg(s)"
    model = graph("float[B, 8] x", "float[] y", body, contrib=True, opset=17)
    model.opset_imports["onnxopt.test"] = 1
    assert _operators(normalize(model, opset=17).model) == ["Gelu"]


def test_operators_of_one_cpu_are_named() -> None:
    body = "a = com.microsoft.nchwc.ReorderInput(x) y = com.microsoft.nchwc.ReorderOutput<channels = 8>(a)"
    model = graph("float[B, 8, 4, 4] x", "float[B, 8, 4, 4] y", body)
    model.opset_imports["com.microsoft.nchwc"] = 1
    (note,) = normalize(model).notes
    assert note.startswith("2 nodes of com.microsoft.nchwc stay")
