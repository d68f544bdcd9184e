"""How the library launches attention to a cache: its kernels on the CPU, by g++, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from tests.kinds.attention.test_gpu import expected
from tests.support import emulated_library
from tests.support.cached_attention import feeds, graph
from tests.support.fusing import fuse, outline

pytestmark = pytest.mark.usefixtures("library")


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_the_last_block_joins_unless_the_stream_is_captured_at_first(
    captured: bool, slots: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several runs of a session, of other sizes too: counters are 0 again after each. Without them, a launch joins."""
    if captured:
        monkeypatch.setenv("ONNXOPT_EMULATION_CAPTURES", "1")
    tokens, each = 3, 4
    model = ir.serde.deserialize_model(graph(tokens=tokens, each=each, mask=("batch", 1, tokens), slots=slots))
    kernels = outline(model, fuse(model))
    rng = np.random.default_rng(0)
    # The last one has no splits: neither counters nor another launch are needed.
    sizes = ((1, 300), (2, 70), (1, 300), (40, 101), (1, 5))
    given = [feeds(rng, batch, tokens, past, each, (batch, 1, tokens), slots) for batch, past in sizes]
    proto = ir.serde.serialize_model(model)
    results, launched = emulated_library.run(tmp_path / "run", proto, kernels, given, major=9)
    for of_run, found in zip(given, results, strict=True):
        wanted = expected(of_run, each)
        np.testing.assert_allclose(found["y"].astype(np.float64), wanted[0], atol=4e-3)
        for name, kept in zip(("nk", "nv"), wanted[1:], strict=True):
            np.testing.assert_array_equal(found[name].astype(np.float64), kept)
    assert any(symbol.endswith("_join") for symbol in launched) == captured


def test_no_launch_joins_where_no_keys_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXOPT_EMULATION_CAPTURES", "1")
    model = ir.serde.deserialize_model(graph(tokens=2, each=2, mask=("batch", 1, 2)))
    kernels = outline(model, fuse(model))
    given = feeds(np.random.default_rng(0), 1, 2, 9, 2, (1, 1, 2), False)
    proto = ir.serde.serialize_model(model)
    ((found,), launched) = emulated_library.run(tmp_path / "run", proto, kernels, [given], major=9)
    np.testing.assert_allclose(found["y"].astype(np.float64), expected(given, 2)[0], atol=4e-3)
    assert len(launched) == 1 and not launched.pop().endswith("_join")
