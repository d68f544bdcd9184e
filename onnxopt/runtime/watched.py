"""Runs that one thread repeats and times: another thread looks at all of them, and tells one to end whose time is up.

A run may not do as it is told: inside a kernel that hangs, or a long operator, ONNX Runtime does not ask, and no
exception reaches the thread that is in it. A program is ended then, by what it gave to
`time_limit.end_hanging_program`.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from onnxopt.runtime import time_limit
from onnxopt.runtime.time_limit import Clock, TimeIsUp

if TYPE_CHECKING:
    import onnxruntime as ort

_INTERVAL = 0.25  # seconds between two looks, each of microseconds


class Watched:
    """A run that one thread at a time begins and ends, limited as runs were when this was made.

    options: of the run, by which it is told to end; None where a run takes none.
    """

    def __init__(self, options: ort.RunOptions | None) -> None:
        self._options, self._limit = options, time_limit.current()
        self._number = 0  # of the run; odd while it goes on
        self._told: float | None = None  # when it was told to end
        self._seen, self._hangs = 0, False
        if self._limit is not None:
            self._clock = Clock(self._limit)
            _looker.add(self)

    def begin(self) -> None:
        self._number += 1

    def end(self) -> None:
        self._number += 1

    def time_is_up(self) -> TimeIsUp | None:
        """What to raise where the last run took longer than it may."""
        return None if self._told is None or self._limit is None else TimeIsUp(self._limit)

    def look(self) -> None:
        """Tell a run to end whose time is up; end the program where it does not."""
        number = self._number
        if self._limit is None or number % 2 == 0:
            return
        if number != self._seen:
            self._seen, self._clock = number, Clock(self._limit)
        elif self._told is None:
            if not self._clock.seconds_left():
                self._told = time.monotonic()
                if self._options is not None:
                    self._options.terminate = True
        elif time.monotonic() - self._told > time_limit.GRACE and not self._hangs:
            self._hangs = True
            time_limit.hangs(self._limit)


class _Looker:
    """The thread that looks, from the first run on that has a limit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._all = weakref.WeakSet[Watched]()

    def add(self, watched: Watched) -> None:
        with self._lock:
            self._all.add(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="limit of runs", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            self._look_once()

    def _look_once(self) -> None:
        with self._lock:
            all_watched = list(self._all)
        for watched in all_watched:
            watched.look()


_looker = _Looker()
