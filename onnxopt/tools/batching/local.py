"""Jobs on this machine, several at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence

from onnxopt.background import threads
from onnxopt.tools.batching.jobs import Job
from onnxopt.tools.batching.work import ModelOutcome
from onnxopt.tools.batching.worker import Worker

_CORES = 2  # that a job keeps busy while it compiles


def run(jobs: Sequence[Job], width: int | None, finish: Callable[[Job, ModelOutcome], None]) -> None:
    """Run the jobs, `width` at once, and call `finish` as each ends. What is measured, is measured one at a time."""
    width = min(len(jobs), width or max(1, (os.cpu_count() or 1) // _CORES))
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    measuring = threading.Lock()

    def outcome_of(job: Job) -> ModelOutcome:
        worker = idle.get()
        try:
            outcome = worker.ask(job)
            if not outcome.ok or not job.measures:
                return outcome
            with measuring:
                return worker.ask(job, outcome)
        finally:
            idle.put(worker)

    with contextlib.ExitStack() as stack:
        for _ in range(width):
            idle.put(stack.enter_context(Worker()))
        pool = stack.enter_context(threads(width))
        running = {pool.submit(outcome_of, job): job for job in jobs}
        for done in concurrent.futures.as_completed(running):
            finish(running[done], done.result())
