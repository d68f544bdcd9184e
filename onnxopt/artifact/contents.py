"""The files of an artifact as its manifest lists them: opened through one descriptor of the folder, hashed, copied.

A file is a regular file below the folder. Links, FIFOs, devices and sockets are refused without being opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from onnxopt import files
from onnxopt.artifact import layout
from onnxopt.artifact.manifest import File
from onnxopt.errors import ArtifactError

_COMPLETE = (layout.LIBRARY_FOLDER, layout.PROVIDERS)  # folders that hold nothing but what the manifest lists
_BLOCK = 1 << 20
_State = tuple[int, int, int, int, int]  # device, inode, size, and the times of the last change of content and status


class HeldFolder:
    """An artifact folder that stays the same folder while it is held, whatever is renamed. `held` makes one.

    shown: its path for messages. path: a path to the same folder through the descriptor, for those that open files by
    path; the ordinary path where /proc is missing.
    """

    def __init__(self, shown: Path, descriptor: int):
        self.shown, self._descriptor = shown, descriptor
        through_descriptor = Path(f"/proc/self/fd/{descriptor}")
        self.path = through_descriptor if through_descriptor.exists() else shown
        self._states: dict[str, _State] = {}

    def check(self, listed: Mapping[str, File]) -> None:
        """ArtifactError naming the first file that is missing, outside the folder, or not as the manifest says.

        A file that the manifest does not list is refused where others would take it for the artifact's: in lib/ and
        providers/.
        """
        check_paths(self.shown, listed)
        for name, expected in listed.items():
            with self.open(name, expected) as file:
                self._states[name] = _state(os.fstat(file.fileno()))  # before the hash: a later change shows
                with _readable(self.shown / name):
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            check_digest(self.shown / name, sha256, expected)
        for name in _COMPLETE:
            for path in sorted((self.path / name).rglob("*")):
                inside = path.relative_to(self.path).as_posix()
                if (path.is_symlink() or not path.is_dir()) and inside not in listed:
                    raise ArtifactError(
                        f"{self.shown / inside}: is not of this artifact: the manifest does not list it"
                    )

    def changed(self, names: Iterable[str]) -> Path | None:
        """The first of these files that is not the one that `check` hashed, or was written to since; None where none.

        Replacing a file changes its inode, and taking the old one away and putting it back changes the time of its last
        status change, which no program can set.
        """
        for name in names:
            try:
                if self._states[name] != _state(files.stat_inside(self._descriptor, name)):
                    return self.shown / name
            except OSError:
                return self.shown / name
        return None

    def is_read_only(self) -> bool:
        """Whether the folder lies on a file system that nobody can write to."""
        return bool(os.fstatvfs(self._descriptor).f_flag & os.ST_RDONLY)

    def open(self, name: str, expected: File) -> io.BufferedReader:
        """A listed file, open for reading. ArtifactError where it is no regular file, or its size is another."""
        path = self.shown / name
        try:
            file = files.open_inside(self._descriptor, name)
        except (FileNotFoundError, NotADirectoryError):
            raise ArtifactError(f"{path}: is missing") from None
        except IsADirectoryError:
            raise ArtifactError(f"{path}: is not a file") from None
        except files.NotRegularError as error:
            raise ArtifactError(f"{path}: {error.strerror}") from None
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from None
        size = os.fstat(file.fileno()).st_size
        if size != expected.bytes:
            file.close()
            raise ArtifactError(f"{path}: has {size} bytes, the manifest says {expected.bytes}")
        return file

    def copy(self, name: str, target: IO[bytes], expected: File) -> None:
        """Copy a listed file. ArtifactError where what was copied is not what was packaged."""
        with self.open(name, expected) as file:
            sha256 = copy_hashed(file, target, expected.bytes)
        check_digest(self.shown / name, sha256, expected)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[HeldFolder]:
    """The folder, held by a descriptor until the block ends. ArtifactError where it is no folder."""
    try:
        descriptor = files.open_folder(folder)
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be read: {error.strerror or error}") from None
    try:
        yield HeldFolder(folder, descriptor)
    finally:
        os.close(descriptor)


def check_files(folder: Path, listed: Mapping[str, File]) -> None:
    """Check every file of an artifact folder as `HeldFolder.check` does."""
    with held(folder) as held_folder:
        held_folder.check(listed)


def check_paths(folder: Path, listed: Iterable[str]) -> None:
    """ArtifactError where a manifest names a file outside the folder, or one that no manifest may list."""
    for name in listed:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or path.as_posix() != name:
            raise ArtifactError(f"{folder}: the manifest names a file outside the folder: {name}")
        if name in layout.UNLISTED:
            raise ArtifactError(f"{folder}: the manifest lists {name}, which no manifest may list")


def check_digest(path: Path, sha256: str, expected: File) -> None:
    """ArtifactError where a file's SHA-256 is not the expected one. path: of the file, for the message."""
    if sha256 != expected.sha256:
        raise ArtifactError(f"{path}: is not the file that was packaged (its sha256 differs)")


def copy_hashed(source: IO[bytes], target: IO[bytes], size: int) -> str:
    """Copy at most `size` bytes; returns the SHA-256 of the bytes copied."""
    digest = hashlib.sha256()
    while size > 0 and (block := source.read(min(_BLOCK, size))):
        digest.update(block)
        target.write(block)
        size -= len(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from None


def _state(status: os.stat_result) -> _State:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
