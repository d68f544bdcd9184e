"""CUDA source of attention of many queries, on top of cuda_kernels/flash_attention/."""

from __future__ import annotations

from typing import cast

from onnxopt.fusion.region import Kernel
from onnxopt.kinds.flash_attention.entry_points import FlashVariant
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.flash_attention import FlashAttention
from onnxopt.program.hardware import WARP

HEADER = "flash_attention/flash_attention.cuh"


def lines(kernel: Kernel) -> list[str]:
    """The kernel's operation as a struct, and one entry point per variant."""
    meaning = cast(FlashAttention, kernel.program)
    flags = {
        "kBegins": meaning.before is not None,
        "kEnds": meaning.after is not None,
        "kBiased": meaning.bias is not None,
        "kCapped": meaning.cap is not None,
        "kSinks": meaning.sinks is not None,
    }
    struct = [
        f"struct {kernel.name} {{",
        f"  using Stored = {DTYPES[meaning.outputs[0]].cuda};",
        *(f"  static constexpr bool {name} = {str(is_there).lower()};" for name, is_there in flags.items()),
        "};",
        "",
    ]
    entries = [line for v in kernel.variants for line in _entry(kernel.name, meaning, cast(FlashVariant, v))]
    return [*struct, *entries]


def _entry(name: str, meaning: FlashAttention, variant: FlashVariant) -> list[str]:
    tile = f"{meaning.width}, {meaning.values}, {variant.threads // WARP}, {variant.keys}"
    shared, run = ("kShortBytes", "run_short") if variant.short else ("kSharedBytes", "run")
    return [
        f'extern "C" __global__ void __launch_bounds__({variant.threads})',
        f"{variant.symbol}(const __grid_constant__ FlashAttentionParams p) {{",
        f"  using Attention = FlashAttention<{name}, FlashTile<{tile}, {variant.stages}, {variant.access}>>;",
        f'  static_assert(Attention::{shared} == {variant.shared}, "as the host was told");',
        f"  Attention::{run}(p);",
        "}",
        "",
    ]
