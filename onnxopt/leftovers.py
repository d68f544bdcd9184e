"""What has to be removed where a process is ended before it could clean up.

A context manager removes its folder when an exception leaves its block. While the main thread is inside a library's
C++ code, no exception can reach it: then another thread calls `remove` and ends the process. Where the process was
killed, a later one removes its folders: each folder is locked as long as its process, or a fork of it, lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from onnxopt import files

TEMPORARY = "onnxopt."  # prefix of a folder of temporary files
PROCESS = "onnxopt.process."  # prefix of a folder of copies that a process runs
PARTIAL = ".onnxopt.partial"  # suffix of a folder that is being written beside its final place
_UNLOCKED = ".onnxopt.unlocked."  # prefix of a folder that was made a moment ago
_UNLOCKED_SECONDS = 3600.0  # an older one was left between two system calls
_ID = "[0-9a-f]{16}"
_OURS = re.compile(rf"({re.escape(TEMPORARY)}|{re.escape(PROCESS)}){_ID}|\..*\.{_ID}{re.escape(PARTIAL)}", re.DOTALL)

_removals: dict[object, Callable[[], None]] = {}
_searched: set[tuple[int, str]] = set()  # processes, and the folders in which they looked for what others left
# Set where a thread goes on inside a library's C++ code that nobody waits for: then the process cannot end in order.
still_running = threading.Event()


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


def locked_folder(place: Path, prefix: str, suffix: str = "") -> tuple[Path, int]:
    """A new folder in `place` for this user alone, and the descriptor that holds its lock until it is closed.

    prefix, suffix: those of the constants above, around an id. Folders of killed processes in `place` are removed
    first. OSError where none can be made.
    """
    remove_abandoned(place)
    new = Path(tempfile.mkdtemp(prefix=_UNLOCKED, dir=place))
    try:
        descriptor = files.open_folder(new)
        try:
            with contextlib.suppress(OSError):  # a file system without locks, on which nobody can remove it either
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            folder = new.with_name(f"{prefix}{secrets.token_hex(8)}{suffix}")
            new.rename(folder)
        except BaseException:
            os.close(descriptor)
            raise
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return folder, descriptor


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for temporary files, gone when the block or the process ends. OSError where none can be made."""
    folder, descriptor = locked_folder(Path(tempfile.gettempdir()), TEMPORARY)
    discard = functools.partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        with removed_by(discard):
            yield folder
    finally:
        discard()
        os.close(descriptor)


def remove_abandoned(place: Path) -> None:
    """Remove the folders in `place` of processes that were killed: nobody holds a lock on them. Once in a process."""
    key = os.getpid(), os.path.abspath(place)
    if key in _searched:
        return
    _searched.add(key)
    with contextlib.suppress(OSError):
        for name in os.listdir(place):
            if _OURS.fullmatch(name) or name.startswith(_UNLOCKED):
                with contextlib.suppress(OSError):
                    _remove_unless_locked(place / name)


def _remove_unless_locked(folder: Path) -> None:
    status = folder.lstat()
    is_young = time.time() - status.st_mtime < _UNLOCKED_SECONDS
    if status.st_uid != os.geteuid() or (folder.name.startswith(_UNLOCKED) and is_young):
        return
    descriptor = files.open_folder(folder, follow=False)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
