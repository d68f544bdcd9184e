"""Work beside the graph work, which is Python and leaves the other cores idle."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def in_background(work: Callable[[], Result]) -> concurrent.futures.Future[Result]:
    """Begin the work on a thread of its own; its result or exception comes from the future."""
    executor = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    future = executor.submit(work)
    executor.shutdown(wait=False)
    return future
