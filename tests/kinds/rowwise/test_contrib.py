"""ONNX Runtime's own norms in rowwise regions: recognised beside elementwise work, computed as it computes them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kinds.rowwise_models import difference, fused, session, with_library

X, R, Y = "float[N, 7, 40] x", "float[N, 7, 40] r", "float[N, 7, 40] y"
G, B, C = "float[40] g", "float[40] b", "float[40] c"
# name: inputs, outputs, body, the operators of each rowwise region
CASES = {
    "rms norm, which a function may not hold": (
        f"{X}, {G}", Y, "n = SimplifiedLayerNormalization<axis = -1, epsilon = 0.01>(x, g) y = Relu(n)", []),
    "skip and norm": (f"{X}, {R}, {G}, {B}", Y, "n = com.microsoft.SkipLayerNormalization(x, r, g, b) y = Tanh(n)",
                      ["SkipLayerNormalization Tanh"]),
    "skip, bias and norm, with the sum": (
        f"{X}, {R}, {G}, {B}, {C}", f"{Y}, float[N, 7, 40] s",
        'n, "", "", s = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, r, g, b, c) y = Tanh(n)',
        ["SkipLayerNormalization Tanh"]),
    "a skip for every batch": (f"{X}, float[7, 40] r, {G}", Y,
                               "n = com.microsoft.SkipLayerNormalization(x, r, g) y = Tanh(n)",
                               ["SkipLayerNormalization Tanh"]),
    "skip and rms norm, with the sum": (
        f"{X}, {R}, {G}", f"{Y}, float[N, 7, 40] s",
        'n, "", "", s = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>(x, r, g) y = Tanh(n)',
        ["SkipSimplifiedLayerNormalization Tanh"]),
    "skip, bias and rms norm": (
        f"{X}, {R}, {G}, {C}", Y, "n = com.microsoft.SkipSimplifiedLayerNormalization(x, r, g, c) y = Tanh(n)",
        ["SkipSimplifiedLayerNormalization Tanh"]),
    "alone": (f"{X}, {R}, {G}, {B}", Y, "y = com.microsoft.SkipLayerNormalization(x, r, g, b)", []),
}  # fmt: skip


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", CASES)
def test_contrib_norms(case: str, tmp_path) -> None:
    inputs, outputs, body, expected_regions = CASES[case]
    found = fused(inputs, outputs, body, opset=21, contrib=True)
    assert found.rowwise == expected_regions
    original = session(found.original)
    rng = np.random.default_rng(3)
    feeds = {
        i.name: rng.standard_normal([d if isinstance(d, int) else 5 for d in i.shape]).astype(np.float32)
        for i in original.get_inputs()
    }
    expected = original.run(None, feeds)
    for run_in in (with_library(found, tmp_path), session(found.optimized)):
        for ours, theirs in zip(run_in.run(None, feeds), expected, strict=True):
            assert difference(ours, theirs, 1e-5, 1e-5) <= 1
