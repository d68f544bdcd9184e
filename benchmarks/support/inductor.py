"""Inductor beside onnxopt's kernels: compiled in several processes first, then timed like every session."""

from __future__ import annotations

import functools
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.support.gpu_timing import microseconds_in_graph

_WARMERS = 16  # processes that compile Inductor's kernels at the same time
Function = Callable[..., Any]


def compiled(function: Function) -> Function:
    """The function as Inductor compiles it, for these very shapes."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def inductor_microseconds(function: Function, sets: Sequence[Sequence[torch.Tensor]]) -> float:
    """Median time of one run of what `compiled` made over these inputs in turn, many runs in one CUDA graph."""
    # Results are kept, or the graph's memory pool would give every run the same, cached buffer.
    kept: list[Any] = [None] * len(sets)

    def run(k: int) -> None:
        kept[k] = function(*sets[k])

    return microseconds_in_graph([functools.partial(run, k) for k in range(len(sets))], torch.cuda.Stream())


def warm_in_processes(module: str, folder: pathlib.Path, names: Sequence[str], seconds: float) -> None:
    """Run `python -m MODULE warm FOLDER --only NAMES` over parts of the names side by side, so that Inductor's cache on
    disk has all kernels. What is not done after so many seconds is left to the measurement."""
    command = [sys.executable, "-m", module, "warm", str(folder), "--only"]
    parts = [names[k::_WARMERS] for k in range(_WARMERS) if names[k::_WARMERS]]
    processes = [subprocess.Popen([*command, *part]) for part in parts]
    end = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
