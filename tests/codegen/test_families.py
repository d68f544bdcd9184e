"""Architectures that share PTX: which they are, and that sharing changes no machine code of the kernels here."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt import paths
from onnxopt.children import Children
from onnxopt.codegen import families, included, nvrtc_process, ptxas
from onnxopt.codegen import nvrtc as compiling
from onnxopt.codegen.architectures import ARCHITECTURES, ARCHS
from onnxopt.codegen.families import Family
from onnxopt.codegen.nvrtc import compile_cuda
from onnxopt.errors import CompileError

RELEASE = (12, 9)
SOURCE = """#include "pointwise/pointwise.cuh"
extern "C" __global__ void k(float* y) { y[threadIdx.x] = onnxopt::erf(onnxopt::sqrt(y[threadIdx.x])); }
"""
needs_ptxas = pytest.mark.skipif(
    ptxas.installed(RELEASE) is None, reason="the assembler is missing: pip install 'nvidia-cuda-nvcc-cu12==12.9.*'"
)


def test_every_architecture_is_in_one_family() -> None:
    found = families.of(ARCHS, ())
    assert sorted(arch for family in found for arch in family.archs) == sorted(ARCHS)
    assert all(family.first == family.archs[0] for family in found)
    assert {a.name: a.family for a in ARCHITECTURES} == {arch: f.first for f in found for arch in f.archs}


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("__CUDA_ARCH__ >= 800", ["sm_80", "sm_80", "sm_80"]),  # true for all of them
        ("__CUDA_ARCH__ >= 890", ["sm_80", "sm_80", "sm_89"]),
        ("__CUDA_ARCH__ < 860", ["sm_80", "sm_86", "sm_86"]),
        ("__CUDA_ARCH__ > 860", ["sm_80", "sm_80", "sm_87"]),
        ("__CUDA_ARCH__ == 860", ["sm_80", "sm_86", "sm_80"]),
        ("__CUDA_ARCH__ != 890 && __CUDA_ARCH__ <= 800", ["sm_80", "sm_86", "sm_89"]),
    ],
)
def test_a_condition_splits_a_generation(condition: str, expected: list[str]) -> None:
    found = {arch: f.first for f in families.of(ARCHS, [f"#if {condition}"]) for arch in f.archs}
    assert [found[arch] for arch in ("sm_80", "sm_86", "sm_89")] == expected


def test_code_for_one_architecture_alone_has_a_target_of_its_own() -> None:
    asks = ("extern int unused;", "#ifdef __CUDA_ARCH_FEAT_SM90_ALL")
    targets = [families.target(arch, asks) for arch in ARCHS]
    assert targets == ["sm_90a" if arch == "sm_90" else arch for arch in ARCHS]
    assert [families.target(arch, asks[:1]) for arch in ARCHS] == list(ARCHS)
    assert Family("sm_90a", ("sm_90a",)) in families.of(targets, (*asks, "__CUDA_ARCH__ >= 900"))
    assert families.retargeted(b".version 8.8\n.target sm_90a\n", "sm_90a") == b".version 8.8\n.target sm_90a\n"


def test_only_products_of_warpgroups_are_for_hopper_alone() -> None:
    """So that all other kernels stay what they were."""
    root = paths.cuda_kernels()
    telling = [p.name for p in root.rglob("*.*h") if families.target("sm_90", [p.read_text("utf-8")]) != "sm_90"]
    assert telling == ["warpgroup_products.cuh"]
    header = "device/products/warpgroup_products.cuh"
    assert header in included.headers('#include "flash_attention/hopper_flash_attention.cuh"')
    assert header in included.headers('#include "gemm/large_products.cuh"')
    assert header not in included.headers('#include "flash_attention/flash_attention.cuh"')
    assert header not in included.headers('#include "gemm/few_rows_products.cuh"')


def test_the_ptx_is_the_same_for_any_choice_of_architectures() -> None:
    assert families.of(["sm_89"], ()) == (Family("sm_80", ("sm_89",)),)


def test_only_codes_tell_ada_from_ampere() -> None:
    """So that other kernels compile once for all of compute capability 8."""
    root = paths.cuda_kernels()
    telling = [p.name for p in root.rglob("*.*h") if len(families.of(("sm_80", "sm_89"), [p.read_text("utf-8")])) > 1]
    assert telling == ["narrow_float8.cuh"]
    assert "device/narrow_float8.cuh" not in included.headers('#include "rowwise/rowwise.cuh"')


@pytest.mark.parametrize(
    ("asked", "serving"),
    [
        (("sm_80", "sm_86", "sm_87", "sm_89"), {"sm_86": "sm_80", "sm_89": "sm_80"}),
        (("sm_86", "sm_87", "sm_89"), {"sm_89": "sm_86"}),
        (("sm_75", "sm_90", "sm_90a", "sm_100", "sm_120"), {}),  # of other major numbers, or of the architecture alone
    ],
)
def test_machine_code_serves_later_gpus_of_its_major_number(asked: tuple[str, ...], serving: dict[str, str]) -> None:
    """Not embedded ones, and none that a header tells apart."""
    assert families.serving(asked, []) == {arch: serving.get(arch, arch) for arch in asked}
    apart = families.serving(asked, ["#if __CUDA_ARCH__ >= 890"])
    assert apart == {arch: arch if arch == "sm_89" else serving.get(arch, arch) for arch in asked}


def test_headers_are_those_that_are_included() -> None:
    found = included.headers('#include "pool/pool.cuh"\n// #include "scan/scan.cuh"\n#include "missing.h"\n')
    assert {"pool/pool.cuh", "pool/abi.h", "device/scalar.cuh"} <= found.keys()
    assert not any(name.startswith(("scan/", "rowwise/")) or name == "missing.h" for name in found)
    assert list(found) == sorted(found)


@needs_ptxas
def test_shared_ptx_gives_the_machine_code_of_nvrtc(tmp_path: Path) -> None:
    program = ptxas.installed(RELEASE)
    assert program is not None
    headers = included.headers(SOURCE)
    with Children() as children:
        ptx, _ = nvrtc_process.compile_in(children, SOURCE, headers, "compute_80")
        for arch in ("sm_80", "sm_89"):
            alone, report = nvrtc_process.compile_in(children, SOURCE, headers, arch)
            shared = ptxas.assemble(program, children, families.retargeted(ptx, arch), arch)
            assert shared[0] == alone
            assert shared[1].splitlines()[1] == report.splitlines()[1]  # the entry function, for the architecture


@needs_ptxas
def test_a_fatbin_by_ptxas_is_that_of_nvrtc_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archs = ("sm_75", "sm_86", "sm_89")
    shared = compile_cuda(SOURCE, archs, tmp_path / "shared")
    assert compile_cuda(SOURCE, archs, tmp_path / "shared") == shared
    assert len(list((tmp_path / "shared").glob("*.ptx"))) == 2  # for three architectures
    monkeypatch.setattr(compiling.ptxas, "installed", lambda release: None)
    assert compile_cuda(SOURCE, archs, tmp_path / "alone") == shared


@needs_ptxas
def test_what_ptxas_refuses_is_an_error_with_its_words() -> None:
    program = ptxas.installed(RELEASE)
    assert program is not None
    with Children() as children, pytest.raises(CompileError, match=r"does not assemble for sm_90 \(exit code .*fatal"):
        ptxas.assemble(program, children, b"no ptx", "sm_90")


def test_a_ptxas_of_another_release_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas.importlib.metadata, "version", lambda name: "13.0.48")
    assert ptxas.installed(RELEASE) is None
