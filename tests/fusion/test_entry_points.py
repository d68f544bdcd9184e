"""Kernels of equal CUDA text share entry points, which are compiled once."""

from __future__ import annotations

from cases.models import fuse, outline
from onnxopt.codegen import generate
from onnxopt.fusion import entry_points
from tests.support.graphs import graph

CONSTANTS = ", ".join(f"int64[1] n{n} = {{{n}}}" for n in (0, 1, 64, 128, 192))


def test_layers_that_read_other_columns_share_entry_points() -> None:
    body = " ".join(
        f"s{k} = Slice(p, n{64 * k}, n{64 * k + 64}, n1) u{k} = Unsqueeze(s{k}, n1) "
        f"h{k} = {norm}(x{k}, g) y{k} = Mul(h{k}, u{k})"
        for k, norm in enumerate(("LayerNormalization", "LayerNormalization", "RMSNormalization"))
    )
    inputs = ", ".join(f"float[2, 9, 64] x{k}" for k in range(3))
    outputs = ", ".join(f"float[] y{k}" for k in range(3))
    model = graph(f"{inputs}, float[2, 192] p, float[64] g", outputs, body, constants=CONSTANTS, opset=23)
    apart = outline(model, fuse(model))
    first, second, other = entry_points.shared(apart)
    assert first == apart[0] and other == apart[2]
    assert second.variants == first.variants and second.program != first.program
    text = generate.generate((first, second, other))
    assert first.name in text and other.name in text and second.name not in text
    assert all(
        text.count(f"void {v.symbol}(") == generate.own_text(second).count(f"void {v.symbol}(") for v in first.variants
    )
    assert entry_points.shared((first, second, other)) == (first, second, other)
