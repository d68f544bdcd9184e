"""Compile the CUDA text of kernels, and the stand-in for the CUDA driver, with g++."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxopt import leftovers, paths
from onnxopt.errors import UsageError

_HERE = Path(__file__).resolve().parent
# The language is that of NVRTC. No fortified longjmp checks jumps between fibers, and kernels share no static memory.
FLAGS = (
    "-std=c++17", "-O1", "-w", "-fPIC", "-ffp-contract=off", "-fno-gnu-unique", "-U_FORTIFY_SOURCE", f"-I{_HERE}",
    f"-I{paths.cuda_kernels()}",
)  # fmt: skip
_DRIVER = "libcuda.so.1"
_POLL = 0.01  # seconds


def compiler() -> str:
    """The path of g++. UsageError where it is not installed."""
    path = shutil.which("g++")
    if path is None:
        raise UsageError("emulating CUDA kernels takes g++, which is not on the PATH; install it (Debian: g++)")
    return path


def compile_kernels(
    sources: Mapping[str, str],
    entry_points: Mapping[str, Sequence[str]],
    folder: Path,
    seconds: float,
    more: Sequence[str] = (),
) -> dict[str, str]:
    """Compile each kernel into folder/NAME.so, and the driver beside them; returns why kernels were not, by name.

    sources: the CUDA text of each kernel, a whole translation unit. entry_points: its symbols. Kernels that are not
    done after `seconds` are given up. more: options for g++. A driver that is there already is kept. UsageError where
    there is no g++, or it does not compile the driver.
    """
    driver, shared, commands = _HERE / "driver.cc", [compiler(), *FLAGS, *more, "-shared", "-o"], dict[str, list[str]]()
    if not (folder / _DRIVER).exists():
        commands[""] = [*shared, str(folder / _DRIVER), f"-Wl,-soname,{_DRIVER}", str(driver), "-ldl"]
    for name, text in sources.items():
        source = folder / f"{name}.cc"
        source.write_text(f'#include "cuda.h"\n#include "matrix_words.h"\n{text}\n{_launchers(entry_points[name])}')
        commands[name] = [*shared, str(folder / f"{name}.so"), str(source)]
    problems = _run_all(commands, folder, seconds)
    if "" in problems:
        raise UsageError(f"{driver}: {problems['']}")
    return problems


def _launchers(symbols: Sequence[str]) -> str:
    """A function for each entry point, which the driver can call without knowing its parameters."""
    return "\n".join(
        f'extern "C" void onnxopt_launch_{symbol}(unsigned blocks, unsigned threads, const void* params) {{\n'
        f"  emulation::launch(blocks, threads, [&] {{ emulation::call(onnxopt::{symbol}, params); }});\n}}"
        for symbol in symbols
    )


def _run_all(commands: Mapping[str, Sequence[str]], folder: Path, seconds: float) -> dict[str, str]:
    """Run the commands, as many at a time as there are cores; returns why some failed, each in one line."""
    end = time.monotonic() + seconds
    waiting, problems = dict(commands), dict[str, str]()
    running: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as stack:
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < (os.cpu_count() or 1):
                name = next(iter(waiting))
                errors = stack.enter_context((folder / f"{name}.err").open("wb"))
                running[name] = stack.enter_context(started(waiting.pop(name), stderr=errors))
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if running.pop(name).returncode:
                    problems[name] = f"g++ does not compile it: {_first_error(folder / f'{name}.err')}"
            time.sleep(_POLL)
    return problems | dict.fromkeys((*running, *waiting), f"g++ was not done with it after {seconds:.0f} s")


def _first_error(path: Path) -> str:
    lines = path.read_text("utf-8", errors="replace").splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "it says nothing")


@contextlib.contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process with those that it starts itself, which do not outlive the block. options: those of Popen."""
    with subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, **options) as process:

        def kill() -> None:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

        try:
            with leftovers.removed_by(kill):
                yield process
        finally:
            kill()
