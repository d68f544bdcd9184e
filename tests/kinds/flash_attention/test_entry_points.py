"""Which entry point of an attention of many queries the library launches, by size, alignment and GPU."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, cast

import pytest

from cases.extended_attention import Extended
from cases.flash_attention import WINDOWS, Case, fused
from onnxopt.program.flash_attention import FlashAttentionVariant
from tests.support.emulation.kernel_launches import Gpu, launches
from tests.support.emulation.kernel_launches import chosen as chosen_entry_point


def test_the_entry_point_that_is_chosen() -> None:
    (kernel,) = fused(WINDOWS).kernels
    symbols = [v.symbol.split("_")[-1] for v in kernel.variants]
    assert symbols == ["w4k64sa16", "w4k64t1a2"]
    first, every = launches(kernel, WINDOWS.sizes(), Gpu(8, resident=100))
    assert (first, every[0].blocks) == (0, 3 * 5)  # no more blocks than sequences and heads
    many = dataclasses.replace(WINDOWS, batch=1024)
    assert launches(kernel, many.sizes(), Gpu(8, resident=600))[1][0].blocks == 600
    assert launches(kernel, WINDOWS.sizes(), Gpu(8), aligned=2)[0] == 1
    longer = dataclasses.replace(WINDOWS, queries=70, keys=70)
    assert launches(kernel, longer.sizes(), Gpu(8))[0] == 1


def test_bands_where_they_keep_the_gpu_busy() -> None:
    """A multiprocessor holds two blocks, and there are more of them than multiprocessors."""
    (kernel,) = fused(Case(1, 2048, 2048, 16, 128, layout="split")).kernels

    def chosen(batch: int, tokens: int, shared: int) -> str:
        case = Case(batch, tokens, tokens, 16, 128, layout="split")
        return chosen_entry_point(kernel, case.sizes(), Gpu(8, shared=shared << 10))

    assert chosen(1, 2048, 163) == "w4b2k64t1a16"
    assert chosen(1, 2048, 99) == "w4k64t1a16"
    assert chosen(2, 512, 163) == "w4k64t1a16"


def _chosen(case: Case, major: int = 9, **sizes: int) -> str:
    (kernel,) = fused(case).kernels
    return chosen_entry_point(kernel, dataclasses.replace(case, **sizes).sizes(), Gpu(major))


def test_hopper_runs_the_tile_that_is_expected_to_be_fastest() -> None:
    """Those that were fastest on an H100 (benchmarks/notes.md)."""
    vision = Case(16, 197, 197, 12, 64, layout="split")
    assert _chosen(vision) == "h1k208s"
    assert _chosen(vision, major=8) == "w4k64t2a16" and _chosen(vision, major=10) == "w4k64t2a16"
    encoder = Case(4, 1500, 1500, 8, 64, layout="split")
    assert _chosen(encoder) == "h3k128t3"
    text = Case(8, 512, 512, 12, 64, layout="split")
    found = [_chosen(text, queries=n, keys=n) for n in (128, 256, 512)]
    assert found == ["h1k128t2", "h1k128t2", "h1k128t2"]
    found = [_chosen(Case(16, n, n, 12, 64, bias=(False, True))) for n in (64, 100, 128, 197, 300)]
    assert found == ["w4k64sa16", "h1k128t2", "h1k128t2", "h1k208s", "h1k128t2"]
    assert _chosen(Case(16, 128, 128, 12, 64, bias=(False, True)), major=8) == "w4k128sa16"
    decoder = Extended(8, 128, 128, 16, 128, groups=8, after=0)
    found = [_chosen(decoder, batch=b, queries=n, keys=n) for b, n in ((8, 128), (2, 512), (1, 2048))]
    assert found == ["h1k64t2", "h2k128t2", "h2k128t2"]


@pytest.mark.parametrize(
    ("shape", "width", "tile"),
    [
        ((8, 12, 256), 32, "h1k128t2"),
        ((8, 8, 128), 96, "h1k64t2"),
        ((1, 16, 4096), 80, "h2k128t3"),
        ((2, 16, 1024), 112, "h2k128t2"),
        ((8, 8, 128), 160, "h1k48t2"),
        ((1, 8, 4096), 192, "h2k112t2"),
        ((2, 4, 1024), 256, "h1k64t2"),
        ((2, 16, 1024), 256, "h2k64t2"),
    ],
)
def test_hopper_runs_heads_of_any_size_by_the_tile_that_was_fastest(
    shape: tuple[int, int, int], width: int, tile: str
) -> None:
    """On one H200 (benchmarks/notes.md)."""
    batch, heads, tokens = shape
    assert _chosen(Extended(batch, tokens, tokens, heads, width, after=0)) == tile


@pytest.mark.parametrize(
    "case",
    [
        Case(2, 100, 100, 2, 24),
        Case(2, 100, 100, 2, 84),
        Case(2, 100, 100, 2, 80, bias=(True, True)),
        Extended(1, 300, 300, 2, 64, before=64, after=0),
        Extended(1, 300, 300, 2, 64, cap=2.0, bias=(True, True)),
        WINDOWS,
    ],
)
def test_attention_without_entry_points_for_hopper(case: Case) -> None:
    (kernel,) = fused(case).kernels
    assert all(cast(FlashAttentionVariant, v).warpgroups is None for v in kernel.variants)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": 3}, "not what the tile takes"),
        ({"stages": 5}, "stages is not an integer from 1 to 4"),
        ({"threads": 384}, "warpgroups are not those of the block's threads"),
        ({"access": 8}, "access is not 16"),
        ({"wave": 0.0}, "wave is not a number above"),
    ],
)
def test_what_is_no_entry_point_for_hopper(change: dict[str, Any], message: str) -> None:
    case = Case(2, 512, 512, 12, 64, layout="split")
    (kernel,) = fused(case).kernels
    (variant,) = [v for v in cast(tuple[FlashAttentionVariant, ...], kernel.variants) if v.symbol.endswith("h1k128t2")]
    assert variant.warpgroups is not None
    if "wave" in change:
        changed = dataclasses.replace(variant, warpgroups=dataclasses.replace(variant.warpgroups, **change))
    else:
        changed = dataclasses.replace(variant, **change)
    with pytest.raises(ValueError, match=re.escape(message)):
        launches(dataclasses.replace(kernel, variants=(changed,)), case.sizes())
