"""Attention of many queries on the GPU: random ones, and one session over many shapes, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import pytest

from cases.extended_attention import Extended, random_extended
from cases.flash_attention import Case, fused, random_case
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.program.flash_attention import FlashAttentionVariant
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_COUNT = 40  # random attentions of each dtype
_PARTS = 4  # of cases, which compile side by side


def _prepared(folder: Path, cases: list[Case], for_hopper: bool = False) -> tuple[Path, list[Path]]:
    """The library beside the compiled kernels of all cases, and the path of every case's model.

    for_hopper: with no other entry points than those for Hopper.
    """
    kernels: dict[str, Kernel] = {}
    models = []
    for number, case in enumerate(cases):
        found = fused(case)
        for kernel in found.kernels:  # cases of one meaning have entry points of their own
            known = kernels.get(kernel.name, kernel).variants
            merged = {v.symbol: v for v in (*known, *kernel.variants)}
            if for_hopper:
                merged = {s: v for s, v in merged.items() if cast(FlashAttentionVariant, v).warpgroups is not None}
            kernels[kernel.name] = dataclasses.replace(kernel, variants=tuple(merged.values()))
        models.append(folder / f"model{number}.onnx")
        onnx.save(with_wrong_bodies(found.optimized), models[-1])
    chosen = list(kernels.values())
    fatbin = nvrtc.compile_cuda(generate.generate(chosen), [device_arch()])
    return write_library(folder / "lib", kernels_json.to_json(chosen, fatbin), fatbin), models


def _worst(case: Case, model: Path, library: Path) -> float:
    session = sessions.open_session(model, provider=sessions.CUDA, library=library)
    feeds = case.feeds()
    return case.worst(sessions.run(session, feeds)["y"], case.expected(feeds))


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_random_attentions(dtype: str, part: int, tmp_path: Path) -> None:
    cases = [random_case(seed, dtype) for seed in range(part, _COUNT, _PARTS)]
    library, models = _prepared(tmp_path, cases)
    errors = [_worst(case, model, library) for case, model in zip(cases, models, strict=True)]
    assert not [(case, error) for case, error in zip(cases, errors, strict=True) if not error <= 1]


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_windows_caps_sinks_and_groups(dtype: str, part: int, tmp_path: Path) -> None:
    cases: list[Case] = [
        *(random_extended(seed, dtype) for seed in range(_COUNT // 2)),
        Extended(2, 1024, 1024, 12, 64, dtype=dtype, bias=(True, False), by_query=False, before=64, after=64),
        Extended(2, 300, 300, 2, 80, dtype=dtype, bias=(True, True), before=30, after=0),
        Extended(2, 600, 600, 3, 64, dtype=dtype, bias=(True, False), by_query=False, before=64, after=64, padded=300),
        Extended(3, 50, 50, 3, 40, dtype=dtype, bias=(True, False), by_query=False, before=8, after=8, padded=30),
    ][part::_PARTS]
    library, models = _prepared(tmp_path, cases)
    errors = [_worst(case, model, library) for case, model in zip(cases, models, strict=True)]
    assert not [(case, error) for case, error in zip(cases, errors, strict=True) if not error <= 1]


@pytest.mark.skipif(sessions.cuda_is_usable() and device_arch() != "sm_90", reason="for Hopper")
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_of_warpgroups(dtype: str, part: int, tmp_path: Path) -> None:
    """Every tile for Hopper, whole and in part, without the entry points of other GPUs: nothing else could run."""
    cases: list[Case] = [
        Case(2, 197, 197, 12, 64, layout="split"),
        Case(3, 150, 150, 2, 64),
        Case(2, 20, 208, 3, 64, layout="heads"),
        Case(2, 130, 130, 4, 64, layout="interleaved"),
        Case(4, 1500, 1500, 8, 64, layout="split"),
        Case(1, 1000, 1000, 12, 64, layout="split"),
        Case(4, 1024, 1024, 12, 64, layout="split"),
        Case(1, 60, 190, 2, 64, causal=True, known=False),
        Case(2, 512, 512, 16, 128, layout="split"),
        Case(2, 100, 333, 2, 128, layout="heads"),
        Extended(2, 300, 300, 8, 64, groups=2, after=0),
        Extended(1, 900, 900, 2, 64, before=600, after=0),
        Extended(1, 700, 700, 4, 128, groups=2, after=0, sunk=True),
        Extended(8, 128, 128, 16, 128, groups=8, after=0),
        Extended(2, 512, 512, 16, 128, groups=8, after=0),
        Extended(1, 2000, 2000, 4, 128, after=0),
        Extended(2, 190, 190, 2, 64, after=0, sunk=True),
        Case(2, 197, 197, 3, 64, layout="split", bias=(False, True)),
        Case(3, 128, 128, 2, 64, layout="heads", bias=(True, False)),
        Case(1, 60, 190, 2, 64, bias=(True, True), causal=True, known=False),
        Case(1, 500, 500, 3, 128, layout="split", bias=(False, True)),
        Case(4, 100, 100, 2, 64, layout="split", bias=(True, True), period=2),
        Extended(3, 128, 128, 3, 64, bias=(True, False), by_query=False),
        Extended(2, 333, 333, 2, 64, bias=(True, False), by_query=False),
        Extended(2, 250, 250, 2, 128, bias=(True, True), by_query=False),
        Extended(2, 200, 200, 2, 128, bias=(False, True), sunk=True),
        Extended(2, 300, 300, 3, 64, bias=(True, False), by_query=False, after=0),
        Extended(2, 500, 500, 4, 128, groups=2, bias=(True, False), by_query=False, after=0),
        Extended(2, 130, 130, 4, 128, bias=(False, True), by_query=False, after=0),
        Extended(1, 900, 900, 2, 64, bias=(True, True), before=600, after=0),
        Extended(1, 700, 700, 2, 64, bias=(True, False), by_query=False, before=300, after=300),
        Extended(2, 900, 900, 2, 64, bias=(True, False), by_query=False, before=300, after=300, padded=700),
        Extended(2, 500, 500, 2, 128, bias=(True, False), by_query=False, before=300, after=300, padded=450),
        Extended(2, 700, 700, 2, 128, bias=(True, True), before=550, after=0, padded=690),
        Case(4, 300, 300, 4, 32, layout="split"),
        Case(2, 200, 200, 3, 40),
        Case(8, 500, 500, 16, 56, layout="split"),
        Extended(2, 333, 333, 4, 72, groups=2, after=0),
        Case(2, 130, 130, 2, 72, bias=(True, True)),
        Case(1, 260, 260, 20, 80, layout="interleaved"),
        Case(4, 512, 512, 16, 88),
        Extended(3, 250, 250, 4, 96, groups=1, after=0, sunk=True),
        Extended(8, 190, 190, 8, 96, bias=(True, False), by_query=False, padded=60),
        Case(2, 70, 300, 3, 104, layout="heads"),
        Case(2, 500, 500, 12, 120, layout="split"),
        Extended(2, 260, 260, 3, 136, before=600, after=0),
        Case(3, 333, 333, 2, 160, layout="split", bias=(False, True)),
        Extended(4, 500, 500, 8, 192, after=0),
        Extended(2, 100, 100, 2, 200, bias=(True, False), by_query=False, after=0),
        Case(2, 150, 150, 2, 248),
        Extended(8, 512, 512, 4, 256, groups=1, after=0),
        Extended(1, 600, 600, 8, 256, groups=4, after=0, cap=5.0),
        Extended(2, 300, 300, 2, 64, after=0, cap=2.0),
        Case(2, 200, 200, 2, 256, bias=(True, True)),
    ]
    cases = [dataclasses.replace(case, dtype=dtype) for case in cases]
    if dtype == "bfloat16":  # float16 leaves what scores differ by beside its least number
        cases.append(Extended(2, 130, 130, 2, 64, dtype=dtype, bias=(True, False), by_query=False, padded=130))
    cases = cases[part::_PARTS]
    library, models = _prepared(tmp_path, cases, for_hopper=True)
    errors = [_worst(case, model, library) for case, model in zip(cases, models, strict=True)]
    assert not [(case, error) for case, error in zip(cases, errors, strict=True) if not error <= 1]


@pytest.mark.parametrize(
    "first", [Case(2, 20, 50, 3, 32, bias=(True, True), known=False), Case(2, 20, 50, 3, 64, known=False)]
)
def test_one_session_takes_any_shape(first: Case, tmp_path: Path) -> None:
    library, (model,) = _prepared(tmp_path, [first])
    session = sessions.open_session(model, provider=sessions.CUDA, library=library)
    for batch, queries in ((1, 1), (300, 70), (2, 50), (5, 1000)):
        case = dataclasses.replace(first, batch=batch, queries=queries)
        feeds = case.feeds()
        assert case.worst(sessions.run(session, feeds)["y"], case.expected(feeds)) <= 1


def test_hidden_rows_and_infinite_keys_stay_where_they_are(tmp_path: Path) -> None:
    case = Case(2, 40, 70, 2, 24, bias=(True, False))
    library, (model,) = _prepared(tmp_path, [case])
    feeds = case.feeds()
    feeds["bias"][0, 0, 3] = -np.inf
    feeds["k"][1, 5, 7] = np.nan
    session = sessions.open_session(model, provider=sessions.CUDA, library=library)
    with np.errstate(all="ignore"):
        assert case.worst(sessions.run(session, feeds)["y"], case.expected(feeds)) <= 1
