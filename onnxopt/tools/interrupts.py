"""Ctrl-C, SIGTERM and SIGHUP: a command ends within a second, whatever it is doing, and leaves nothing.

The handler raises Interrupted in the main thread, whose context managers remove their folders on the way out. That has
no effect while the main thread is inside a library's C++ code, which may take many seconds. So a second thread, which
the operating system wakes through a pipe, waits half a second; then it removes the folders and ends the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

from onnxopt import leftovers

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE = 0.5  # seconds for the main thread to end by itself


class Interrupted(KeyboardInterrupt):
    """A signal asks the command to end. number: of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def install() -> None:
    """End the process on SIGINT, SIGTERM and SIGHUP from now on; a signal that is ignored stays ignored."""
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), name="interrupts", daemon=True).start()
    for number in handled:
        signal.signal(number, _interrupt)


def let_finish() -> None:
    """Let these signals raise KeyboardInterrupt and nothing else, for a command that keeps its results so far."""
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def end(number: int) -> NoReturn:
    """Remove what the command would leave, and end the process as a shell reports a signal: with code 128 + number.

    Other threads are not waited for.
    """
    leftovers.remove()
    os._exit(128 + number)


def end_with(code: int) -> NoReturn:
    """The same with an exit code, after writing what was printed."""
    sys.stdout.flush()
    sys.stderr.flush()
    leftovers.remove()
    os._exit(code)


def leave_runs(code: str | int | None) -> None:
    """End the process with this code where a run of a model goes on that nobody waits for.

    Destructors of ONNX Runtime would pull its session from under it.
    """
    if leftovers.still_running.is_set():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1 if code else 0)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # a second one must not stop the cleaning up
    raise Interrupted(number)


def _watch(reader: int) -> None:
    number = os.read(reader, 1)[0]
    while number not in _SIGNALS:
        number = os.read(reader, 1)[0]
    time.sleep(_GRACE)
    end(number)
