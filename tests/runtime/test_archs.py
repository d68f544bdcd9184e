"""The names that --arch takes."""

from __future__ import annotations

import pytest

from onnxopt.codegen.architectures import ARCHS
from onnxopt.errors import UsageError
from onnxopt.runtime import archs, devices
from onnxopt.runtime.gpus import catalogue


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ARCHS),
        ((), ()),
        (("none",), ()),
        (("all",), ARCHS),
        (("sm_90", "sm_75"), ("sm_75", "sm_90")),
        (("h200",), ("sm_90",)),
        (("H100",), ("sm_90",)),
        (("a100, l4,sm_75", "rtx-5090"), ("sm_75", "sm_80", "sm_89", "sm_120")),
        (("NVIDIA H100 80GB HBM3",), ("sm_90",)),
    ],
)
def test_names(names: tuple[str, ...] | None, expected: tuple[str, ...]) -> None:
    assert archs.named(names) == expected


@pytest.mark.parametrize("key", [gpu.key for gpu in catalogue().values() if not gpu.refused])
def test_every_gpu_of_the_catalogue_is_a_name(key: str) -> None:
    assert archs.named((key,)) == (catalogue()[key].arch,)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("sm_35",), r"unknown architecture 'sm_35': onnxopt compiles for sm_75, .*; or name GPUs \(t4, .*all, native"),
        (("h",), "unknown architecture 'h'"),
        (("",), "unknown architecture ''"),
        (("sm_90,",), "unknown architecture ''"),
        (("v100",), "architecture 'v100': no code for sm_70"),
        (("none", "sm_90"), "'none' is for no kernels at all"),
    ],
)
def test_a_wrong_name_is_told_with_what_there_is(names: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        archs.named(names)


def _device(capability: str) -> devices.Device:
    return devices.Device(0, "NVIDIA Example", capability, 1 << 34, 1 << 20, 10)


def test_native_is_every_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices", lambda: (_device("9.0"), _device("8.6")))
    assert archs.named(("native",)) == ("sm_86", "sm_90")


def test_native_without_a_gpu_that_can_be_compiled_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "devices", lambda: ())
    with pytest.raises(UsageError, match="'native': this machine has no CUDA GPU; name the GPU"):
        archs.named(("native",))
    monkeypatch.setattr(devices, "devices", lambda: (_device("7.0"),))
    with pytest.raises(UsageError, match="'native': NVIDIA Example has sm_70, onnxopt compiles for sm_75"):
        archs.named(("native",))

    def broken() -> None:
        raise devices.DriverError("cuInit: unknown error (999)")

    monkeypatch.setattr(devices, "devices", broken)
    with pytest.raises(UsageError, match="the driver does not start"):
        archs.named(("native",))


def test_gpus_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert archs.named_gpus(("l4,h200", "h200")) == ("l4", "h200")
    assert archs.named_gpus(("h100",)) == ("h100_pcie", "h100_sxm")
    assert archs.named_gpus(("sm_90", "all", "none")) == ()
    here = [
        devices.Device(0, name, "9.0", 1 << 30, 1 << 20, 100) for name in ("NVIDIA H200", "NVIDIA H200 MIG 1g.18gb")
    ]
    monkeypatch.setattr(devices, "devices", lambda: tuple(here))
    assert archs.named_gpus(("native",)) == ("h200",)
