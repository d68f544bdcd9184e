"""Run and time ONNX Runtime sessions over torch tensors on the device. Needs onnxruntime and torch only.

A kernel of 20 us is shorter than the gap between two runs. So one CUDA graph of many runs is timed, for ONNX Runtime,
for a copy and for torch alike. The runs use several sets of buffers in rotation, so that no run finds its data in the
cache.
"""

from __future__ import annotations

import math
import pathlib
import statistics
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import onnxruntime as ort
import torch

_ELEMENT_TYPES = {  # torch dtype -> onnx.TensorProto.DataType
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.uint32: 12,
    torch.uint64: 13,
    torch.bfloat16: 16,
}
_ROTATED = 256 << 20  # bytes; buffers in rotation exceed every GPU's last-level cache several times
_COPIED = 256 << 20  # bytes of one copy
Tensors = dict[str, torch.Tensor]
_unpacked: dict[pathlib.Path, tempfile.TemporaryDirectory[str]] = {}


def library(folder: pathlib.Path) -> str:
    """Path of the library that `prepare` packed into folder/lib.tar.xz, unpacked once into a temporary folder."""
    if folder not in _unpacked:
        _unpacked[folder] = tempfile.TemporaryDirectory()
        with tarfile.open(folder / "lib.tar.xz") as archive:
            archive.extractall(_unpacked[folder].name, filter="data")
    return str(pathlib.Path(_unpacked[folder].name) / "lib" / "libonnxopt_ops.so")


def session(
    model: str | bytes,
    library: str | None,
    device: str,
    *,
    cuda_graph: bool = False,
    stream: torch.cuda.Stream | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    entries: Mapping[str, str] = MappingProxyType({}),
) -> ort.InferenceSession:
    """A session on the CUDA EP (or the CPU EP), with the library registered if one is given.

    stream: the torch stream to run on. options: further options of the CUDA EP. entries: of the session's
    configuration. Raises where ORT does.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    for key, value in entries.items():
        settings.add_session_config_entry(key, value)
    if library:
        settings.register_custom_ops_library(library)
    if device == "cpu":
        return ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    cuda = {"enable_cuda_graph": "1" if cuda_graph else "0", **options}
    if stream is not None:
        cuda["user_compute_stream"] = str(stream.cuda_stream)
    return ort.InferenceSession(model, settings, providers=[("CUDAExecutionProvider", cuda), "CPUExecutionProvider"])


def bound(session: ort.InferenceSession, inputs: Tensors, outputs: Tensors, *, wait: bool = True) -> Callable[[], None]:
    """A function that runs the session from and into these contiguous tensors. wait=False: without synchronizing."""
    binding = session.io_binding()
    for bind, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, tensor in tensors.items():
            if not tensor.is_contiguous():
                raise ValueError(f"{name} is not contiguous")
            kind = _ELEMENT_TYPES[tensor.dtype]
            bind(name, tensor.device.type, tensor.device.index or 0, kind, list(tensor.shape), tensor.data_ptr())
    options = ort.RunOptions()
    if not wait:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def run(_held: tuple[Tensors, Tensors] = (inputs, outputs)) -> None:
        session.run_with_iobinding(binding, options)

    return run


def microseconds_in_graph(
    runs: Sequence[Callable[[], object]], stream: torch.cuda.Stream, *, at_least: int = 24, replays: int = 15
) -> float:
    """Median time of one run inside one CUDA graph that calls `runs` in turn, at least `at_least` calls in all.

    Everything must launch on `stream` and synchronize nowhere. The first run begins after all work that the GPU was
    given before.
    """
    rounds = -(-at_least // len(runs))
    # torch's streams do not wait for the default one, whose pending kernels may still read memory that was freed, and
    # that tensors of these runs took over; or they have yet to write what these runs read.
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(2):
            for run in runs:
                run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        for _ in range(rounds):
            for run in runs:
                run()
    times = []
    with torch.cuda.stream(stream):
        for _ in range(replays + 3):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e3 / (rounds * len(runs)))
    return statistics.median(times[3:])


def session_microseconds(
    open_session: Callable[[torch.cuda.Stream], ort.InferenceSession],
    inputs: Sequence[Tensors],
    outputs: Sequence[Tensors],
) -> float:
    """Median time of one run of a session over these sets of buffers in turn, many runs in one CUDA graph."""
    stream = torch.cuda.Stream()
    run_in = open_session(stream)
    runs = [bound(run_in, i, o, wait=False) for i, o in zip(inputs, outputs, strict=True)]
    return microseconds_in_graph(runs, stream)


def rotation(moved: int, device: str, most: int = 24) -> int:
    """How many sets of buffers to run over in turn, so that none is found in the cache; a run moves `moved` bytes."""
    return 1 if device == "cpu" else max(2, min(most, math.ceil(_ROTATED / moved)))


def copy_microseconds(moved: int, sets: int) -> float:
    """Median time of a device copy that moves as many bytes, half of them read and half written.

    Rounded up to whole pages, and in pieces: sizes that are no multiple of 16 bytes, and 512 MB and more at once, are
    copied at two thirds of the rate, and would flatter what is compared with them.
    """
    half = math.ceil(moved / 2 / 4096) * 4096
    buffers = [torch.randint(0, 100, (2, half), dtype=torch.uint8, device="cuda") for _ in range(sets)]
    copies = [
        lambda b=b: [to.copy_(source) for source, to in zip(b[0].split(_COPIED), b[1].split(_COPIED), strict=True)]
        for b in buffers
    ]
    return microseconds_in_graph(copies, torch.cuda.Stream())


def poisoned(shape: Sequence[int], dtype: torch.dtype, device: str) -> torch.Tensor:
    """An output buffer full of values that no result has, so that an element never written shows."""
    if dtype.is_floating_point:
        return torch.full(tuple(shape), float("nan"), dtype=dtype, device=device)
    return torch.full(tuple(shape), True if dtype == torch.bool else torch.iinfo(dtype).max, dtype=dtype, device=device)


def disagreement(found: torch.Tensor, expected: torch.Tensor, relative: float, absolute: float) -> float:
    """The largest |found - expected| as a multiple of absolute + relative * |expected|; at most 1 agrees.

    NaN and infinities must lie at the same places, else the result is infinite.
    """
    found, expected = found.double(), expected.double()
    special = ~torch.isfinite(expected)
    if not torch.allclose(found[special], expected[special], rtol=0.0, atol=0.0, equal_nan=True):
        return float("inf")
    error = (found - expected).abs().masked_fill_(special, 0.0)
    if torch.isnan(error).any():
        return float("inf")
    worst = (error / (absolute + relative * expected.abs()).clamp_min(1e-300)).masked_fill_(special, 0.0)
    return float(worst.max()) if worst.numel() else 0.0


def all_of(steps: Mapping[str, Callable[[], float]]) -> dict[str, float | str]:
    """What every step returns, rounded to hundredths. Of one that fails, a text; the others are worth having."""
    found: dict[str, float | str] = {}
    for label, step in steps.items():
        try:
            found[label] = round(step(), 2)
        except Exception as error:  # noqa: BLE001 - as above
            found[label] = f"failed: {type(error).__name__}: {str(error)[-200:]}"
    return found
