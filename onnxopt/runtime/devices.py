"""The CUDA devices of this machine, as the driver reports them. No context is created, so no GPU memory is used."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import platform
from pathlib import Path
from typing import Any

from onnxopt.runtime.gpus import arch_of

# CUdevice_attribute of cuda.h
_MULTIPROCESSORS, _L2_BYTES, _MAJOR, _MINOR = 16, 38, 75, 76


@dataclasses.dataclass(frozen=True)
class Device:
    """One device as CUDA_VISIBLE_DEVICES orders them. memory, l2: bytes."""

    ordinal: int
    name: str
    compute_capability: str
    memory: int
    l2: int
    sms: int

    @property
    def arch(self) -> str:
        return arch_of(self.compute_capability)


class DriverError(Exception):
    """The driver is installed and does not work; the message is its answer. Not raised to users."""


@functools.cache
def devices() -> tuple[Device, ...]:
    """The devices; none without a driver. DriverError where the driver cannot start."""
    driver = _driver()
    if driver is None:
        return ()
    count = ctypes.c_int(0)
    _check(driver, driver.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    return tuple(_device(driver, ordinal) for ordinal in range(count.value))


def first() -> Device | None:
    """The device that ORT's CUDA EP runs on by default; None where there is none or the driver does not start."""
    try:
        return next(iter(devices()), None)
    except DriverError:
        return None


def processor() -> str:
    """This machine's processor as its maker names it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cores() -> str:
    """The processor and how many of its cores this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor()}, {count} cores"


def cuda_version() -> str | None:
    """The newest CUDA that the driver serves ("13.0"), None without a driver. DriverError as above."""
    driver = _driver()
    if driver is None:
        return None
    version = ctypes.c_int(0)
    _check(driver, driver.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def driver_release() -> str | None:
    """The driver's own release ("580.159.04"), None where the kernel module does not say."""
    with contextlib.suppress(OSError):
        words = Path("/proc/driver/nvidia/version").read_text("ascii", "replace").split()
        return next((w for w in words if w[0].isdigit() and "." in w), None)
    return None


@functools.cache
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    _check(driver, driver.cuInit(0), "cuInit")
    return driver


def _device(driver: Any, ordinal: int) -> Device:
    device, memory, name = ctypes.c_int(0), ctypes.c_size_t(0), ctypes.create_string_buffer(256)
    _check(driver, driver.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    _check(driver, driver.cuDeviceGetName(name, len(name), device), "cuDeviceGetName")
    _check(driver, driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device), "cuDeviceTotalMem")

    def attribute(number: int) -> int:
        value = ctypes.c_int(0)
        _check(driver, driver.cuDeviceGetAttribute(ctypes.byref(value), number, device), "cuDeviceGetAttribute")
        return value.value

    return Device(
        ordinal=ordinal,
        name=name.value.decode(errors="replace"),
        compute_capability=f"{attribute(_MAJOR)}.{attribute(_MINOR)}",
        memory=memory.value,
        l2=attribute(_L2_BYTES),
        sms=attribute(_MULTIPROCESSORS),
    )


def _check(driver: Any, status: int, call: str) -> None:
    if status == 0:
        return
    text = ctypes.c_char_p()
    has_text = driver.cuGetErrorString(status, ctypes.byref(text)) == 0 and text.value
    raise DriverError(f"{call}: {text.value.decode() if has_text and text.value else 'unknown error'} ({status})")
