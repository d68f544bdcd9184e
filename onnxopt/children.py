"""Python processes of our own, for a library's C++ code that can end its process or takes over its signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Self

_PROGRAM = """\
import ctypes, importlib, json, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with its parent, however that ends
sys.path[:] = json.loads(sys.argv[1])
importlib.import_module(sys.argv[2]).serve()
"""
_EXECUTE = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""
# ONNX Runtime from 1.31 on makes a device id and sends events, beginning when it is imported. Not in processes of ours,
# unless the user sets the variable to 0.
QUIET = {"ORT_DISABLE_TELEMETRY": "1"}
_LONGEST_LOG = 2000  # characters of an error


class ChildEnded(Exception):
    """A child ended without an answer. The message says how: "SIGFPE", "exit code 4: what it wrote to stderr"."""


def start(module: str, temporary: str | None = None) -> subprocess.Popen[bytes]:
    """Run the function `serve` of a module in a new process, with pipes as its stdin and stdout.

    Ctrl-C in a terminal does not reach it. It ends with the thread that starts it, if the caller does not end it.
    temporary: the folder for its temporary files, which a caller removes that kills it; default that of this process.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**QUIET, **os.environ, **({} if temporary is None else {"TMPDIR": temporary})},
    )


def ending(code: int) -> str:
    """What a return code of subprocess means: the name of a signal, or the exit code."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


class Children:
    """Children that answer one message each. Threads may ask at the same time; leaving the block ends all that run.

    beside: they run beside other work, some of which is timed.
    """

    def __init__(self, *, beside: bool = False) -> None:
        if beside:
            _all_beside.add(self)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._killed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self, module: str, message: bytes) -> bytes:
        """The answer of a new child. ChildEnded where it gives none, or `kill` ended it."""
        answer, _ = self._communicate(lambda: start(module), message)
        return answer

    def run(self, command: Sequence[str], descriptors: Sequence[int]) -> str:
        """Run a program, which inherits the file descriptors; what it writes to stderr. ChildEnded as for `ask`."""

        def begin() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _EXECUTE, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=descriptors,
                start_new_session=True,
            )

        return self._communicate(begin, None)[1].decode(errors="replace")

    def _communicate(self, begin: Callable[[], subprocess.Popen[bytes]], message: bytes | None) -> tuple[bytes, bytes]:
        """What a new child wrote to stdout and stderr."""
        with self._lock:
            if self._killed:
                raise ChildEnded(signal.SIGKILL.name)
            child = begin()
            self._running.add(child)
        try:
            answer, errors = child.communicate(message)
        finally:
            with self._lock:
                self._running.discard(child)
        if child.returncode != 0:
            said = (errors or b"").decode(errors="replace").strip()[:_LONGEST_LOG]
            raise ChildEnded(f"{ending(child.returncode)}: {said}" if said else ending(child.returncode))
        return answer, errors

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop those that run during the block, in which none begins."""
        with self._lock:
            running = list(self._running)
            for child in running:
                child.send_signal(signal.SIGSTOP)
            try:
                yield
            finally:
                for child in running:
                    child.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End all children, and let none begin from now on."""
        with self._lock:
            self._killed = True
            for child in self._running:
                child.kill()


_all_beside: weakref.WeakSet[Children] = weakref.WeakSet()


@contextlib.contextmanager
def none_beside() -> Iterator[None]:
    """A block that is timed: all children beside other work are stopped until it ends."""
    with contextlib.ExitStack() as stack:
        for children in list(_all_beside):
            stack.enter_context(children.stopped())
        yield
