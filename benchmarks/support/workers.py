"""Processes that prepare what they time side by side, and then time it one after the other, alone on the GPU."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TextIO, TypeVar

Key = TypeVar("Key")
_GONE = {"failed": "it ended; see the log"}


@dataclass(frozen=True)
class Job:
    """A command that says a line of JSON when it is ready, waits for a line, and answers with a line of JSON.

    environment: of its process, beside this one's.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class Workers(Generic[Key]):
    """One process a job, `at_once` of which prepare at the same time; the next begins when one is ready.

    alive: how many may have a process at a time, those that are ready among them.
    """

    def __init__(self, jobs: Mapping[Key, Job], log: TextIO, at_once: int = 8, alive: int | None = None) -> None:
        self._waiting, self._log, self._at_once = dict(jobs), log, at_once
        self._alive = len(jobs) if alive is None else alive
        self._processes: dict[Key, subprocess.Popen[str]] = {}

    def _start(self) -> Key:
        key = next(iter(self._waiting))
        job, pipe = self._waiting.pop(key), subprocess.PIPE
        self._processes[key] = subprocess.Popen(
            job.command, stdin=pipe, stdout=pipe, stderr=self._log, text=True, env={**os.environ, **job.environment}
        )
        return key

    def ready(self, deadline: float) -> Iterator[tuple[Key, dict[str, Any]]]:
        """Each as it is ready, and what it said; those that are not by then (time.perf_counter) are ended, and say so.

        What they prepare goes on while the caller has one of them answer.
        """
        reported: set[Key] = set()
        with selectors.DefaultSelector() as selector:
            while (left := deadline - time.perf_counter()) > 0:
                while self._waiting and self._room(reported):
                    key = self._start()
                    selector.register(self._processes[key].stdout, selectors.EVENT_READ, key)  # type: ignore[arg-type]
                if not selector.get_map():
                    break
                for event, _ in selector.select(left):
                    selector.unregister(event.fileobj)
                    reported.add(event.data)
                    yield event.data, self._line(event.data)
        for key, process in self._processes.items():
            if key not in reported:
                process.kill()
                yield key, {"failed": "ran out of time: not ready when the workers were stopped"}
        for key in self._waiting:
            yield key, {"failed": "ran out of time: not begun when the workers were stopped"}

    def _room(self, reported: set[Key]) -> bool:
        """Whether one more may begin. reported: those that are ready."""
        alive = [key for key, process in self._processes.items() if process.poll() is None]
        return len(alive) < self._alive and len(set(alive) - reported) < self._at_once

    def answer(self, key: Key, seconds: float | None = None) -> dict[str, Any]:
        """What a job answers, alone on the GPU; its process is ended where that takes longer than so many seconds."""
        process = self._processes[key]
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("go\n")
            process.stdin.flush()
        selector = selectors.DefaultSelector()
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            process.kill()
            return {"failed": f"ran out of time: no answer in {seconds:.0f} s"}
        return self._line(key)  # its end is not waited for: a CUDA context takes a second to go

    def _line(self, key: Key) -> dict[str, Any]:
        stream = self._processes[key].stdout
        assert stream is not None
        line = stream.readline()
        found: dict[str, Any] = json.loads(line) if line.startswith("{") else _GONE
        return found

    def end(self, key: Key | None = None) -> None:
        """End one process, or all, and wait for that: what they have of the GPU's memory is free then."""
        for process in [self._processes[key]] if key is not None else self._processes.values():
            process.kill()
            process.wait()


@contextlib.contextmanager
def answering() -> Iterator[TextIO]:
    """Inside of a job: where to write answers. What others print goes to stderr."""
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        yield answers
