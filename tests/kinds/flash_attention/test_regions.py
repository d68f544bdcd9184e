"""Which attentions become kernels of many queries, and what the kernels are told."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir
import pytest

from onnxopt.codegen import generate, nvrtc
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from onnxopt.program.flash_attention import FlashAttention, Heads
from tests.support.flash_attention_models import Case, fused
from tests.support.fusing import fuse
from tests.support.graphs import graph

WINDOWS = Case(5, 49, 49, 3, 32, layout="split", bias=(False, True))


@pytest.mark.parametrize(
    ("case", "inputs", "first"),
    [
        (WINDOWS, ["x", "bias"], [0, 96, 192]),
        (dataclasses.replace(WINDOWS, layout="slices"), ["x", "bias"], [0, 96, 192]),
        (dataclasses.replace(WINDOWS, layout="interleaved"), ["x", "bias"], [0, 32, 64]),
        (dataclasses.replace(WINDOWS, layout="apart"), ["q", "k", "v", "bias"], [0, 0, 0]),
    ],
)
def test_parts_are_read_where_they_lie(case: Case, inputs: list[str], first: list[int]) -> None:
    found = fused(case)
    (region,) = found.plan.regions
    assert region.kind is FLASH_ATTENTION
    assert [v.name for v in region.inputs] == inputs
    meaning = region.meaning
    assert isinstance(meaning, FlashAttention)
    assert [h.first for h, *_ in meaning.operands] == first
    (kernel,) = found.kernels
    assert kernel.name.startswith("MultiHeadAttention_") and not kernel.cpu
    assert "FlashTile<32, 32, 4, 64, 1, 16>" in generate.generate([kernel])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_oldest_architecture_compiles(dtype: str) -> None:
    """It has no products of bfloat16."""
    case = dataclasses.replace(WINDOWS, dtype=dtype)
    assert nvrtc.compile_cuda(generate.generate(fused(case).kernels), ["sm_75"])


def test_a_part_that_others_read_stays() -> None:
    model = ir.serde.deserialize_model(WINDOWS.model())
    split = model.graph[0]
    model.graph.outputs.append(split.outputs[2])
    (region,) = fuse(model).regions
    assert [v.name for v in region.inputs] == ["q", "k", "v", "bias"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(2, 2100, 2100, 2, 64, layout="split"), "ONNX Runtime's kernel is faster for 2100 keys"),
        (Case(2, 400, 400, 2, 64), "ONNX Runtime's kernel is faster for 400 keys"),
        (Case(2, 400, 400, 2, 64, layout="split", bias=(True, True)), "ONNX Runtime's kernel is faster for 400 keys"),
        (Case(2, 200, 200, 2, 96), "ONNX Runtime's kernel is faster for 200 keys"),
        (Case(2, 4, 200, 2, 80), "ONNX Runtime's kernel is faster for 200 keys"),
        (Case(2, 260, 260, 2, 80), "ONNX Runtime's kernel is faster for 260 keys"),
        (Case(2, 20, 20, 2, 264), "A head has 264 elements"),
        (Case(2, 20, 20, 2, 64, scale=-1.0), "The scale of the scores is -1.0"),
        (Case(2, 20, 20, 2, 64, dtype="float32"), "The kernel supports float16 and bfloat16; q has dtype float32"),
    ],
)
def test_what_stays_with_onnx_runtime(case: Case, reason: str) -> None:
    plan = fuse(ir.serde.deserialize_model(case.model()))
    assert not any(region.kind is FLASH_ATTENTION for region in plan.regions)
    assert any(reason in refusal.reason for refusal in plan.refusals)


def test_lengths_that_a_kernel_takes() -> None:
    for case in (
        Case(2, 1000, 1000, 2, 24),
        Case(2, 380, 380, 2, 80, layout="split"),
        Case(1, 2000, 2000, 2, 64, layout="split"),
        Case(1, 380, 380, 2, 128),
        Case(1, 2000, 2000, 2, 128, causal=True),
        Case(2, 9999, 128, 2, 64),
        Case(2, 256, 256, 2, 80),
    ):
        (region,) = fuse(ir.serde.deserialize_model(case.model())).regions
        assert region.kind is FLASH_ATTENTION


def _behind_positions(most: int) -> ir.Model:
    """Attention over a dynamic number of tokens, with a table of `most` positions added to them."""
    return graph(
        f"float16[B, S, 192] x, float16[{most}, 192] table",
        "float16[B, S, 64] y",
        """
        shape = Shape <start = 1, end = 2> (x)
        positions = Slice (table, zero, shape)
        tokens = Add (x, positions)
        q, k, v = Split <axis = -1, num_outputs = 3> (tokens)
        y = com.microsoft.MultiHeadAttention <num_heads = 1> (q, k, v)
        """,
        constants="int64[1] zero = {0}",
        contrib=True,
    )


@pytest.mark.parametrize(
    ("most", "usual", "ours"),
    [
        (512, {}, True),  # half of the table is expected
        (8192, {}, False),
        (8192, {"S": 128}, True),
        (512, {"S": 2500}, False),
        (8192, {"B": 1}, False),
    ],
)
def test_numbers_of_keys_to_expect(most: int, usual: dict[str, int], ours: bool) -> None:
    plan = fuse(_behind_positions(most), usual=usual)
    assert any(region.kind is FLASH_ATTENTION for region in plan.regions) == ours
    stays = any("ONNX Runtime's kernel is faster for" in refusal.reason for refusal in plan.refusals)
    assert stays != ours


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("heads", 0, "heads: 0 heads of queries"),
        ("outputs", ("float32",), "inputs: they and the one output"),
        ("bias", 3, "inputs: "),
        ("q", Heads(0, 288, 280, 32), "q: its heads are no parts of a token of 288 elements"),
        ("k", Heads(0, 288, 96, 0), "k: its heads lie 0 elements apart"),
    ],
)
def test_a_bad_meaning(field: str, value: object, message: str) -> None:
    (region,) = fused(WINDOWS).plan.regions
    meaning = region.meaning
    assert isinstance(meaning, FlashAttention)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(meaning, **{field: value}).verify()
