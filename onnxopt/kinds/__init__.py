"""The kinds of kernels: one folder and one line below for each. May import program to fusion."""

from __future__ import annotations

import importlib

from onnxopt.fusion.region import Kind

# In the order of the search; later kinds leave alone the nodes that an earlier kind takes. Attention, experts,
# convolutions and pools take operators that no other kind takes; a block is convolutions with what lies between them.
# They come first, because the elementwise work around these costs least in their kernels; a dense convolution stores
# an activation cheaper than a depthwise one reads it. Squeeze-excites come before convolutions, which would take
# their products one by one. Norms over groups come before rowwise, which would run them in NCHW. Rowwise comes before
# GEMM, because a bias or a residual costs less in a norm's kernel than in cuBLASLt's epilogue (benchmarks/notes).
# Rowwise comes before scan, because the work between a reduction and a scan costs nothing in the reduction's kernel.
# Pointwise takes the rest.
_IN_ORDER = (
    "attention",
    "flash_attention",
    "experts",
    "squeeze_excite",
    "image_convolution",
    "block",
    "convolution",
    "depthwise",
    "pool",
    "grid_sample",
    "group_norm",
    "rowwise",
    "scan",
    "gemm",
    "pointwise",
)


def _kind(name: str) -> Kind:
    """The object of the kind in the folder `name`: kinds/gemm/kind.py has GEMM."""
    kind = getattr(importlib.import_module(f"onnxopt.kinds.{name}.kind"), name.upper())
    assert isinstance(kind, Kind) and kind.name == name
    return kind


KINDS: tuple[Kind, ...] = tuple(map(_kind, _IN_ORDER))

__all__ = ["KINDS"]
