"""Heads of classifiers, which read a map of one position as a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.graph.layout.test_layout import laid_out, model, same


@pytest.mark.parametrize("dims", ["0, 8", "-1, 8", "2, 8", "1, -1, 8"])
@pytest.mark.parametrize("zeros", [0, 1])
def test_a_head_is_read_off_a_map_of_one_position(dims: str, zeros: int, tmp_path: Path) -> None:
    """torch's exporter says allowzero of every Reshape; it means something where the shape has a 0."""
    head = f"v = Conv(g, p, b) e = Relu(v) y = Reshape<allowzero={zeros}>(e, h)"
    shape = f"int64[{dims.count(',') + 1}] h = {{{dims}}}"
    source = model(f"a = Conv(x, p, b) g = GlobalAveragePool(a) {head}", constants=shape)
    found, _ = laid_out(source, tmp_path)
    last = next(n for n in found.graph if n.op_type == "Relu")
    is_last = last.inputs[0].producer().op_type == "Transpose"  # type: ignore[union-attr]
    assert is_last == (not ("0" in dims and zeros))
    if is_last:
        same(source, found, 2)
