"""Steps of jobs in a process of its own: what ends a process or fills its memory is the fault of one job."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pickle
import subprocess
import sys
from typing import IO, NoReturn, Self

from onnxopt import children
from onnxopt.artifact.folder import scratch
from onnxopt.errors import NotVerifiedError, describe
from onnxopt.runtime import time_limit
from onnxopt.runtime.time_limit import TimeIsUp
from onnxopt.tools.batching import work
from onnxopt.tools.batching.jobs import Job
from onnxopt.tools.batching.work import ModelOutcome


class Worker:
    """A process that does one step after the other; a new one takes its place where it ends. It ends with the block.

    In a block, its temporary files are gone with it: a process that is killed removes none of its own.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._temporary: str | None = None
        self._block = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._temporary = str(self._block.enter_context(scratch()))
        return self

    def __exit__(self, *_: object) -> None:
        with self._block:
            self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def ask(self, job: Job, earlier: ModelOutcome | None = None) -> ModelOutcome:
        """Optimize a job, or measure what was `earlier` of it."""
        child = self._child = self._child or children.start(__name__, self._temporary)
        assert child.stdin is not None and child.stdout is not None
        try:
            pickle.dump((job, earlier), child.stdin)
            child.stdin.flush()
            outcome: ModelOutcome = pickle.load(child.stdout)
            if outcome.exit_code == NotVerifiedError.exit_code:  # a run that did not end may go on there
                self._end()
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self._child = None
            ending = children.ending(child.wait())
            return work.failed(job, f"its process ended ({ending}); it may need more memory than there is")
        return outcome


def serve() -> None:
    """The child: read requests, and write the outcome of each. What libraries print goes nowhere."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        while request := _next():
            time_limit.end_hanging_program(functools.partial(_end_hanging, answers, request[0]))
            pickle.dump(_outcome(*request), answers)
            answers.flush()


def _next() -> tuple[Job, ModelOutcome | None] | None:
    try:
        request: tuple[Job, ModelOutcome | None] = pickle.load(sys.stdin.buffer)
    except EOFError:
        return None
    return request


def _end_hanging(answers: IO[bytes], job: Job, reason: TimeIsUp) -> NoReturn:
    """Answer for the thread that is inside a run that does not return, and end."""
    outcome = work.failed(job, str(reason))
    pickle.dump(dataclasses.replace(outcome, exit_code=NotVerifiedError.exit_code), answers)
    answers.flush()
    os._exit(NotVerifiedError.exit_code)


def _outcome(job: Job, outcome: ModelOutcome | None) -> ModelOutcome:
    try:
        return work.optimize(job) if outcome is None else work.measure(job, outcome)
    except Exception as error:  # noqa: BLE001 - a traceback tells a user nothing
        return work.failed(job, f"onnxopt failed: {describe(error)}; please report it")
