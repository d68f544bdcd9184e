"""Operators of ONNX Runtime's optimizers are put back where that takes fewer launches, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxopt
from cases.models import fuse, graph, outline
from onnxopt.graph.normalize import normalize
from onnxopt.graph.passes.contrib import decompose
from onnxopt.graph.passes.contrib.restore import restore, restore_attention
from onnxopt.graph.rewrite import rewrite, to_portable
from tests.support.graphs import hold, run

_M = "com.microsoft."
_RNG = np.random.default_rng(0)
_WEIGHTS = {
    "words": (9, 32), "places": (7, 32), "types": (2, 32), "g": (32,), "b": (32,), "wa": (32, 96), "ba": (96,),
    "w": (32, 32), "wi": (32, 64), "bi": (64,), "wo": (64, 32),
}  # fmt: skip
_EMBED = f"e, n = {_M}EmbedLayerNormalization(i, t, words, places, types, g, b, m)"
_CASTS = "i = Cast<to = 6>(ids) t = Cast<to = 6>(kinds) m = Cast<to = 6>(mask)"
_INPUTS = "int64[B, S] ids, int64[B, S] kinds, int64[B, S] mask"
_LAYER = (
    f"a = {_M}Attention<num_heads = 2>(e, wa, ba, n) p = MatMul(a, w) "
    f"s = {_M}SkipLayerNormalization(p, e, g, b, b) h = MatMul(s, wi) f = {_M}BiasGelu(h, bi) o = MatMul(f, wo) "
    f"y = {_M}SkipLayerNormalization(o, s, g, b, b)"
)
FEEDS = {
    "ids": np.array([[8, 0, 3, 1], [2, 2, 7, 5]]), "kinds": np.array([[0, 1, 1, 0], [0, 0, 1, 1]]),
    "mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]]),
}  # fmt: skip


def _model(inputs: str, body: str, result: str = "float[B, S, 32] y") -> ir.Model:
    declared = {n: d for n, d in _WEIGHTS.items() if any(n in call.replace(")", ",").replace(" ", "").split(",")
                for call in body.split("("))}  # fmt: skip
    weights = "".join(f", float[{', '.join(map(str, dims))}] {name}" for name, dims in declared.items())
    model = graph(inputs + weights, result, body, contrib=True)
    hold(model, {name: _RNG.normal(size=dims, scale=0.3) for name, dims in declared.items()}, np.float32)
    return model


def _operators(model: ir.Model, domain: str = "com.microsoft") -> list[str]:
    return [node.op_type for node in model.graph if node.domain == domain]


def _fused(model: ir.Model) -> ir.Model:
    """Normalized, and with kernels as functions."""
    normalized = normalize(model).model
    outline(normalized, fuse(normalized))
    return normalized


def test_embeddings_are_put_back_with_the_casts_of_their_operands() -> None:
    body = f"{_CASTS} {_EMBED} y = MatMul(e, w) k = Identity(n)"
    model = _model(_INPUTS, body, "float[B, S, 32] y, int32[B] k")
    expected, fused = run(model, FEEDS), _fused(model)
    assert not _operators(fused)
    assert restore(fused) == 1
    assert _operators(fused) == ["EmbedLayerNormalization"]
    assert [node.op_type for node in fused.graph].count("Cast") == 3
    for result, wanted in zip(run(fused, FEEDS), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-5)


def test_what_one_kernel_computes_stays_a_kernel() -> None:
    model = _fused(_model("float[B, S, 64] x", f"f = {_M}BiasGelu(x, bi) y = MatMul(f, wo)"))
    assert restore(model) == 0
    assert not _operators(model)


@pytest.mark.parametrize("left_out", [False, True], ids=["recognised", "left out"])
def test_attention_is_put_back_with_its_mask(left_out: bool, tmp_path: Path) -> None:
    body = f"a = {_M}Attention<num_heads = 2>(x, wa, ba, n) y = MatMul(a, w)"
    model = _model("float[B, S, 32] x, int32[B] n", body)
    feeds = {"x": _RNG.normal(size=(2, 4, 32)).astype(np.float32), "n": np.array([3, 4], np.int32)}
    (expected,) = run(model, feeds)
    normalized = normalize(model).model
    rewrite(normalized, tmp_path, leave_out=["attention"] if left_out else [])
    assert restore_attention(normalized, recognises=not left_out) == 1
    (attention,) = (node for node in normalized.graph if node.op_type == "Attention")
    assert [value.name for value in attention.inputs] == ["x", "wa", "ba", "n"]
    assert [node.op_type for node in normalized.graph] == ["Attention", "MatMul"]
    np.testing.assert_allclose(run(normalized, feeds)[0], expected, rtol=2e-5, atol=2e-5)


def test_attention_that_a_rule_maps_to_another_operator_is_not_put_back(tmp_path: Path) -> None:
    body = f"h = Cast<to = 10>(x) wh = Cast<to = 10>(wa) a = {_M}Attention<num_heads = 2>(h, wh) y = Cast<to = 1>(a)"
    normalized = normalize(_model("float[B, S, 32] x", body)).model
    rewrite(normalized, tmp_path, usual={"S": 16})
    assert _operators(normalized) == ["MultiHeadAttention"]
    assert restore_attention(normalized, recognises=True) == restore(normalized) == 0


def test_the_portable_form_keeps_attention_with_inputs_of_its_own(tmp_path: Path) -> None:
    """The third input of Attention is a mask and that of MultiHeadAttention a bias."""
    body = f"a = {_M}Attention<num_heads = 2>(x, wa, ba, n) y = MatMul(a, w)"
    model = normalize(_model("float[B, S, 32] x, int32[M] n", body)).model
    rewrite(model, tmp_path)
    to_portable(model)
    assert _operators(model) == ["Attention"]


def test_values_that_something_else_reads_stay() -> None:
    """The sum is read twice: putting the norm back would compute it once more."""
    body = f"s, , , t = {_M}SkipLayerNormalization(x, x, g, b) u = Neg(t) y = Add(s, u)"
    model = _fused(_model("float[B, S, 32] x", body))
    assert restore(model) == 0


@pytest.mark.parametrize("precision", [None, "float16"])
def test_a_layer_of_bert_is_optimized_in_both_precisions(precision: str | None, tmp_path: Path) -> None:
    """BiasGelu of two dtypes: ONNX Runtime did not open what --precision float16 wrote."""
    model = ir.to_proto(_model(_INPUTS, f"{_CASTS} {_EMBED} {_LAYER}"))
    changes = {} if precision is None else {"precision": precision}
    written = onnxopt.optimize(model, tmp_path / "artifact", archs=(), **changes)
    assert written.manifest.verify.status == "passed"
    assert not written.manifest.left_out  # the kernel of the mask also runs where there is no token
    nodes = [node.op_type for node in ir.load(tmp_path / "artifact" / "model.onnx").graph]
    assert not {"BiasGelu", "Softmax"} & set(nodes)


def test_what_differs_as_standard_operators_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider may compute an operator in its own way: then no rule sees the standard form, and nothing is lost."""
    wrong = {"QuickGelu": lambda op: (op("Tanh", op.node.inputs[0]),)}
    monkeypatch.setattr(decompose, "_DECOMPOSITIONS", wrong)
    ir.save(_model("float[B, S, 64] x", f"f = {_M}QuickGelu(x) y = MatMul(f, wo)"), tmp_path / "m.onnx")
    manifest = onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "made", archs=()).manifest
    assert manifest.verify.status == "passed"
    (note,) = [note for note in manifest.notes if "operators of com.microsoft stay as they are" in note]
    assert "the normalized model differs from the original" in note
    made = onnx.load(tmp_path / "made" / "model.onnx")
    nodes = [node.op_type for graph in (made.graph, *made.functions) for node in graph.node]
    assert "QuickGelu" in nodes and "Tanh" not in nodes
