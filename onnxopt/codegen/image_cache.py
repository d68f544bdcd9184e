"""The cache of compiled images: a file for each, which is compiled again where it is not what was written.

A file is its content and then a SHA-256 of the format, its name and the content. The name begins with the key of what
was compiled. So a file with a flipped bit, a file cut short, and the file of another key are all as good as none.
caches.py says whom the folder has to belong to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

from onnxopt import caches, files, leftovers

# Also part of the key of what was compiled: another release that shares the folder reads no file of another format.
FORMAT = b"onnxopt compiled image 1"
_DIGEST_BYTES = 32
_CONSEQUENCE = "compiled kernels are not cached"


class ImageCache:
    """Files by name in one folder. Threads and processes may use it at the same time.

    A cache without a folder (descriptor None) holds nothing and keeps nothing.
    """

    def __init__(self, folder: Path, descriptor: int | None):
        self._folder, self._descriptor = folder, descriptor
        self._lock = threading.Lock()
        self.written = False

    def close(self) -> None:
        """Let what is being written become whole, and hold and keep nothing from now on: threads may still run."""
        with self._lock:
            self._descriptor = None

    def read(self, name: str) -> bytes | None:
        """The content that was written as `name`; None where there is none that can be trusted."""
        try:
            with self._lock:
                if self._descriptor is None:
                    return None
                opened_file = files.open_regular(name, folder=self._descriptor, follow=False)
            with opened_file as file:
                if files.distrust(os.fstat(file.fileno()), self._folder / name):
                    return None
                data = file.read()
                with contextlib.suppress(OSError):  # of a read-only cache
                    os.utime(file.fileno())  # eviction removes what was not used for the longest time
        except OSError:
            return None
        content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        return content if digest == _digest(name, content) else None

    def write(self, name: str, content: bytes) -> None:
        """Keep `content` as `name`, or warn. It is renamed when it is whole, so that a reader finds no part of it."""
        with self._lock:
            if self._descriptor is None:
                return
            try:
                self._write(self._descriptor, name, content + _digest(name, content))
            except OSError as error:
                caches.warn(self._folder, caches.unusable(self._folder, error), _CONSEQUENCE)
            else:
                self.written = True

    @staticmethod
    def _write(folder: int, name: str, data: bytes) -> None:
        part = f".{secrets.token_hex(8)}{caches.PARTIAL}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
                file.write(data)
            os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[ImageCache]:
    """The cache at `folder`; one that keeps nothing, and a warning, where the folder cannot be used.

    What was not used for the longest time is removed at the end, if anything was written and the folder is too large.
    UsageError where ONNXOPT_CACHE_SIZE is no size.
    """
    limit = caches.size_limit()
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(caches.opened(folder)) if limit else None
        except caches.Unusable as problem:
            caches.warn(folder, problem, _CONSEQUENCE)
            descriptor = None
        cache = ImageCache(folder, descriptor)
        try:
            with leftovers.removed_by(cache.close):
                yield cache
        finally:
            cache.close()
            if cache.written:
                caches.evict(caches.entries(folder), limit)


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.sha256(FORMAT + b"\0" + name.encode() + b"\0" + content).digest()
