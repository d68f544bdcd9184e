"""A soak on a GPU: python tests/fuzz/gpu_soak.py ARTIFACT... --minutes 60 [--on cuda] [--device 0]
[--seed 0] [--no-empty]

Needs ONNX Runtime with its CUDA provider, numpy and onnx, not onnxopt. Each round opens a session of every artifact
with its library, runs it at mixed shapes from two threads that end with the round, and closes it. One session of each
artifact stays open for the whole soak and runs the same shapes. The first output of every shape is compared with that
of a session without the library. Each later output is compared with the first one, bit for bit.

Prints host memory (RSS) and memory of the GPU as it goes. Growth is how far the least of the last third of the rounds
lies above the least of the third before it. ONNX Runtime itself keeps memory of every session on a GPU. So a control in
a process of its own runs the same rounds with ONNXOPT_DISABLE=1, which makes the library register nothing. Exits with 1
where an output was wrong or a run failed, and where memory grew by more than it did in the control.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime as ort

LIBRARY = Path("lib") / "libonnxopt_ops.so"
PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
SIZES = (0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 48, 64)  # that an unknown dim is drawn from
SHAPES = 40  # of each artifact
RUNS = 6  # of a session in one round, half of them on each of two threads
ALLOWED = 8 << 20  # bytes that a third of the soak may add, for allocators that keep fragments
MEAN = 3e-3  # mean absolute difference from the session without the library, of the mean absolute value
MIN = 200  # rounds that growth is told from: before, allocators still grow with the shapes
REPORT_SECONDS = 30
SPREAD = 1.25  # growth of a session, of that in the control, up to which both count as the same
HOST, GPU = "host", "GPU"
Shape = tuple[tuple[str, int], ...]


class Grown(NamedTuple):
    """total: bytes by which the last third of the rounds lies above the third before. sessions: of one third."""

    total: int
    sessions: int


class Wrong(Exception):
    """An output that is not what it has to be."""


class Subject:
    """One artifact: its shapes, and what came out of each at first."""

    def __init__(self, artifact: Path, on: str, device: int, rng: random.Random, sizes: Sequence[int]):
        self.model, self.library, self.on, self.device = artifact / "model.onnx", artifact / LIBRARY, on, device
        self.name = artifact.name
        graph = onnx.load(self.model, load_external_data=False).graph
        constants = {i.name for i in graph.initializer}
        self.inputs = [i for i in graph.input if i.name not in constants]
        self.first: dict[Shape, str] = {}
        self.shapes: list[Shape] = []
        self._take_shapes(rng, sizes)
        self.lasting = self.session(True)

    def session(self, library: bool) -> ort.InferenceSession:
        options = ort.SessionOptions()
        options.use_deterministic_compute = True
        options.intra_op_num_threads = 2
        settings: dict[str, str] = {}
        if self.on == "cuda":  # a search by time would choose another algorithm in another session
            settings = {"device_id": str(self.device), "cudnn_conv_algo_search": "HEURISTIC", "use_tf32": "0"}
        if library:
            options.register_custom_ops_library(str(self.library))
        provider = PROVIDERS[self.on]
        session = ort.InferenceSession(str(self.model), options, providers=[(provider, settings)])
        if provider not in session.get_providers():
            raise SystemExit(f"ONNX Runtime could not load {provider}")
        return session

    def _take_shapes(self, rng: random.Random, sizes: Sequence[int]) -> None:
        """Shapes that the model takes, with their first outputs."""
        plain, own = self.session(False), self.session(True)
        names = sorted({d.dim_param for i in self.inputs for d in i.type.tensor_type.shape.dim if d.dim_param})
        drawn = {tuple((name, rng.choice(sizes)) for name in names) for _ in range(4 * SHAPES)}
        for shape in sorted(drawn, key=lambda _: rng.random()):
            try:
                expected = plain.run(None, self.feeds(shape))
            except Exception:  # noqa: BLE001  (a shape that the model refuses; ORT's errors have no common class)
                continue
            try:
                found = own.run(None, self.feeds(shape))
            except Exception as error:
                raise Wrong(f"{self.name} at {dict(shape)}: only the library refuses it: {error}") from error
            for a, b in zip(found, expected, strict=True):
                if not near(a, b):
                    raise Wrong(f"{self.name} at {dict(shape)}: the library's output is not the model's")
            self.first[shape] = digest(found)
            self.shapes.append(shape)
            if len(self.shapes) == SHAPES:
                break
        if not self.shapes:
            raise SystemExit(f"{self.name}: the model takes none of the shapes that were drawn")

    def feeds(self, shape: Shape) -> dict[str, np.ndarray]:
        """The same for the same shape: numbers are drawn by a seed that is made from it."""
        sizes = dict(shape)
        rng = np.random.default_rng(list(hashlib.sha256(repr(shape).encode()).digest()))
        found = {}
        for value in self.inputs:
            tensor = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            dims = [sizes[d.dim_param] if d.dim_param else d.dim_value or 1 for d in tensor.shape.dim]
            floats = np.issubdtype(dtype, np.floating)
            drawn = rng.standard_normal(dims) if floats else rng.integers(0, 2, dims)
            found[value.name] = np.asarray(drawn).astype(dtype)
        return found

    def check(self, session: ort.InferenceSession, shape: Shape) -> None:
        if digest(session.run(None, self.feeds(shape))) != self.first[shape]:
            raise Wrong(f"{self.name} at {dict(shape)}: not the bits of the first run")


def digest(outputs: Sequence[np.ndarray]) -> str:
    found = hashlib.sha256()
    for array in outputs:
        found.update(repr((array.shape, array.dtype.str)).encode() + np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def near(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.size or not np.issubdtype(a.dtype, np.floating):
        return bool(np.array_equal(a, b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    unknown = np.isnan(a)
    if not np.array_equal(unknown, np.isnan(b)):
        return False
    difference = np.abs(a - b)[~unknown & (a != b)].sum() / a.size
    return bool(difference <= MEAN * max(np.abs(b[~unknown & np.isfinite(b)]).mean(), 1e-3))


def round_of(subject: Subject, rng: random.Random, problems: list[str]) -> None:
    """One session opened, run and closed, and the lasting one run."""
    session = subject.session(True)

    def work(shapes: Sequence[Shape]) -> None:
        try:
            for shape in shapes:
                subject.check(session, shape)
                subject.check(subject.lasting, shape)
        except Exception as error:  # noqa: BLE001
            problems.append(f"{type(error).__name__}: {error}")

    shapes = rng.choices(subject.shapes, k=RUNS)
    threads = [threading.Thread(target=work, args=(shapes[k::2],)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def resident() -> int:
    """Bytes of host memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Device:
    """Bytes of one device that are in use, by all processes: run nothing else on it."""

    def __init__(self, device: int):
        self._driver = ctypes.CDLL("libcuda.so.1")
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self._say(self._driver.cuInit(0), "cuInit")
        self._say(self._driver.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
        self._say(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
        self._context = context

    @staticmethod
    def _say(status: int, call: str) -> None:
        if status:
            raise SystemExit(f"{call} failed with {status}")

    def used(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._say(self._driver.cuCtxPushCurrent_v2(self._context), "cuCtxPushCurrent")
        self._say(self._driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), "cuMemGetInfo")
        self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return total.value - free.value


def growth(values: Sequence[int]) -> int:
    """How far the least of the last third lies above the least of the third before it; 0 for too few to tell."""
    third = len(values) // 3
    return max(0, min(values[2 * third :]) - min(values[third : 2 * third])) if len(values) >= MIN else 0


def soak(
    subjects: Sequence[Subject], seconds: float, gpu: Device | None, rng: random.Random
) -> tuple[dict[str, Grown], list[str]]:
    """Rounds until the time is over or something is wrong: growth of the host's and the GPU's memory, and problems."""
    host, device, problems = list[int](), list[int](), list[str]()
    start = said = time.monotonic()
    print(f"{'minute':>7} {'sessions':>9} {'runs':>9} {'host MB':>9} {'GPU MB':>9}")

    def say() -> None:
        rounds = len(host)
        sessions, used = rounds * len(subjects), device[-1] / 1e6 if device else 0.0
        minute = (time.monotonic() - start) / 60
        print(f"{minute:7.1f} {sessions:9} {2 * RUNS * sessions:9} {host[-1] / 1e6:9.1f} {used:9.1f}", flush=True)

    while not problems and (time.monotonic() - start < seconds or not host):
        for subject in subjects:
            round_of(subject, rng, problems)
        gc.collect()
        host.append(resident())
        if gpu:
            device.append(gpu.used())
        if time.monotonic() - said > REPORT_SECONDS:
            said = time.monotonic()
            say()
    say()
    found = {}
    for what, values in ((HOST, host), (GPU, device)) if gpu else ((HOST, host),):
        grown, third = growth(values), max(1, len(host) // 3 * len(subjects))
        print(f"{what} memory: {grown / third / 1e3:.2f} KB more a session, {third} sessions in the last third")
        found[what] = Grown(grown, third)
    if len(host) < MIN:
        print(f"growth is not told from less than {MIN} rounds; there were {len(host)}")
    return found, problems


def control(arguments: Sequence[str], minutes: float) -> dict[str, float]:
    """Growth of a session in bytes where the library registers nothing. SystemExit where that run fails."""
    command = [sys.executable, __file__, *arguments, "--minutes", str(minutes), "--control-minutes", "0"]
    done = subprocess.run(command, env={**os.environ, "ONNXOPT_DISABLE": "1"}, capture_output=True, text=True)
    said = {what: float(kb) * 1e3 for what, kb in re.findall(r"^(\w+) memory: ([\d.]+) KB more", done.stdout, re.M)}
    if done.returncode or not said:
        raise SystemExit(f"the control failed: {(done.stdout + done.stderr)[-500:]}")
    return said


def beyond(found: Mapping[str, Grown], without: Mapping[str, float]) -> list[str]:
    """What grew by more than the control did."""
    return [
        f"{what} memory grew by {grown.total / 1e6:.1f} MB in {grown.sessions} sessions, the control by"
        f" {without.get(what, 0) * grown.sessions / 1e6:.1f} MB"
        for what, grown in found.items()
        if grown.total > ALLOWED + SPREAD * without.get(what, 0) * grown.sessions
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", type=Path, nargs="+", metavar="ARTIFACT")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--on", choices=tuple(PROVIDERS), default="cuda")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-empty", action="store_true", help="no size 0, which ORT's attention may not survive")
    parser.add_argument("--control-minutes", type=float, help="of the control; default a third of the time, 0 for none")
    options = parser.parse_args()
    ort.set_default_logger_severity(3)
    if options.on == "cuda":
        ort.preload_dlls()
    rng = random.Random(options.seed)
    sizes = [size for size in SIZES if size or not options.no_empty]
    try:
        subjects = [Subject(path.resolve(), options.on, options.device, rng, sizes) for path in options.artifacts]
    except Wrong as wrong:
        print(wrong)
        return 1
    for subject in subjects:
        print(f"{subject.name}: {len(subject.shapes)} shapes")
    third = options.minutes / 3 if options.control_minutes is None else options.control_minutes
    gpu = Device(options.device) if options.on == "cuda" else None
    found, problems = soak(subjects, (options.minutes - third) * 60, gpu, rng)
    if third and not problems:
        settings = ("--on", options.on, "--device", str(options.device), "--seed", str(options.seed))
        settings += ("--no-empty",) * options.no_empty
        without = control([*map(str, options.artifacts), *settings], third)
        print(
            "control: "
            + ", ".join(f"{what} memory {each / 1e3:.2f} KB more a session" for what, each in without.items())
        )
        problems = beyond(found, without)
    print("\n".join(problems) if problems else "no growth of the library's, no wrong output")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
