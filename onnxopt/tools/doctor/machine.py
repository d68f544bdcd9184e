"""Driver and GPU."""

from __future__ import annotations

from collections.abc import Iterator

from onnxopt.runtime import devices, gpus
from onnxopt.tools.doctor.finding import Finding


def driver() -> Iterator[Finding]:
    """The NVIDIA driver, and the newest CUDA that it serves."""
    try:
        cuda = devices.cuda_version()
    except devices.DriverError as error:
        yield Finding(
            "driver",
            "problem",
            f"the NVIDIA driver is there and does not start: {error}",
            "look at `nvidia-smi` and `dmesg`; in a container, start it with the GPU (docker run --gpus all)",
        )
        return
    if cuda is None:
        yield Finding("driver", "note", "no NVIDIA driver: artifacts run on the CPU")
        return
    release = devices.driver_release()
    yield Finding("driver", "ok", f"NVIDIA driver {release or 'of unknown release'}, for CUDA up to {cuda}")


def gpu() -> Iterator[Finding]:
    """Every device, with the GPU catalogue's entry for it."""
    try:
        reported = devices.devices()
    except devices.DriverError:
        return  # a finding of `driver`
    if not reported and devices.cuda_version() is not None:
        yield Finding(
            "gpu",
            "problem",
            "the driver reports no device",
            "look at CUDA_VISIBLE_DEVICES and `nvidia-smi`; in a container, pass the GPU to it",
        )
    for device in reported:
        yield _device(device)


def _device(device: devices.Device) -> Finding:
    text = f"{device.ordinal}: {device.name}, {device.arch}, {device.memory / 1e9:.0f} GB, {device.sms} SMs"
    entry = gpus.find_gpu(device.name)
    if entry is None:
        return Finding("gpu", "note", f"{text}; not in the GPU catalogue: artifacts use cuda.json, or what tune writes")
    if entry.refused:
        return Finding(
            "gpu",
            "problem",
            f"{text}: {entry.refused}",
            "artifacts run on it without their kernels, as the original would; use a GPU of sm_75 or newer",
        )
    return Finding("gpu", "ok", f"{text}; {entry.bandwidth_gb_s:g} GB/s, {entry.fp16_tflops:g} TFLOPS of float16")
