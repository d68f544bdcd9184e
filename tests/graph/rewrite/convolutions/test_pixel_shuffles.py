"""DepthToSpace of a convolution's channels: which are reordered, and that no value changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.graph.rewrite import rewrite
from tests.support.graphs import graph, run

_WEIGHTS = (
    "float[12, 2, 3, 3] w = {{{}}}, float[12] b = {{{}}}, float slope = {{0.3}}, float[3, 1, 1] slopes = {{1, 2, 3}}"
)
_SHUFFLE = "DepthToSpace<blocksize = 2, mode = 'CRD'>"


@pytest.mark.parametrize(
    ("body", "mode"),
    [
        (f"c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = {_SHUFFLE}(c)", "DCR"),
        (f"c = Conv(x, w) r = Relu(c) p = PRelu(r, slope) y = {_SHUFFLE}(p)", "DCR"),
        (f"c = Conv(x, w, b) s = {_SHUFFLE}(c) y = PRelu(s, slopes)", "DCR"),
        ("c = Conv(x, w, b) y = DepthToSpace<blocksize = 2, mode = 'DCR'>(c)", "DCR"),
        (f"c = Conv(x, w, b) s = Softmax<axis = 1>(c) y = {_SHUFFLE}(s)", "CRD"),
        (f"c = Conv(x, w, b) s = {_SHUFFLE}(c) m = ReduceMean<keepdims = 0>(c) y = Add(s, m)", "CRD"),
        (f"a = Conv(x, w, b) d = Conv(x, w, b) s = {_SHUFFLE}(a) t = ReduceSum<keepdims = 0>(d) y = Add(s, t)", "CRD"),
    ],
)
def test_channels_are_reordered(body: str, mode: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    numbers = [", ".join(map(str, rng.standard_normal(n).round(2))) for n in (12 * 2 * 9, 12)]
    source = graph("float[n, 2, h, 5] x", "float[] y", body.replace("'", '"'), constants=_WEIGHTS.format(*numbers))
    found = source.clone()
    rewrite(found, tmp_path)
    shuffles = [n for n in found.graph if n.op_type == "DepthToSpace"]
    assert [n.attributes.get_string("mode", "DCR") for n in shuffles] == [mode]
    for shape in ((2, 2, 7, 5), (1, 2, 4, 5)):
        x = rng.standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(run(found, {"x": x})[0], run(source, {"x": x})[0], rtol=1e-5, atol=1e-5)
