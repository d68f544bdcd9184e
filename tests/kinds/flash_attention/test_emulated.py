"""CUDA kernels of attention of many queries, run on the CPU by g++, against float64.

Each case is run with the grid and numbers that the library hands over (emulation/flash_attention_launches.cc compiles
its code): what is tested is the device code, its tails and its host.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cases.extended_attention import Extended, random_extended
from cases.flash_attention import Case, fused, random_case
from onnxopt.kinds.flash_attention.entry_points import FlashVariant
from tests.support.emulation import emulated_flash_attention

WINDOWS = Case(5, 49, 49, 3, 32, layout="split", bias=(False, True))


def _agree(folder: Path, cases: list[Case], **options: bool) -> set[str]:
    """The entry points that were run, without the kernels' names."""
    found = emulated_flash_attention.results(folder, cases, **options)
    assert {case for case, _ in found} == set(cases)
    wrong = [(case, s, e) for (case, s), (y, x) in found.items() if not (e := case.worst(y, x)) <= 1]
    assert not wrong
    return {symbol.split("_")[-1] for _, symbol in found}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_forms(tmp_path: Path, dtype: str) -> None:
    """Every other one of bfloat16, whose products and conversions alone are others."""
    cases = [
        WINDOWS,
        Case(3, 20, 20, 2, 20, layout="slices", bias=(True, True)),
        Case(2, 70, 77, 2, 40),
        Case(1, 140, 140, 1, 64, layout="interleaved", causal=True),
        Case(2, 33, 100, 2, 16, 24, layout="heads", bias=(True, False)),
        Case(1, 17, 130, 1, 48, layout="apart", causal=True, known=False, scale=0.3, values=8),
        Case(1, 3, 5, 2, 7, 11),
        Case(1, 20, 90, 1, 256, layout="heads"),
        Case(6, 20, 20, 2, 16, layout="split", bias=(True, True), period=3),
        Case(8, 9, 9, 1, 16, layout="split", bias=(True, False), period=4),
        Case(1, 140, 100, 1, 128, layout="heads"),
    ]
    cases[5] = dataclasses.replace(cases[5], keys=128)
    chosen = cases if dtype == "float16" else cases[::2]
    _agree(tmp_path, [dataclasses.replace(case, dtype=dtype) for case in chosen])


@pytest.mark.parametrize("plain", [False, True])
def test_a_causal_query_that_sees_no_key_is_not_a_number(tmp_path: Path, plain: bool) -> None:
    case = Case(1, 9, 6, 1, 8, dtype="bfloat16" if plain else "float16", causal=True, known=False)
    with np.errstate(invalid="ignore"):
        assert np.isnan(case.expected(case.feeds())[0, :3]).all()
        _agree(tmp_path, [case], plain=plain)


def test_every_tile(tmp_path: Path) -> None:
    cases = [
        dataclasses.replace(WINDOWS, batch=2, queries=49),
        Case(1, 90, 90, 1, 24, layout="split", causal=True),
    ]
    assert len(_agree(tmp_path, cases, every=True)) > 20


def test_without_products(tmp_path: Path) -> None:
    """As bfloat16 is computed on GPUs that have no products of it."""
    cases = [
        dataclasses.replace(WINDOWS, batch=3),
        Case(1, 40, 70, 2, 40, 48, layout="heads", causal=True),
        Case(2, 3, 5, 2, 7, 11, bias=(True, False)),
    ]
    _agree(tmp_path, [dataclasses.replace(case, dtype="bfloat16") for case in cases], plain=True)


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 30), marks=pytest.mark.exhaustive)], ids=str)
def test_random(tmp_path: Path, seeds: range) -> None:
    _agree(tmp_path, [random_case(seed, "float16") for seed in seeds])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_with_windows_caps_sinks_and_groups(tmp_path: Path, dtype: str) -> None:
    _agree(tmp_path, [random_extended(seed, dtype) for seed in range(4)])


def test_biases_that_are_the_same_for_all_queries(tmp_path: Path) -> None:
    """Lanes load runs of keys, pairs or single ones, as their number allows."""
    cases = [
        Extended(2, 100, 100, 2, 16, bias=(True, False), cap=5.0, by_query=False),
        Extended(2, 20, 20, 2, 24, bias=(True, True), cap=5.0, by_query=False),
        Extended(1, 33, 33, 2, 40, bias=(False, True), cap=5.0, by_query=False),
        Extended(2, 100, 100, 2, 16, bias=(True, False), by_query=False, before=20, after=20),
        Extended(1, 70, 70, 4, 24, groups=2, bias=(False, True), by_query=False, after=0),
        Extended(1, 80, 80, 2, 24, bias=(True, True), before=20, after=0),
    ]
    assert "w4k64t1a16" in _agree(tmp_path, cases)  # 100 keys: several tiles are faster, if no bias is by query


def test_sequences_of_padding_alone(tmp_path: Path) -> None:
    """All keys weigh alike, though bfloat16's least number over the scale is none of float32."""
    case = Extended(2, 40, 40, 2, 16, dtype="bfloat16", bias=(True, False), by_query=False, padded=40)
    _agree(tmp_path, [case, dataclasses.replace(case, bias=(True, True), by_query=True)])


@pytest.mark.parametrize("plain", [False, True])
def test_rows_whose_every_key_is_hidden(tmp_path: Path, plain: bool) -> None:
    """The mask that bias and window come from gives all keys the same weight there."""
    cases = [
        Extended(2, 100, 100, 2, 16, bias=(True, False), by_query=False, before=8, after=8, padded=40),
        Extended(2, 40, 40, 2, 24, bias=(True, False), by_query=False, before=8, after=8, padded=20),
        Extended(1, 70, 70, 2, 32, bias=(True, True), before=3, after=0, padded=30),
        Extended(1, 90, 90, 2, 8, 16, bias=(True, False), by_query=False, before=3, after=3, padded=30),
        Extended(2, 80, 80, 2, 16, bias=(True, False), by_query=False, before=8, after=0, padded=30, sunk=True),
    ]
    _agree(tmp_path, [dataclasses.replace(c, dtype="bfloat16") for c in cases] if plain else cases, plain=plain)


def test_extensions_without_products(tmp_path: Path) -> None:
    cases = [
        Extended(1, 40, 40, 4, 16, dtype="bfloat16", groups=2, before=9, after=0, sunk=True),
        Extended(1, 20, 20, 2, 16, 24, dtype="bfloat16", before=3, after=3, cap=2.0, bias=None),
        Extended(2, 17, 17, 2, 8, dtype="bfloat16", cap=2.0, bias=(True, False), by_query=False),
    ]
    _agree(tmp_path, cases, plain=True)


def test_the_entry_point_that_is_chosen() -> None:
    (kernel,) = fused(WINDOWS).kernels
    symbols = [v.symbol.split("_")[-1] for v in kernel.variants]
    assert symbols == ["w4k64sa16", "w4k64t1a2"]
    first, launches = emulated_flash_attention.launches(kernel, WINDOWS, resident=100)
    assert (first, launches[0].blocks) == (0, 3 * 5)  # no more blocks than sequences and heads
    many = dataclasses.replace(WINDOWS, batch=1024)
    assert emulated_flash_attention.launches(kernel, many, resident=600)[1][0].blocks == 600
    assert emulated_flash_attention.launches(kernel, WINDOWS, aligned=2)[0] == 1
    longer = dataclasses.replace(WINDOWS, queries=70, keys=70)
    assert emulated_flash_attention.launches(kernel, longer)[0] == 1


def test_bands_where_they_keep_the_gpu_busy() -> None:
    """A multiprocessor holds two blocks, and there are more of them than multiprocessors."""
    (kernel,) = fused(Case(1, 2048, 2048, 16, 128, layout="split")).kernels

    def chosen(batch: int, tokens: int, shared: int) -> str:
        case = Case(batch, tokens, tokens, 16, 128, layout="split")
        first, _ = emulated_flash_attention.launches(kernel, case, shared=shared << 10)
        return kernel.variants[first].symbol.split("_")[-1]

    assert chosen(1, 2048, 163) == "w4b2k64t1a16"
    assert chosen(1, 2048, 99) == "w4k64t1a16"
    assert chosen(2, 512, 163) == "w4k64t1a16"


def _chosen(case: Case, major: int = 9, **sizes: int) -> str:
    (kernel,) = fused(case).kernels
    of = dataclasses.replace(case, **sizes)
    return kernel.variants[emulated_flash_attention.launches(kernel, of, major=major)[0]].symbol.split("_")[-1]


def test_hopper_runs_the_tile_that_is_expected_to_be_fastest() -> None:
    """Those that were fastest on an H100 (benchmarks/notes: attention)."""
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
    """On one H200 (benchmarks/notes: attention)."""
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
    assert all(cast(FlashVariant, v).warpgroups is None for v in kernel.variants)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": 3}, "shared is not what the tile takes"),
        ({"stages": 5}, "stages is not an integer from 1 to 4"),
        ({"threads": 384}, "count is not that of the block's threads"),
        ({"access": 8}, "access is not 16"),
        ({"wave": 0.0}, "wave is not a number above 0"),
    ],
)
def test_what_is_no_entry_point_for_hopper(change: dict[str, Any], message: str) -> None:
    case = Case(2, 512, 512, 12, 64, layout="split")
    (kernel,) = fused(case).kernels
    (variant,) = [v for v in cast(tuple[FlashVariant, ...], kernel.variants) if v.symbol.endswith("h1k128t2")]
    assert variant.warpgroups is not None
    if "wave" in change:
        changed = dataclasses.replace(variant, warpgroups=dataclasses.replace(variant.warpgroups, **change))
    else:
        changed = dataclasses.replace(variant, **change)
    with pytest.raises(ValueError, match=re.escape(message)):
        emulated_flash_attention.launches(dataclasses.replace(kernel, variants=(changed,)), case)
