"""Registers and spills: read from the compiler's log, and regions that spill are split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import compiler_report, generate, nvrtc
from onnxopt.codegen.architectures import ARCHS
from onnxopt.fusion.region import Kernel
from onnxopt.pipeline import flow
from tests.support.graphs import graph

_LIVE = 14  # tensors that are loaded before anything is computed, in vectors of four elements
_BODY = "  ".join(
    ["s0 = Tanh(x0)", *(f"s{k} = Mul(s{k - 1}, x{k})" for k in range(1, _LIVE)), f"y = Neg(s{_LIVE - 1})"]
)


def _model() -> ir.Model:
    return graph(", ".join(f"float[64, 64] x{k}" for k in range(_LIVE)), "float[64, 64] y", _BODY)


def test_the_log_of_ptxas() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'K_strided' for 'sm_90'
ptxas info    : Function properties for K_strided
ptxas         .     40 bytes stack frame, 36 bytes spill stores, 72 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 40 bytes cumulative stack size
ptxas info    : Compiling entry function 'K_flat' for 'sm_90'
ptxas info    : Function properties for K_flat
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 0 barriers
"""
    assert compiler_report.parse(log) == {
        "K_strided": compiler_report.Usage(registers=24, stack=40, spilled=36),
        "K_flat": compiler_report.Usage(registers=18, stack=0, spilled=0),
    }


def test_every_entry_point_is_reported_also_from_the_cache(tmp_path: Path) -> None:
    model = _model()
    kernels = outline(model, fuse(model))
    text = generate.generate(kernels)
    first, again = (nvrtc.compiled(text, ["sm_80", "sm_90"], tmp_path) for _ in range(2))
    assert first == again
    for arch in ("sm_80", "sm_90"):
        assert set(first.usage[arch]) == {v.symbol for k in kernels for v in k.variants}
        assert all(u.registers > 8 and not u.spilled for u in first.usage[arch].values())


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_odd_transposes_of_small_elements_spill_nowhere(tmp_path: Path, dtype: str) -> None:
    """One that does would be split into a transposition and the rest, for every GPU. int8 needs most registers."""
    model = graph(
        f"{dtype}[4099, 8191] x, {dtype}[4099] z",
        f"{dtype}[8191, 4099] y",
        "t = Transpose(x)  a = Add(t, z)  y = Max(a, z)",
    )
    text = generate.generate(outline(model, fuse(model)))
    archs = ARCHS if dtype == "int8" else ("sm_75", "sm_90")
    usage = nvrtc.compiled(text, archs, tmp_path).usage
    assert [(arch, name) for arch, found in usage.items() for name, u in found.items() if u.spilled] == []


def test_a_region_that_spills_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Path) -> None:
    """With 48 registers a thread (10 blocks of 128) the whole chain spills, its parts do not."""
    text_of = generate.generate

    def tight(kernels: Sequence[Kernel]) -> str:
        return text_of(kernels).replace("__launch_bounds__(128)", "__launch_bounds__(128, 10)")

    monkeypatch.setattr(generate, "generate", tight)
    path = tmp_path / "model.onnx"
    ir.save(_model(), path)
    whole = _model()
    kernels = outline(whole, fuse(whole))
    usage = nvrtc.compiled(generate.generate(kernels), ["sm_90"], tmp_path / "cache").usage
    assert compiler_report.spilling(kernels, usage), "the test needs a region that spills"
    manifest = flow.optimize(path, tmp_path / "artifact", archs=("sm_90",), cache=tmp_path / "cache").manifest
    regions = [site for kernel in manifest.kernels for site in kernel.sites]
    assert len(regions) > 1
    assert any("spilled registers" in refusal.reason for refusal in manifest.refusals)


def test_nothing_is_split_without_spills(tmp_path: Path, library: Path) -> None:
    path = tmp_path / "model.onnx"
    ir.save(_model(), path)
    manifest = flow.optimize(path, tmp_path / "artifact", archs=("sm_90",), cache=tmp_path / "cache").manifest
    assert [len(site.replaced) for kernel in manifest.kernels for site in kernel.sites] == [len(_model().graph)]
