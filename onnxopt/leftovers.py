"""What has to be removed where a process is ended while its main thread cannot clean up by itself.

A context manager removes its folder when an exception leaves its block. While the main thread is inside a library's
C++ code, no exception can reach it: then another thread calls `remove` and ends the process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_removals: dict[object, Callable[[], None]] = {}
# Set where a thread goes on inside a library's C++ code that nobody waits for: then the process cannot end in order.
left_running = threading.Event()


@contextlib.contextmanager
def removed_by(remove: Callable[[], None]) -> Iterator[None]:
    """Have `remove` called where the process is ended during the block. It may not raise, and may be called twice."""
    key = object()
    _removals[key] = remove
    try:
        yield
    finally:
        del _removals[key]


def remove() -> None:
    """Remove what all running blocks would leave."""
    for removal in reversed(list(_removals.values())):
        removal()
