"""Which entry point of a group norm the library launches, by size, alignment and GPU; artifacts that launch them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import onnx
import pytest

from cases.group_norm import Case, fused
from onnxopt import optimize
from tests.support.emulation import kernel_launches
from tests.support.emulation.kernel_launches import AMPERE, HOPPER, Gpu


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


def _chosen(case: Case, gpu: Gpu = HOPPER, aligned: int = 256) -> str:
    (kernel,) = fused(case).kernels
    return kernel_launches.chosen(kernel, case.sizes(), gpu, aligned)


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
