"""Rewriting small exported models: what is left of them, that they still compute the same, and what rules refuse."""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import models
from cases.models import fuse
from onnxopt.graph import normalize, read, write
from onnxopt.graph.rewrite import rewrite, rotary, to_portable
from onnxopt.graph.rewrite.schedule import Phase, Rewriting, Step
from onnxopt.graph.shapes.infer import InferShapesPass
from onnxopt.kinds.gemm.kind import GEMM
from tests.support import graphs
from tests.support.attention.attention_graphs import Attention, ops, rewritten

_TOKENS = [(2, 16), (1, 1), (3, 33)]
GOLDEN = {
    "bert_tiny": {"Attention": 2, "MatMul": 6, "Add": 12},
    "bert_tiny_dyn": {"Attention": 2, "MatMul": 6, "Add": 12},
    "bert_tiny_fp16_dyn": {"MultiHeadAttention": 2, "Split": 2, "Attention": 0, "MatMul": 8, "Add": 14},
    "vit_tiny_fp16": {"MultiHeadAttention": 2, "Attention": 0, "Conv": 0, "MatMul": 9, "Transpose": 1, "Reshape": 2},
    "vit_tiny_dyn": {"Attention": 2, "MatMul": 6, "Transpose": 4, "Reshape": 1},
    "llama_tiny": {"MultiHeadAttention": 2, "RotaryEmbedding": 4, "MatMul": 12},
    "llama_tiny_dyn": {"MultiHeadAttention": 2, "RotaryEmbedding": 4, "MatMul": 12},
    "llama_tiny_fp16": {"MultiHeadAttention": 2, "RotaryEmbedding": 0, "MatMul": 8, "Transpose": 0},
    "llama_tiny_fp16_dyn": {"MultiHeadAttention": 2, "MatMul": 8, "Transpose": 0, "GatherND": 0, "CumSum": 0},
    "llama_decode_tiny_fp16": {"GroupQueryAttention": 2, "MatMul": 8, "Transpose": 0, "Expand": 0},
    "llama_decode_tiny_fp16_dyn": {"GroupQueryAttention": 2, "MatMul": 8, "Transpose": 0, "Where": 0},
}


def _feeds(name: str) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    if "decode" in name:
        return [_token_behind(cache, batch, rng) for batch, cache in ([(2, 7), (1, 1)] if "dyn" in name else [(2, 12)])]
    if name.startswith("vit"):
        dtype = np.float16 if "fp16" in name else np.float32
        shapes = [(2, 3, 32, 32), *([(5, 3, 32, 32)] if name.endswith("dyn") else [])]
        return [{"x": rng.standard_normal(shape).astype(dtype)} for shape in shapes]
    return [{"x": rng.integers(0, 128, shape)} for shape in (_TOKENS if name.endswith("dyn") else _TOKENS[:1])]


def _token_behind(cache: int, batch: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """One token, and keys and values of those before it: 2 layers of 2 heads of 16."""
    names = [f"past_{kind}_{layer}" for layer in range(2) for kind in ("key", "value")]
    feeds = {name: rng.standard_normal((batch, 2, cache, 16)).astype(np.float16) for name in names}
    return {"x": rng.integers(0, 128, (batch, 1)), **feeds}


@pytest.mark.models
@pytest.mark.parametrize("name", GOLDEN)
def test_exported_models(name: str, tmp_path: Path) -> None:
    model = normalize.normalize(read.load(models.path(name)).model).model
    done = rewrite(model, tmp_path)
    counts = collections.Counter(ops(model))
    assert {op: counts[op] for op in GOLDEN[name]} == GOLDEN[name]
    assert counts["Softmax"] == counts["IsNaN"] == 0
    assert done.refusals == ()
    portable = model.clone()
    to_portable(portable)
    assert {node.domain for node in portable.graph} == {""}
    write.save(model, tmp_path, others={"portable.onnx": portable})
    tolerance = 4e-3 if "fp16" in name else 1e-5
    forms = [_session(file) for file in (models.path(name), tmp_path / "model.onnx", tmp_path / "portable.onnx")]
    for feeds in _feeds(name):
        expected, *found = (form.run(None, feeds) for form in forms)
        for outputs in found:
            for one, other in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.models
@pytest.mark.parametrize("name", ["llama_tiny", "llama_tiny_dyn"])
def test_kernels_for_gpus_run_rotary_embedding_in_float32(name: str, tmp_path: Path) -> None:
    model = normalize.normalize(read.load(models.path(name)).model).model
    done = rewrite(model, tmp_path, gpu=True)
    assert done.applied["rotary"] == GOLDEN[name]["RotaryEmbedding"]
    assert "RotaryEmbedding" not in ops(model)
    write.save(model, tmp_path)
    one, other = (_session(file) for file in (models.path(name), tmp_path / "model.onnx"))
    for feeds in _feeds(name):
        for expected, result in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def _session(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@pytest.mark.models
def test_weights_take_no_more_room_than_before(tmp_path: Path) -> None:
    model = normalize.normalize(read.load(models.path("llama_tiny_fp16")).model).model
    before = _weight_bytes(model)
    rewrite(model, tmp_path)
    assert _weight_bytes(model) <= before


def _weight_bytes(model: ir.Model) -> int:
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


ROTARY = """
  a1 = Slice(x, zero, {half}, axis, step)  a2 = Slice(x, {half}, end, axis, step)
  m = Neg(a2)  r = Concat<axis = -1>(m, a1)
  {tables}
  u = Mul(x, cos)  w = Mul(sin, r)  y = Add(u, w)
"""
ROTARY_CONSTANTS = (
    "int64[1] zero = {0}, int64[1] two = {2}, int64[1] one = {1}, int64[1] end = {9223372036854775807}, "
    "int64[1] axis = {3}, int64[1] step = {1}"
)
DOUBLED = "angles = Concat<axis = -1>(f, f) cos = Cos(angles) sin = Sin(angles)"


@pytest.mark.parametrize(
    ("half", "tables", "found"),
    [
        ("two", DOUBLED, True),
        ("one", DOUBLED, False),  # not the halves
        ("two", "angles = Concat<axis = -1>(f, g) cos = Cos(angles) sin = Sin(angles)", False),  # halves that differ
    ],
)
def test_rotary_embedding(half: str, tables: str, found: bool, tmp_path: Path) -> None:
    model = graphs.graph(
        "float[2, 3, 5, 4] x, float[1, 1, 5, 2] f, float[1, 1, 5, 2] g",
        "float[2, 3, 5, 4] y",
        ROTARY.format(half=half, tables=tables),
        constants=ROTARY_CONSTANTS,
    )
    assert bool(Rewriting(model).run((Phase("rotary", "", (Step((), rotary.RULES),)),))) is found


def test_a_rotary_table_whose_halves_differ_is_refused() -> None:
    table = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    assert not rotary.repeats(ir.Value(name="cos", const_value=ir.tensor(table)))
    table[..., 2:] = table[..., :2]
    assert rotary.repeats(ir.Value(name="cos", const_value=ir.tensor(table)))


def test_projections_of_a_weight_that_is_read_elsewhere_stay(tmp_path: Path) -> None:
    attention = Attention(
        bias=False, inputs=", float[3, 8] other", scores=Attention().scores + " z = MatMul(other, wq)"
    )
    model = attention.model()
    model.graph.outputs.append(graphs.value(model, "z"))
    found, done = rewritten(model, tmp_path)
    assert {name: count for name, count in done.applied.items() if count} == {"attention": 1}
    assert "MultiHeadAttention" in ops(found)
    assert _weight_bytes(found) <= _weight_bytes(model)


def test_one_product_for_long_inputs_costs_more_than_it_saves(tmp_path: Path) -> None:
    short, _ = rewritten(Attention(dims="2, 6").model(), tmp_path)
    long, _ = rewritten(Attention(dims="64, 4096").model(), tmp_path)
    assert ops(short) == ["Attention"]
    assert "MultiHeadAttention" in ops(long)
    assert ops(long).count("MatMul") == 3


def test_one_product_of_16_bits_in_parts_for_long_inputs(tmp_path: Path) -> None:
    """A gemm region writes q, k and v where MultiHeadAttention reads them."""
    model = Attention(dims="64, 4096").model()
    half = _in_float16(model)
    found, _ = rewritten(half, tmp_path)
    assert [op for op in ops(found) if op != "Reshape"] == ["MatMul", "Add", "Split", "MultiHeadAttention"]
    InferShapesPass()(found)
    (region,) = fuse(found).regions
    assert region.kind is GEMM
    assert len(region.outputs) == 3


def _in_float16(model: ir.Model) -> ir.Model:
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        if value.dtype == ir.DataType.FLOAT:
            value.type = ir.TensorType(ir.DataType.FLOAT16)
            if value.const_value is not None:
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float16), name=value.name)
    InferShapesPass()(model)
    return model


@pytest.mark.parametrize("activation", ["s = Sigmoid(g) a = Mul(g, s)", "a = Gelu(g)"])
@pytest.mark.parametrize("order", ["a, u", "u, a"])
def test_gate_and_up_become_one_product(activation: str, order: str, tmp_path: Path) -> None:
    weights = [", ".join(f"{w:.3f}" for w in np.random.default_rng(k).standard_normal(24)) for k in range(2)]
    model = graphs.graph(
        "float[n, 4] x", "float[n, 6] y",
        f"g = MatMul(x, wg) {activation} u0 = MatMul(x, wu) u = Add(u0, bu) y = Mul({order})",
        constants=f"float[4, 6] wg = {{{weights[0]}}}, float[4, 6] wu = {{{weights[1]}}}, "
        "float[6] bu = {1, 2, 3, 4, 5, 6}",
    )  # fmt: skip
    found, done = rewritten(model, tmp_path, gates=True)
    assert done.applied["gate"] == 1
    assert ops(found).count("MatMul") == 1
    feeds = {"x": np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)}
    np.testing.assert_allclose(graphs.run(found, feeds)[0], graphs.run(model, feeds)[0], rtol=1e-5, atol=1e-5)
