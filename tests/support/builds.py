"""What is compiled once in a run of pytest, for all its processes."""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER_VARIABLE = "ONNXOPT_TEST_BUILDS"  # set by conftest.py


@functools.cache
def folder() -> Path:
    """The run's folder; outside of a run, one that lives as long as this process."""
    if FOLDER_VARIABLE not in os.environ:
        own = tempfile.TemporaryDirectory()
        atexit.register(own.cleanup)
        return Path(own.name)
    return Path(os.environ[FOLDER_VARIABLE])


def once(name: str, build: Callable[[Path], None]) -> Path:
    """A folder of the run, which the first process that asks for this name fills; the others wait for it."""
    path = folder() / name
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_dir():
            unfinished = Path(tempfile.mkdtemp(dir=folder()))
            build(unfinished)
            unfinished.rename(path)
    return path
