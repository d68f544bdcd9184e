"""Caches in the user's folder: where they are, whether they can be trusted, and how large they may become.

What lies in a cache is used without asking its author, so folder and files must belong to the user, and nobody else may
be able to write to them. A cache that cannot be trusted, read or written costs time only: one warning names the folder
and the fix, and the work goes on without it.

No library is used. diskcache stores pickles in SQLite, joblib.Memory pickles in folders; neither checks digests or
owners, and joblib has no limit of its own. platformdirs finds the folder, which is one line here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from onnxopt import files
from onnxopt.errors import UsageError

SIZE_VARIABLE = "ONNXOPT_CACHE_SIZE"
_DEFAULT_SIZE = 2 * 1000**3  # bytes, of each cache
_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_RETAINED_SHARE = 0.9  # of the limit, after eviction: so that not every new entry evicts
PARTIAL = ".partial"  # suffix of what is being written
_PARTIAL_SECONDS = 3600.0  # a partial file older than this was left by a process that was killed
_OURS = re.compile(rf"[0-9a-f]{{64}}(\.[a-z]+)?|\.[0-9a-f]{{16,64}}(\.[a-z0-9_]+)?{re.escape(PARTIAL)}")
_warned: set[Path] = set()


class Unusable(Exception):
    """A cache cannot be used. The message names the folder, the problem and the fix."""


class Entry(NamedTuple):
    """One file or folder of a cache. used: seconds since the epoch. bytes: of it and all below it."""

    path: Path
    used: float
    bytes: int


def folder(name: str) -> Path:
    """The folder of the user's cache `name`: $XDG_CACHE_HOME/onnxopt/name, by default ~/.cache/onnxopt/name."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "onnxopt" / name


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """The descriptor of a cache folder, which is made where it is missing.

    Unusable where it cannot be made or opened, belongs to somebody else, or can be written by others.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = files.open_folder(path)
    except OSError as error:
        raise unusable(path, error) from None
    try:
        if problem := files.distrust(os.fstat(descriptor), path):
            raise Unusable(f"{path}: {problem}")
        yield descriptor
    finally:
        os.close(descriptor)


def unusable(path: Path, error: OSError) -> Unusable:
    """What an OSError means for the cache at `path`."""
    reason = error.strerror or error
    return Unusable(f"{path}: {reason}: make room there, or choose a folder that can be written (XDG_CACHE_HOME)")


def warn(path: Path, problem: Unusable, consequence: str) -> None:
    """Warn, once a process for each folder, that a cache is not used."""
    if path not in _warned:
        _warned.add(path)
        warnings.warn(f"{consequence}: {problem}", RuntimeWarning, stacklevel=3)


def size_limit() -> int:
    """Bytes that a cache may hold: $ONNXOPT_CACHE_SIZE ("500M", "2GB", "0"), by default 2 GB. UsageError otherwise."""
    text = os.environ.get(SIZE_VARIABLE, "").strip()
    if not text:
        return _DEFAULT_SIZE
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.upper())
    if number is None:
        raise UsageError(f"{SIZE_VARIABLE}={text}: not a size; write bytes, or 500MB, or 2GB")
    return int(float(number[1]) * _UNITS[number[2]])


def entries(path: Path) -> list[Entry]:
    """What a cache holds, files of the user aside. Entries that other processes remove meanwhile are left out."""
    listed = []
    with contextlib.suppress(OSError), os.scandir(path) as rows:
        for row in (row for row in rows if _OURS.fullmatch(row.name)):
            with contextlib.suppress(OSError):
                status = row.stat(follow_symlinks=False)
                size = _folder_size(Path(row)) if row.is_dir(follow_symlinks=False) else status.st_size
                listed.append(Entry(Path(row), status.st_mtime, size))
    return listed


def evict(entries: Iterable[Entry], limit: int, keep: Path | None = None) -> None:
    """Remove entries, least recently used first, until the rest fits `limit` bytes; and what killed processes left.

    keep: an entry that stays. Several processes may evict at once: an entry that is gone already is no error, and a
    reader that has a file open keeps it.
    """
    now, rest = time.time(), []
    for entry in entries:
        if entry.path.name.endswith(PARTIAL):
            if now - entry.used > _PARTIAL_SECONDS:
                remove(entry.path)
        else:
            rest.append(entry)
    total = sum(entry.bytes for entry in rest)
    if total <= limit:
        return
    for entry in sorted(rest, key=lambda entry: entry.used):
        if total <= limit * _RETAINED_SHARE:
            return
        if entry.path != keep:
            remove(entry.path)
            total -= entry.bytes


def _folder_size(path: Path) -> int:
    total = 0
    for folder_path, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder_path, name)).st_size
    return total


def remove(path: Path) -> None:
    """Remove an entry of a cache, in one step for other processes; one that is gone already is no error."""
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        gone = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
        path.rename(gone)
    except OSError:
        return  # another process removed it, or nobody may
    shutil.rmtree(gone, ignore_errors=True)
