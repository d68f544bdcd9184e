"""Work beside the graph work, which is Python and leaves the other cores idle."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator
from typing import TypeVar

Result = TypeVar("Result")


def in_background(work: Callable[[], Result]) -> concurrent.futures.Future[Result]:
    """Begin the work on a thread of its own, in the context of the caller; the future has its result or exception."""
    executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    future = executor.submit(contextvars.copy_context().run, work)
    executor.shutdown(wait=False)
    return future


@contextlib.contextmanager
def threads(workers: int | None = None) -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """A number of threads, by default one for each core. Leaving the block waits for what was submitted.

    Where an exception leaves it, work that has not begun is dropped, and work that runs is left alone: a library's C++
    code cannot be stopped, and Ctrl-C would wait for it.
    """
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=workers or os.cpu_count())
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
