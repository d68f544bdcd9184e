"""The cost model: bytes that fusing saves, and what it costs to compute a value again.

The closed form: a chain of n elementwise operators over B bytes with c side inputs moves 2nB + cB bytes unfused and
(2 + c)B fused. Here it is counted value by value, so that broadcast operands count with their own size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxopt.lower import constant
from onnxopt.regions import Traffic
from onnxopt.shapes import Shapes

# A value that is broadcast into its consumer's larger domain is computed once for each element there. Up to this many
# float32 instructions that hides behind the memory traffic of any GPU of the catalogue.
MAX_RECOMPUTED_COST = 16
# More operands than this cost registers and kernel parameters that a fused chain does not earn back.
MAX_OPERANDS = 16
MAX_NODES = 64
MAX_COST = 600


def of_region(
    nodes: Sequence[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], shapes: Shapes
) -> Traffic:
    """Predicted traffic of running `nodes` one by one, and of running them as one kernel."""
    before: int | None = 0
    for node in nodes:
        operands = {v for v in node.inputs if v is not None and constant(v) is None}
        before = _add(before, _total((*operands, *node.outputs), shapes))
    return Traffic(before, _total((*inputs, *outputs), shapes), launches_before=len(nodes))


def _total(values: Iterable[ir.Value], shapes: Shapes) -> int | None:
    total: int | None = 0
    for value in values:
        total = _add(total, shapes.bytes(value))
    return total


def _add(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
