"""The kinds of kernels: one folder and one line below for each. May import program to fusion."""

from __future__ import annotations

import importlib

from onnxopt.fusion.region import Kind

# In the order in which they are searched for: what a kind takes, the later kinds leave alone. Attention takes operators
# that no other kind does, with the nodes that compute their lengths. Rows come before GEMMs: a bias or a residual costs
# a norm's kernel less than cuBLASLt's epilogue (benchmarks/notes.md), and the work between a reduction and a scan costs
# nothing behind the reduction. Pointwise regions take the remaining nodes.
_IN_ORDER = (
    "attention",
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
