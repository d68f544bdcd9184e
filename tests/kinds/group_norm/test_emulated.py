"""CUDA kernels of group norms, run on the CPU by g++, against float64.

Every entry point of each case that needs no cluster is run with the numbers that the library hands over (emulation/
group_norm_launches.cc compiles its code): what is tested is the device code, its tails and its host.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from cases.group_norm import Case, fused, random_case, worst
from onnxopt import optimize
from tests.support.emulation import emulated_group_norm
from tests.support.emulation.emulated_group_norm import AMPERE, HOPPER


def _agree(tmp_path: Path, cases: list[Case]) -> set[str]:
    """The layouts that were run."""
    found = emulated_group_norm.results(tmp_path, cases)
    assert {case for case, _ in found} == set(cases)
    wrong = [(case, symbol, e) for (case, symbol), (y, x) in found.items() if not (e := worst(case, y, x)) <= 1]
    assert not wrong
    return {symbol.split("_", 2)[2].split("_")[0] for _, symbol in found}


def test_float32(tmp_path: Path) -> None:
    cases = [
        Case((2, 7, 9, 12), 4, in_front="time", behind="affine_silu"),
        Case((1, 5, 6, 6), 2, form="group", behind="residual"),
        Case((3, 1, 1, 8), 8, form="instance", behind="scale_shift"),  # a variance of nothing
        Case((1, 30, 40, 3), 1, form="spelled_open", known=False),
        Case((1, 3, 3, 33), 3, form="group", in_front="bias_time_silu", behind="affine"),
        Case((2, 4, 5, 40), 8, ones=True, behind="affine"),
        Case((1, 2, 2, 1023), 1, form="group", known=False),
        Case((1, 70, 70, 8), 2, form="group", known=False),
    ]
    assert _agree(tmp_path, cases) == {"held", "split0", "looped"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(tmp_path: Path, dtype: str) -> None:
    cases = [
        Case((1, 9, 11, 40), 8, dtype, in_front="time", behind="affine_silu", ones=True),
        Case((1, 6, 5, 80), 8, dtype, "group", behind="residual"),
        Case((1, 4, 4, 240), 16, dtype, "spelled_open", "bias_time_silu", "scale_shift", known=False),
        Case((1, 20, 20, 64), 64, dtype, "instance", behind="affine", known=False),
        Case((1, 3, 5, 10), 2, dtype, "group", "time"),
        Case((2, 8, 8, 160), 4, dtype, behind="affine_silu"),
        Case((3, 4, 5, 80), 8, dtype, "group", "time", "scale_shift", part=24),
    ]
    assert _agree(tmp_path, cases) == {"held", "split0", "looped"}


def test_a_mean_far_from_0_costs_no_digits(tmp_path: Path) -> None:
    case = Case((1, 12, 20, 16), 4, form="group", known=False, mean=3000.0)
    assert _agree(tmp_path, [case]) == {"held", "split0", "looped"}


def test_not_a_number_spoils_its_group_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((2, 6, 7, 16), 4, "float16", "group", behind="affine", known=False)
    given = case.feeds()
    given["t"][0, 3, 4, 5] = np.nan
    given["t"][1, 0, 0, 0] = np.inf
    monkeypatch.setattr(Case, "feeds", lambda self: given)
    with np.errstate(all="ignore"):
        _agree(tmp_path, [case])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_random(tmp_path: Path, dtype: str) -> None:
    _agree(tmp_path, list({random_case(seed, dtype): None for seed in range(12)}))


@pytest.mark.usefixtures("library")
def test_through_the_library(tmp_path: Path) -> None:
    """The launches that the library itself makes, one of them split, by a driver that runs the device code."""
    cases = {
        "static": Case((2, 12, 11, 40), 8, "float32", "spelled", "time", "affine_silu"),
        "split": Case((1, 48, 48, 16), 4, "float32", "group", behind="residual", known=False),
    }
    for name, case in cases.items():
        onnx.save(case.model(), tmp_path / f"{name}.onnx")
        shapes = None if case.known else {"N": (1,), "H": (48,), "W": (48,)}
        made = optimize(
            tmp_path / f"{name}.onnx",
            tmp_path / name,
            archs=["sm_80"],
            shapes=shapes,
            emulate=True,
            cache=tmp_path / "cache",
        )
        report = json.loads((tmp_path / name / "manifest.json").read_text())["verify"]
        assert report["status"] == "passed" and "CUDA (emulated)" in report["providers"], made
        assert [k["kind"] for k in json.loads(_kernels(tmp_path / name))["kernels"]] == ["group_norm"]


def _kernels(artifact: Path) -> str:
    (found,) = artifact.rglob("kernels.json")
    return found.read_text()


def _chosen(case: Case, gpu: tuple[int, int] = HOPPER, aligned: int = 256) -> str:
    (kernel,) = fused(case).kernels
    first, every = emulated_group_norm.launches(kernel, case.x[0], case.x[1] * case.x[2], gpu, aligned)
    return kernel.variants[first].symbol.split("_", 2)[2] if first < len(every) else ""


def test_the_entry_point_goes_by_size_alignment_and_gpu() -> None:
    case = Case((4, 32, 32, 160), 32, "float16", "group", known=False)
    assert _chosen(case) == "held_v8c5t256h4b8"
    assert _chosen(dataclasses.replace(case, x=(4, 8, 8, 640))) == "held_v8c5t256h4b1"
    assert _chosen(dataclasses.replace(case, x=(4, 16, 16, 320))) == "held_v8c5t256h4b2"
    assert _chosen(dataclasses.replace(case, x=(32, 16, 16, 320))) == "held_v8c5t256h4b2"
    assert _chosen(dataclasses.replace(case, x=(4, 32, 32, 480))) == "held_v8c15t512h4b8"
    assert _chosen(dataclasses.replace(case, x=(1, 64, 64, 160))) == "held_v8c5t512h8b8"
    assert _chosen(dataclasses.replace(case, x=(1, 256, 256, 160))) == "split0_v8c10"
    assert _chosen(dataclasses.replace(case, x=(4, 8, 8, 160)), AMPERE) == "held_v8c5t256h4b1"
    assert _chosen(case, AMPERE) == "split0_v8c10"
    assert _chosen(case, aligned=2) == "looped_v1c40"
    assert _chosen(dataclasses.replace(case, known=True)) == "held_v8c5t320h4b4"


@pytest.mark.parametrize("known", [True, False])
def test_every_size_has_an_entry_point(known: bool) -> None:
    for x, groups in (((1, 1, 1, 7), 7), ((1, 2000, 2000, 6), 3), ((2, 3, 5, 1000), 1), ((64, 7, 7, 96), 96)):
        for form in ("group", "spelled"):
            for gpu in (HOPPER, AMPERE):
                for aligned in (256, 2):
                    case = Case(x, groups, "float16", form if known else "group", known=known)
                    assert _chosen(case, gpu, aligned)
