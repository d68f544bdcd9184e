"""How long one run of a user's model may take: a Loop may have no end, and ONNX Runtime would run it for ever.

ONNX Runtime asks between two nodes, and at each round of a Loop, whether a run has to end. It does not ask within one
operator: on a CPU such a run is left to a thread of its own, which goes on until the process ends. On a GPU it keeps
the thread that began it, which a kernel that hangs never gives back: `hangs` ends a program then.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from onnxopt import leftovers
from onnxopt.errors import UsageError

if TYPE_CHECKING:
    import onnxruntime as ort

Result = TypeVar("Result")

_BASE = 30.0  # seconds
_BYTES_A_SECOND = 10e6  # of weights, for which the default allows a second more
GRACE = 5.0  # seconds for the operator that runs to come to its end
# By default, a run on a machine that does other work has up to four times as long, until it had a quarter in CPU time.
_BUSY_SHARE, _BUSY_FACTOR = 0.25, 4.0
_LOOK = 1.0  # seconds between two looks then


class Limit(NamedTuple):
    """seconds: of one run. asked: whether the user said so, who means the clock on the wall."""

    seconds: float
    asked: bool

    def is_over(self, spent: float, cpu: float) -> bool:
        """taken, cpu: seconds since the run began, and those that this process computed in meanwhile."""
        if spent < self.seconds:
            return False
        return self.asked or cpu >= _BUSY_SHARE * self.seconds or spent >= _BUSY_FACTOR * self.seconds


class TimeIsUp(Exception):
    """A run did not end within the limit. The message says so to a user."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(f"one run did not end within {limit.seconds:g} s; --timeout SECONDS allows it more time")


class Hangs(RuntimeWarning):
    """A run does not return, and nothing but the end of the process ends it."""


_end: list[Callable[[TimeIsUp], object]] = []  # what ends this process, if anything may
_current: contextvars.ContextVar[Limit | None] = contextvars.ContextVar("limit of one run", default=None)


def limit_of(timeout: float | None, model_bytes: int) -> Limit:
    """The limit that a user asked for; None for the default, by the size of the model with its weights."""
    if timeout is not None:
        return Limit(timeout, True)
    return Limit(round(_BASE + model_bytes / _BYTES_A_SECOND, 1), False)


def check(timeout: float | None) -> None:
    """UsageError unless this is a time, or None."""
    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        raise UsageError(f"timeout must be a number of seconds above 0, not {timeout:g}")


@contextlib.contextmanager
def runs_end_within(limit: Limit) -> Iterator[None]:
    """Limit every run of a session that begins in this block, also on threads that it starts by `in_background`."""
    token = _current.set(limit)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Limit | None:
    """The limit of a run that begins now; None for any time."""
    return _current.get()


def end_hanging_program(end: Callable[[TimeIsUp], object]) -> None:
    """Have `end` end this process where a run does not return. Another thread calls it, with the reason."""
    _end[:] = [end]


def hangs(limit: Limit) -> None:
    """A run did not end when it was told to, and its thread waits for it: end the program, if this is one of ours."""
    reason = TimeIsUp(limit)
    for end in _end:
        end(reason)
    warnings.warn(f"{reason}; it does not return, end this process", Hangs, stacklevel=2)


def limited(run: Callable[[], Result], options: ort.RunOptions, *, leave: bool) -> Result:
    """The result of a run with these options. TimeIsUp where it takes longer than the current limit.

    leave: leave a run that does not end when it is told to, as one inside a long operator, to a thread of its own.
    Otherwise the calling thread waits for it, and where it does not return, a program is ended (`hangs`).
    """
    limit = current()
    if limit is None:
        return run()
    return _watched(run, options, limit) if leave else _in_this_thread(run, options, limit)


class Clock:
    """Since when a run goes on."""

    def __init__(self, limit: Limit) -> None:
        self._limit, self._began, self._cpu = limit, time.monotonic(), time.process_time()

    def seconds_left(self) -> float:
        """Until the next look; 0 where the time is up."""
        spent, cpu = time.monotonic() - self._began, time.process_time() - self._cpu
        if self._limit.is_over(spent, cpu):
            return 0.0
        return self._limit.seconds - spent if spent < self._limit.seconds else _LOOK


def _watched(run: Callable[[], Result], options: ort.RunOptions, limit: Limit) -> Result:
    results: list[Result] = []
    errors: list[BaseException] = []
    ended = threading.Event()

    def work() -> None:
        try:
            results.append(run())
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            errors.append(error)
        ended.set()

    clock, thread = Clock(limit), threading.Thread(target=work, name="run of a model", daemon=True)
    thread.start()
    try:
        while not ended.wait(remaining := clock.seconds_left()):
            if not remaining:
                options.terminate = True
                if not ended.wait(GRACE):
                    leftovers.still_running.set()
                if not results:
                    raise TimeIsUp(limit)
    except BaseException:  # also Ctrl-C
        options.terminate = True
        raise
    if errors:
        raise errors[0]
    return results[0]


def _in_this_thread(run: Callable[[], Result], options: ort.RunOptions, limit: Limit) -> Result:
    clock, ended, is_up = Clock(limit), threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.wait(remaining := clock.seconds_left()):
            if not remaining:
                is_up.set()
                options.terminate = True
                if not ended.wait(GRACE):
                    hangs(limit)
                return

    threading.Thread(target=watch, name="limit of a run", daemon=True).start()
    try:
        return run()
    except Exception as error:
        if is_up.is_set():
            raise TimeIsUp(limit) from error
        raise
    finally:
        ended.set()
