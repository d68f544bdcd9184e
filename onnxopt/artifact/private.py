"""Folders that belong to this process: copies of what it was told to run, which nobody swaps behind its back.

They lie in one folder that only this user can read, on a file system that programs may be run from. The process holds a
lock on the folder; it is removed when the process ends, or, where the process was killed, by the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from onnxopt import caches, leftovers
from onnxopt.artifact.contents import HeldFolder
from onnxopt.artifact.folder import temporary_root
from onnxopt.artifact.manifest import File
from onnxopt.errors import UsageError

_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_roots: dict[int, Path] = {}  # by process, as a fork has the parent's


def folder(name: str) -> Path:
    """The path of this process's folder `name`, which may not exist yet. UsageError where no folder can be made."""
    with _lock:
        root = _roots.get(os.getpid())
        if root is None or not root.is_dir():  # some systems remove old files of TMPDIR
            root = _roots[os.getpid()] = _make_root()
        return root / name


def copies(held_folder: HeldFolder, name: str, listed: Mapping[str, File]) -> Path:
    """This process's copy `name` of files of an artifact, each hashed as it is copied.

    The same name must mean the same files: they are copied once. ArtifactError where a file is not as listed.
    """
    with _lock:
        target = folder(name)
        if all((target / file).is_file() for file in listed):
            return target
        part = Path(tempfile.mkdtemp(dir=target.parent))
        try:
            for file, expected in listed.items():
                (part / file).parent.mkdir(parents=True, exist_ok=True)
                with (part / file).open("wb") as copy:
                    held_folder.copy(file, copy, expected)
            shutil.rmtree(target, ignore_errors=True)
            part.rename(target)
        except OSError as error:
            raise _unwritable(target.parent.parent, error) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return target


def _make_root() -> Path:
    problem: OSError | None = None
    for place in _places():
        try:
            if os.statvfs(place).f_flag & os.ST_NOEXEC:  # the library could not be loaded from there
                continue
            root, _ = leftovers.locked_folder(place, leftovers.PROCESS)  # until the process ends, and its forks
        except OSError as error:
            problem = problem or error
            continue
        atexit.register(_remove_root, root, os.getpid())
        return root
    raise _unwritable(Path(temporary_root()), problem)


def _places() -> Iterator[Path]:
    yield Path(temporary_root())
    yield Path("/dev/shm")
    cache = caches.folder("process")
    with contextlib.suppress(caches.Unusable), caches.opened(cache):
        yield cache


def _remove_root(root: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(root, ignore_errors=True)


def _unwritable(place: Path, error: OSError | None) -> UsageError:
    reason = (error.strerror or str(error)) if error else "programs may not be run from there (noexec)"
    return UsageError(
        f"{place}: the artifact's library cannot be copied to a temporary folder: {reason}; "
        "make room there, or set TMPDIR to another folder"
    )
