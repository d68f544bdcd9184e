"""Emulate: run the CUDA kernels of an artifact on the CPU, each alone, and compare with the function's original nodes.

The library chooses entry points and computes their parameters as on a GPU of compute capability 8.0; a stand-in for the
CUDA driver then calls what g++ made of the kernel's text. So texts, choices and parameters are checked. What takes a
GPU stays unchecked: the machine code that NVRTC made, clusters of blocks, overlapping launches, and GEMMs.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnxopt import children
from onnxopt.graph import read
from onnxopt.kinds import KINDS
from onnxopt.runtime import devices
from onnxopt.verification.check import Check
from onnxopt.verification.emulation import gcc, one_kernel, shape_text
from onnxopt.verification.executed import EMULATED, Execution
from onnxopt.verification.reference import NotRunnable, Reference
from onnxopt.verification.sampling.cases import Case

_COMPILE_SECONDS = 120.0
_RUN_SECONDS = 60.0
_PLACES = 2  # of a kernel: those with the most different shapes say little more
_NEEDS_GPU = "{} runs it, which takes a GPU"
_LIBRARIES = {kind.name: kind.library for kind in KINDS if kind.library}


@dataclasses.dataclass(frozen=True)
class EmulatedKernel:
    """A kernel to emulate. entry_points: its symbols. source: its CUDA text, "" where it has none.

    places: the shapes at each node that calls it, inputs then outputs, by the node's name.
    """

    name: str
    kind: str
    entry_points: tuple[str, ...]
    source: str
    places: dict[str, tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Emulation:
    """What was emulated, how it compares, and the first failed check of each kernel that is wrong, by its name."""

    execution: Execution
    checks: tuple[Check, ...]
    faults: dict[str, Check]


@dataclasses.dataclass(frozen=True)
class _Job:
    """The runs of a kernel at one of its places."""

    kernel: str
    model: Path
    reference: Reference
    cases: tuple[Case, ...]


def emulate(model: Path, library: Path | None, kernels: Sequence[EmulatedKernel], folder: Path) -> Emulation:
    """Run the kernels of an artifact's model on the CPU, with its library, at a sample of sizes.

    folder: for temporary files, which are removed. Takes at most about three minutes. UsageError where there is no g++.
    """
    gcc.compiler()
    not_run = {k.name: _NEEDS_GPU.format(_LIBRARIES[k.kind]) for k in kernels if k.kind in _LIBRARIES}
    not_run |= {k.name: "its CUDA text is not known" for k in kernels if not k.source and k.name not in not_run}
    wanted = [k for k in kernels if k.name not in not_run]
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as name:
        work = Path(name)
        jobs = _jobs(model, wanted, work, not_run) if wanted and library is not None else []
        names = {job.kernel for job in jobs}
        chosen = [k for k in wanted if k.name in names]
        texts, symbols = {k.name: k.source for k in chosen}, {k.name: k.entry_points for k in chosen}
        problems = gcc.compile_kernels(texts, symbols, work, _COMPILE_SECONDS) if chosen else {}
        not_run |= problems
        jobs = [job for job in jobs if job.kernel not in problems]
        checks = _run(jobs, work, library, not_run) if jobs and library is not None else {}
        launched = set((work / "launched").read_text().split()) if (work / "launched").is_file() else set[str]()
    for kernel in chosen:
        passed = kernel.name in checks and all(c.ok for c in checks[kernel.name])
        if passed and launched.isdisjoint(kernel.entry_points):
            del checks[kernel.name]
            not_run[kernel.name] = "the artifact's library does not launch it in an emulation"
    return _emulation(kernels, jobs, checks, not_run)


def _emulation(
    kernels: Sequence[EmulatedKernel], jobs: Sequence[_Job], checks: dict[str, list[Check]], not_run: dict[str, str]
) -> Emulation:
    import onnxruntime as ort

    faults = {name: next(c for c in rows if not c.ok) for name, rows in checks.items() if not all(c.ok for c in rows)}
    shapes = {name: tuple(s for job in jobs if job.kernel == name for s in _shapes(job)) for name in sorted(checks)}
    execution = Execution(
        EMULATED, devices.processor(), ort.__version__, tuple(sorted(checks)), len(kernels), shapes,
        dict(sorted(not_run.items())),
    )  # fmt: skip
    return Emulation(execution, tuple(c for rows in checks.values() for c in rows), faults)


def _shapes(job: _Job) -> list[str]:
    """The inputs of each case, as "float32[7,768], float32[768]"."""
    feeds = [job.reference.feeds(case) for case in job.cases]
    return [", ".join(f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in inputs.values()) for inputs in feeds]


def _jobs(model: Path, kernels: Sequence[EmulatedKernel], folder: Path, not_run: dict[str, str]) -> list[_Job]:
    """The runs of each kernel at some of its places, smallest first; `not_run` gets the kernels that have none."""
    loaded = read.load(model).model
    calls, jobs = one_kernel.calls(loaded), list[_Job]()
    for kernel in kernels:
        places = {shapes: calls[node] for node, shapes in reversed(kernel.places.items()) if node in calls}
        problem = "the model does not call it"
        for shapes, call in list(places.items())[-_PLACES:]:
            path, texts = folder / f"{kernel.name}.{len(jobs)}.onnx", [shape_text.parse(text) for text in shapes]
            try:
                one_kernel.write(loaded, call, texts, path)
                reference = one_kernel.reference(path, texts, folder)
            except NotRunnable as error:
                problem = str(error)
                continue
            jobs.append(_Job(kernel.name, path, reference, tuple(reference.outputs)))
        if not any(job.kernel == kernel.name for job in jobs):
            not_run[kernel.name] = problem
    return sorted(jobs, key=lambda job: sum(a.size for c in job.cases for a in job.reference.outputs[c].values()))


def _run(jobs: Sequence[_Job], folder: Path, library: Path, not_run: dict[str, str]) -> dict[str, list[Check]]:
    """Run the jobs in a process of their own, and compare; a kernel that ends the process is a failed check."""
    work = [(job.model, [job.reference.feeds(case) for case in job.cases]) for job in jobs]
    (folder / "jobs").write_bytes(pickle.dumps((library, work)))
    end = time.monotonic() + _RUN_SECONDS
    checks: dict[str, list[Check]] = {}
    first = 0
    while first < len(jobs):
        problem = _run_from(first, folder, end - time.monotonic())
        while first < len(jobs) and (results := _results(folder, first, jobs[first])) is not None:
            checks.setdefault(jobs[first].kernel, []).extend(results)
            first += 1
        if first < len(jobs) and problem is None:
            for job in jobs[first:]:
                if job.kernel not in checks:
                    not_run[job.kernel] = f"there was no time left after {_RUN_SECONDS:.0f} s"
            break
        if first < len(jobs):
            job = jobs[first]
            failed = Check(EMULATED, True, str(job.cases[0]), job.kernel, None, error=problem or "it gave no result")
            checks.setdefault(job.kernel, []).append(failed)
            first += 1
    return checks


def _run_from(first: int, folder: Path, seconds: float) -> str | None:
    """Run the jobs from a number on; returns how the process ended, None where the time was up."""
    command = [sys.executable, "-m", "onnxopt.verification.emulation.run", str(folder), str(first)]
    environment = {**children.QUIET, **os.environ, "ONNXOPT_EMULATION": str(folder), "ONNXOPT_DISABLE": "0"}
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([str(folder), os.environ.get("LD_LIBRARY_PATH", "")])
    with gcc.started(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            _, errors = process.communicate(timeout=max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return None
    lines = errors.decode(errors="replace").strip().splitlines() or [""]
    if process.returncode < 0:
        return f"the process that ran it ended by {signal.Signals(-process.returncode).name}"
    return f"the process that ran it ended with {process.returncode}: {lines[-1]}"


def _results(folder: Path, number: int, job: _Job) -> list[Check] | None:
    """The checks of a job's cases; None where not all of them ran."""
    checks: list[Check] = []
    for k, case in enumerate(job.cases):
        path = folder / f"{number}.{k}"
        if not path.is_file():
            return None
        result: dict[str, Any] | str = pickle.loads(path.read_bytes())
        if isinstance(result, str):
            checks.append(Check(EMULATED, True, str(case), job.kernel, None, error=result))
        else:
            checks += job.reference.compare_outputs((EMULATED, True), case, result)
    return checks
