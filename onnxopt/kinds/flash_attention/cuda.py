"""CUDA source of attention of many queries, on top of cuda_kernels/flash_attention/."""

from __future__ import annotations

from typing import cast

import numpy as np

from onnxopt.fusion.region import Kernel
from onnxopt.program.cuda_text.statements import literal
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.flash_attention import FlashAttention, FlashAttentionVariant, FlashWarpgroups
from onnxopt.program.hardware import WARP
from onnxopt.program.pointwise import Instruction

HEADER = "flash_attention/flash_attention.cuh"
HOPPER_HEADER = "flash_attention/hopper_flash_attention.cuh"


def lines(kernel: Kernel) -> list[str]:
    """The kernel's operation as a struct, and one entry point per variant."""
    meaning = cast(FlashAttention, kernel.program)
    flags = {
        "kBegins": meaning.before is not None,
        "kEnds": meaning.after is not None,
        "kBiased": meaning.bias is not None,
        "kHiddenWeighAll": meaning.hidden == "all",
        "kHiddenWeighOnce": meaning.hidden == "once",
        "kHiddenWeighWindow": meaning.hidden == "window",
        "kCapped": meaning.cap is not None,
        "kSinks": meaning.sinks is not None,
    }
    struct = [
        f"struct {kernel.name} {{",
        f"  using Stored = {DTYPES[meaning.inputs[0]].cuda};",
        f"  using Result = {DTYPES[meaning.outputs[0]].cuda};",
        *(f"  static constexpr bool {name} = {str(is_there).lower()};" for name, is_there in flags.items()),
        *_finish(meaning),
        "};",
        "",
    ]
    entries = [line for v in kernel.variants for line in _entry(kernel.name, meaning, cast(FlashAttentionVariant, v))]
    return [*struct, *entries]


def _finish(meaning: FlashAttention) -> list[str]:
    """The function that results go through: it makes codes of them where there are some."""
    codes = meaning.codes
    if codes is None:
        return ["  __device__ static float finish(float y) { return y; }"]
    step, inverse = np.float32(codes.step), np.float32(1) / np.float32(codes.step)
    number = lambda x: literal(Instruction("const", "float32", value=float(x)))  # noqa: E731
    lines = [f"    const float x = divide_by_constant(narrow<Stored>(y), {number(step)}, {number(inverse)});"]
    if codes.low is None or codes.high is None:
        lines.append("    return x;")
    else:
        low, high = number(codes.low), number(codes.high)
        lines += ["    const float code = round_to_code(x);", f"    return {low} < code ? min(code, {high}) : {low};"]
    return ["  __device__ static float finish(float y) {", *lines, "  }"]


def _entry(name: str, meaning: FlashAttention, variant: FlashAttentionVariant) -> list[str]:
    if variant.warpgroups is not None:
        return _hopper_entry(name, meaning, variant, variant.warpgroups)
    sides = (meaning.width, meaning.values, variant.threads // WARP, variant.keys, variant.stages, variant.access)
    tile = ", ".join(map(str, (*sides, variant.bands, _neighbours(meaning, variant))))
    if meaning.dtype == "float32":
        tile += f", 4, {str(variant.exact).lower()}"
    shared, run = ("kShortBytes", "run_short") if variant.short_rows else ("kSharedBytes", "run")
    return [
        f'extern "C" __global__ void __launch_bounds__({variant.threads})',
        f"{variant.symbol}(const __grid_constant__ FlashAttentionParams p) {{",
        f"  using Attention = FlashAttention<{name}, FlashTile<{tile}>>;",
        f'  static_assert(Attention::{shared} == {variant.shared}, "as the host was told");',
        f"  Attention::{run}(p);",
        "}",
        "",
    ]


def _neighbours(meaning: FlashAttention, variant: FlashAttentionVariant) -> int:
    """Keys whose scores a lane has beside each other: of a bias, 16 bytes where a tile has as many for each lane."""
    if meaning.bias is None:
        return 2
    return 8 if variant.keys % 32 == 0 and meaning.dtype != "float32" else 4


def _hopper_entry(
    name: str, meaning: FlashAttention, variant: FlashAttentionVariant, groups: FlashWarpgroups
) -> list[str]:
    flags = f"{str(groups.copier).lower()}, {str(groups.in_turn).lower()}"
    tile = f"{meaning.width}, {groups.count}, {variant.keys}, {variant.stages}, {flags}, {groups.blocks}"
    return [
        f'extern "C" __global__ void __launch_bounds__({variant.threads}, {groups.blocks})',
        f"{variant.symbol}(const __grid_constant__ FlashAttentionParams p) {{",
        f"  using Attention = FlashHopperAttention<{name}, FlashHopperTile<{tile}>>;",
        f'  static_assert(Attention::kSharedBytes == {variant.shared}, "as the host was told");',
        f"  Attention::{'run_short' if variant.short_rows else 'run'}(p);",
        "}",
        "",
    ]
