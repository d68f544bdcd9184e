"""Which attentions become kernels of many queries, and what the kernels are told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import onnx_ir as ir
import pytest

from cases.extended_attention import Extended
from cases.flash_attention import Case, fused
from cases.models import fuse
from onnxopt.codegen import generate, nvrtc
from onnxopt.graph.rewrite import rewrite
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from onnxopt.program.flash_attention import FlashAttention, FlashAttentionVariant
from tests.support.graphs import graph

_MASKED = """
    t{n} = Reshape ({of}, apart)
    q{n} = Transpose <perm = [0, 2, 1, 3]> (t{n})
    k{n} = Transpose <perm = [0, 2, 3, 1]> (t{n})
    s{n} = MatMul (q{n}, k{n})
    f{n} = Mul (s{n}, scale)
    m{n} = Where (mask, none, low)
    a{n} = Add (f{n}, m{n})
    w{n} = Softmax <axis = -1> (a{n})
    o{n} = MatMul (w{n}, q{n})
    u{n} = Transpose <perm = [0, 2, 1, 3]> (o{n})
    {to} = Reshape (u{n}, joined)
"""
# Of float16, the bits: 0.125, 0 and -65504.
_CONSTANTS = """int64[4] apart = {0, 0, 2, 64}, int64[3] joined = {0, 0, 128}, int64 zero = {0}, int64 end = {300},
    int64 one = {1}, int64[3] axes = {0, 1, 3}, float16 scale = {12288}, float16 none = {0}, float16 low = {64511}"""
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
    assert "FlashTile<32, 32, 4, 64, 1, 16, 1, 8>" in generate.generate([kernel])


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
        (Case(2, 4096, 4096, 10, 64, layout="split"), "ONNX Runtime's kernel is faster for 4096 keys"),
        (Case(8, 512, 512, 12, 64), "ONNX Runtime's kernel is faster for 512 keys"),
        (Case(2, 600, 600, 2, 64, layout="split", bias=(True, True)), "ONNX Runtime's kernel is faster for 600 keys"),
        (Case(2, 400, 400, 2, 128, bias=(True, True)), "ONNX Runtime's kernel is faster for 400 keys"),
        (Case(2, 400, 400, 2, 40), "ONNX Runtime's kernel is faster for 400 keys"),
        (Case(2, 400, 400, 2, 56, causal=True), "ONNX Runtime's kernel is faster for 400 keys"),
        (Case(2, 4, 300, 2, 80), "ONNX Runtime's kernel is faster for 300 keys"),
        (Case(2, 260, 260, 2, 84), "ONNX Runtime's kernel is faster for 260 keys"),
        (Case(2, 1100, 1100, 2, 80, bias=(True, True)), "ONNX Runtime's kernel is faster for 1100 keys"),
        (Case(2, 1100, 1100, 2, 256), "ONNX Runtime's kernel is faster for 1100 keys"),
        (Case(2, 2100, 2100, 2, 256, causal=True), "ONNX Runtime's kernel is faster for 2100 keys"),
        (Case(2, 20, 20, 2, 264), "A head has 264 elements"),
        (Case(2, 20, 20, 2, 64, scale=-1.0), "The scale of the scores is -1.0"),
        (Case(2, 20, 20, 2, 64, scale=2.0**-100), "The scale of the scores is 7.88"),
        (
            Case(2, 20, 20, 2, 64, dtype="float64"),
            "The kernel supports float16, bfloat16, float32; q has dtype float64",
        ),
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
        Case(1, 2000, 2000, 2, 80),
        Case(1, 1000, 1000, 2, 160, bias=(True, True)),
        Case(1, 2000, 2000, 2, 256, causal=True),
        Case(1, 2000, 2000, 2, 40, layout="split", causal=True),
        Case(2, 9999, 128, 2, 64),
        Case(2, 1178, 1178, 16, 64),
        Case(2, 256, 256, 2, 80),
        Case(2, 512, 512, 2, 64, layout="split", bias=(True, True)),
        Case(2, 384, 384, 2, 128, bias=(False, True)),
    ):
        (region,) = fuse(ir.serde.deserialize_model(case.model())).regions
        assert region.kind is FLASH_ATTENTION


def test_a_mask_that_all_queries_share_is_read_as_it_is(tmp_path: Path) -> None:
    """Not repeated for queries, also where several layers read it, and where their number is symbolic."""
    for count in (3000, "S"):
        tokens = f"float16[2, {count}, 128]"
        model = graph(
            f"{tokens} x, bool[2, 1, 1, {count}] mask",
            f"{tokens} y",
            _MASKED.format(of="x", to="h", n=0) + _MASKED.format(of="h", to="y", n=1),
            constants=_CONSTANTS,
        )
        rewrite(model, tmp_path, usual={"S": 200})
        regions = [r for r in fuse(model, usual={"S": 200}).regions if r.kind is FLASH_ATTENTION]
        biases = [r.inputs[-1].name for r in regions]
        expanded = [node for node in model.graph if node.op_type == "Expand"]
        assert len(biases) == 2 and len(set(biases)) == 1
        assert len(expanded) == 2
        assert all("Expand" in [n.op_type for n in r.nodes] for r in regions)


def test_conditions_that_always_hold_make_no_mask_differ(tmp_path: Path) -> None:
    """transformers joins the mask of padding with one of positions, which is true for every query."""
    certain = """
        positions = Range (zero, end, one)
        of_queries = Unsqueeze (positions, axes)
        certain = GreaterOrEqual (of_queries, zero)
        shown = And (certain, mask)
    """
    body = _MASKED.format(of="x", to="y", n=0).replace("Where (mask", "Where (shown")
    given = "float16[2, 300, 128] x, bool[2, 1, 1, 300] mask"
    model = graph(given, "float16[2, 300, 128] y", certain + body, constants=_CONSTANTS)
    rewrite(model, tmp_path)
    (attention,) = (r for r in fuse(model).regions if r.kind is FLASH_ATTENTION)
    bias = attention.inputs[-1].producer()
    assert bias is not None and bias.op_type == "Where" and bias.inputs[0] is model.graph.inputs[1]
    assert "And" not in [node.op_type for node in model.graph]


def test_an_expanded_bias_that_others_read_stays() -> None:
    """And one that repeats keys, which the kernel reads one by one."""
    for change in ("output", "keys"):
        keys = 1 if change == "keys" else 40
        model = graph(
            f"float16[2, 40, 128] q, float16[2, 40, 128] k, float16[2, 40, 128] v, float16[2, 1, 1, {keys}] bias",
            "float16[2, 40, 128] y" + (", float16[2, 1, 40, 40] all" if change == "output" else ""),
            """
            all = Expand (bias, sizes)
            y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, "", "", all)
            """,
            constants="int64[4] sizes = {2, 1, 40, 40}",
            contrib=True,
        )
        (region,) = fuse(model).regions
        assert [v.name for v in region.inputs] == ["q", "k", "v", "all"]


def test_grouped_heads_of_bfloat16() -> None:
    """GroupQueryAttention, which ONNX Runtime has for them, is slower; it stays where the kernel does not run."""
    case = Extended(1, 300, 300, 8, 64, groups=2, after=0, dtype="bfloat16")
    (region,) = fuse(case.prepared()).regions
    assert isinstance(region.meaning, FlashAttention) and region.meaning.groups == 2
    long = dataclasses.replace(case, queries=1100, keys=1100, width=24).prepared()
    assert "GroupQueryAttention" in [node.op_type for node in long.graph]
    assert not fuse(long).regions


@pytest.mark.parametrize("groups", [1, 2])
def test_one_head_of_keys_is_read_as_any(groups: int) -> None:
    """No step lies between it and a next one, which would leave 2 bytes to read at once."""
    case = Extended(2, 300, 300, 4, 80, groups=groups, after=0)
    kernel = fused(case).kernels[-1]
    assert cast(FlashAttentionVariant, kernel.variants[0]).access == 16


def test_short_tiles_that_no_gpu_holds_are_left_out() -> None:
    (kernel,) = fused(Case(2, 128, 128, 2, 256, bias=(True, True))).kernels
    variants = cast(tuple[FlashAttentionVariant, ...], kernel.variants)
    assert max(v.shared for v in variants) <= 227 << 10 and any(not v.short_rows for v in variants)


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
        (8192, {"B": 64}, False),
        (8192, {"B": 1}, True),  # one head keeps no GPU busy by tiles of 128 queries
    ],
)
def test_numbers_of_keys_to_expect(most: int, usual: dict[str, int], ours: bool) -> None:
    plan = fuse(_behind_positions(most), usual=usual)
    assert any(region.kind is FLASH_ATTENTION for region in plan.regions) == ours
    stays = any("ONNX Runtime's kernel is faster for" in refusal.reason for refusal in plan.refusals)
    assert stays != ours


@pytest.mark.parametrize("width", [40, 64, 80, 100, 256])
@pytest.mark.parametrize("form", ["causal", "padding", "plain"])
def test_an_unknown_number_of_keys(form: str, width: int) -> None:
    """Decoders, and masks of padding, have no limit of keys; other attention only where Hopper has a kernel for it."""
    causal = ", unidirectional = 1" if form == "causal" else ""
    repeated = """
        tokens = Shape <start = 1, end = 2> (q)
        sizes = Concat <axis = 0> (ones, tokens, one)
        repeated = Expand (mask, sizes)
    """
    model = graph(
        f"float16[B, S, {6 * width}] x, float16[B, 1, 1, S] mask",
        f"float16[B, S, {2 * width}] y",
        f"""
        q, k, v = Split <axis = -1, num_outputs = 3> (x)
        {repeated if form == "padding" else ""}
        y = com.microsoft.MultiHeadAttention <num_heads = 2{causal}>
            (q, k, v{', "", "", repeated' if form == "padding" else ""})
        """,
        constants="int64[2] ones = {1, 1}, int64[1] one = {1}",
        contrib=True,
    )
    found = [region for region in fuse(model).regions if region.kind is FLASH_ATTENTION]
    assert len(found) == (form != "plain" or width != 100)
