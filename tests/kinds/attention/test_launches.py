"""How the library launches attention to a cache: its kernels on the CPU, by g++, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.attention import WIDTH, feeds, graph
from cases.models import fuse, outline
from tests.kinds.attention.test_gpu import expected
from tests.support.emulation import emulated_library

pytestmark = pytest.mark.usefixtures("library")


def _launched(
    folder: Path, tokens: int, each: int, sizes: tuple[tuple[int, int], ...], captured: bool = False, width: int = WIDTH
) -> set[str]:
    """The entry points that a session launches over caches in one buffer, (sequences, tokens) of them, all right."""
    model = ir.serde.deserialize_model(
        graph(tokens=tokens, each=each, mask=("batch", 1, tokens), slots=True, width=width)
    )
    kernels = outline(model, fuse(model))
    rng = np.random.default_rng(0)
    given = [feeds(rng, batch, tokens, past, each, (batch, 1, tokens), True, width) for batch, past in sizes]
    results, launched = emulated_library.run_in_place(
        folder / "run", ir.serde.serialize_model(model), kernels, given, {"nk": "pk", "nv": "pv"}, 9, captured
    )
    for feed, found in zip(given, results, strict=True):
        wanted = expected(feed, each)
        np.testing.assert_allclose(found["y"].astype(np.float64), wanted[0], atol=4e-3)
        for cache, kept in zip(("nk", "nv"), wanted[1:], strict=True):
            np.testing.assert_array_equal(found[cache].astype(np.float64), kept)
    return {symbol.rpartition("_")[2] for symbol in launched}


def test_the_last_block_joins(tmp_path: Path) -> None:
    """Counters are 0 again after each run, also of other sizes. The last but one has no splits."""
    sizes = ((1, 300), (2, 70), (1, 300), (70, 33), (1, 5), (40, 101), (1, 300))
    assert _launched(tmp_path, 1, 4, sizes) == {"t256s2"}


@pytest.mark.parametrize("captured", [False, True])
def test_keys_in_registers_are_joined_by_the_last_block_where_it_has_counters(captured: bool, tmp_path: Path) -> None:
    sizes = ((1, 300), (2, 70), (1, 5), (1, 300))
    launched = _launched(tmp_path, 1, 8, sizes, captured=captured, width=64)
    assert launched == ({"t256r", "join"} if captured else {"t256r"})


def test_another_launch_joins_where_the_stream_is_captured_at_first(tmp_path: Path) -> None:
    assert _launched(tmp_path, 1, 4, ((1, 300), (1, 300)), captured=True) == {"t256s2", "join"}


@pytest.mark.parametrize(("tokens", "each"), [(1, 1), (3, 4)])
def test_another_launch_joins_few_keys_of_one_row_and_many_rows(tokens: int, each: int, tmp_path: Path) -> None:
    assert "join" in _launched(tmp_path, tokens, each, ((1, 300),))


@pytest.mark.parametrize("each", [4, 8])
def test_more_rows_are_joined_by_another_launch_where_the_cache_is_copied(each: int, tmp_path: Path) -> None:
    model = ir.serde.deserialize_model(graph(tokens=1, each=each, mask=("batch", 1, 1)))
    kernels = outline(model, fuse(model))
    given = [feeds(np.random.default_rng(0), 1, 1, past, each, (1, 1, 1), False) for past in (9, 100)]
    results, launched = emulated_library.run(
        tmp_path / "run", ir.serde.serialize_model(model), kernels, given, major=9
    )  # fmt: skip
    for feed, found in zip(given, results, strict=True):
        np.testing.assert_allclose(found["y"].astype(np.float64), expected(feed, each)[0], atol=4e-3)
    assert any(symbol.endswith("_join") for symbol in launched) == (each > 4)


def test_nothing_joins_where_no_keys_are_split(tmp_path: Path) -> None:
    assert _launched(tmp_path, 2, 2, ((1, 9),), captured=True) == {"t256s2"}
