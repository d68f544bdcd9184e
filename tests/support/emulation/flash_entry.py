"""What runs in place of an attention's entry point on GPUs that have no products of its dtype."""

from __future__ import annotations

from typing import cast

from onnxopt.fusion.region import Kernel
from onnxopt.program.flash_attention import FlashAttention, FlashAttentionVariant


def without_products(kernel: Kernel, k: int) -> str:
    """C++ that can be called in place of the name of a kernel's entry point."""
    variant, meaning = cast(FlashAttentionVariant, kernel.variants[k]), cast(FlashAttention, kernel.program)
    tile = f"{meaning.width}, {meaning.values}, {variant.threads // 32}, {variant.keys}, {variant.stages}"
    of = f"{kernel.name}, FlashTile<{tile}, {variant.access}>"
    return f"[](const FlashAttentionParams& p) {{ FlashPlain<{of}>::run(p, FlashAttention<{of}>::place(p)); }}"
