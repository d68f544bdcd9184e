"""Files that somebody else may have put there: only regular files are opened, and opening never waits.

Opening a FIFO waits for its other end, and a device may have no end. Both are refused before a byte is read.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


class NotRegularError(OSError):
    """A path is no regular file. strerror says what it is."""


def open_regular(path: str | os.PathLike[str], *, folder: int | None = None, follow: bool = True) -> io.BufferedReader:
    """A regular file, open for reading.

    folder: descriptor of the folder that a relative path begins at. follow: whether the path may be a link.
    NotRegularError where the path is a FIFO, a socket, a device, or a link that is not followed; other OSErrors as
    `open` raises them.
    """
    _check_regular(os.stat(path, dir_fd=folder, follow_symlinks=follow), path)  # opening a device may change it
    try:
        descriptor = os.open(path, _FLAGS if follow else _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise NotRegularError(errno.ELOOP, "it is a link, not a regular file", str(path)) from None
        raise
    try:
        _check_regular(os.fstat(descriptor), path)  # another file may have taken its place
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_inside(folder: int, name: str) -> io.BufferedReader:
    """The regular file `name` ("lib/kernels.json") below the folder of a descriptor, open for reading.

    No part of the name may be a link, to the inside or to the outside. Raises as `open_regular`.
    """
    parts = PurePosixPath(name).parts
    with contextlib.ExitStack() as opened:
        for part in parts[:-1]:
            folder = open_folder(part, folder=folder, follow=False)
            opened.callback(os.close, folder)
        return open_regular(parts[-1], folder=folder, follow=False)


def stat_inside(folder: int, name: str) -> os.stat_result:
    """The status of what `name` is below the folder of a descriptor. OSError where that is no regular file."""
    with open_inside(folder, name) as file:
        return os.fstat(file.fileno())


def open_folder(path: str | os.PathLike[str], *, folder: int | None = None, follow: bool = True) -> int:
    """The descriptor of a folder; the caller closes it. OSError where it is no folder, or a link not to be followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(path, flags if follow else flags | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError:
        if not follow and stat.S_ISLNK(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode):
            raise NotRegularError(errno.ELOOP, "it is a link, not a folder", str(path)) from None
        raise


@contextlib.contextmanager
def folder_descriptor(path: str | os.PathLike[str]) -> Iterator[int]:
    """The descriptor of a folder, closed when the block ends."""
    descriptor = open_folder(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_bytes(path: str | os.PathLike[str], limit: int = -1, *, follow: bool = True) -> bytes:
    """The content of a regular file, at most `limit` bytes of it. Raises as `open_regular`."""
    with open_regular(path, follow=follow) as file:
        return file.read(limit)


def read_text(path: str | os.PathLike[str]) -> str:
    """The UTF-8 content of a regular file. Raises as `open_regular`, and UnicodeDecodeError."""
    return read_bytes(path).decode("utf-8")


def distrust(status: os.stat_result, path: Path) -> str | None:
    """Why a file or folder may hold what somebody else wrote, with what to do; None where only this user writes it."""
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}, not to this user ({os.geteuid()}): remove or chown {path}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others than its owner can write to it: chmod go-w {path}"
    return None


def _check_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "special")
        raise NotRegularError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
