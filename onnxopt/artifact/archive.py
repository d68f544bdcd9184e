"""Archives: an artifact as one file, a zip whose bytes follow from the artifact alone.

Entries are stored, not compressed (weights and kernels hardly shrink, and what a compressor writes differs between its
releases), sorted by name, and carry no time, owner or link. Reading trusts nothing: names and sizes must be those of
the manifest inside, no more and no fewer, and each file is hashed while it is written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from onnxopt import caches, files
from onnxopt.artifact import contents, layout, private, signing
from onnxopt.artifact.folder import check_output, staging, temporary_files
from onnxopt.artifact.manifest import File
from onnxopt.artifact.signing import Head
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.paths import StrPath

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first that a zip can hold
_LARGEST_MANIFEST = 256 << 20  # bytes; it is read before anything says how long it should be
_UNIX, _PLAIN_FILE = 3, 0o100644 << 16


def pack(artifact: StrPath, output: StrPath) -> Path:
    """Write the artifact folder `artifact` as the new file `output`; the same artifact always gives the same bytes.

    The archive holds the signature too, and no file that the manifest does not list. ArtifactError where a file is not
    what was packaged, or the artifact is not signed as ONNXOPT_PUBLIC_KEY asks; UsageError where `output` cannot be
    written; nothing is left then.
    """
    folder, output = Path(artifact), Path(output)
    head = signing.head_of_folder(folder)
    signing.check_head(head)
    listed = head.parsed().files
    contents.check_paths(folder, listed)
    with (
        contents.held(folder) as held_folder,
        staging(output, file=True) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive,
    ):
        with _entry(archive, layout.MANIFEST, len(head.manifest)) as entry:
            entry.write(head.manifest)
        if head.signature is not None:
            with _entry(archive, layout.SIGNATURE, len(head.signature)) as entry:
                entry.write(head.signature)
        for name, expected in sorted(listed.items()):
            with _entry(archive, name, expected.bytes) as entry:
                held_folder.copy(name, entry, expected)
    return output


@contextlib.contextmanager
def _entry(archive: zipfile.ZipFile, name: str, size: int) -> Iterator[IO[bytes]]:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr, info.file_size = _UNIX, _PLAIN_FILE, size
    with archive.open(info, "w", force_zip64=size >= 1 << 31) as entry:
        yield entry


# --- reading ---------------------------------------------------------------------------------------------------------


def unpack(archive: StrPath, output: StrPath) -> Path:
    """Make the artifact folder `output` from an archive: whole, with every hash checked, or not at all.

    ArtifactError names the entry that is missing, changed or not of the artifact, and where the artifact is not signed
    as ONNXOPT_PUBLIC_KEY asks; UsageError where `output` exists already or cannot be written.
    """
    archive, output = Path(archive), Path(output)
    check_output(output)
    with _opened(archive) as file:
        head = _head(archive, file)
        signing.check_head(head)
        _extract(head, file, output)
    return output


def is_archive(path: Path) -> bool:
    """Whether a path is a zip file, which no model file is."""
    return path.is_file() and zipfile.is_zipfile(path)


def head_of(archive: Path) -> Head:
    """The manifest and the signature in an archive, which is not unpacked. ArtifactError where it is no archive."""
    with _opened(archive) as file:
        return _head(archive, file)


def unpacked(head: Head, *, again: bool = False) -> Path:
    """The folder that the archive of a head is kept unpacked in.

    That is $XDG_CACHE_HOME/onnxopt/artifacts (~/.cache/...), by the hash of manifest and signature. A folder there with
    another manifest or signature, or one that others can write to, is unpacked again; so is any where `again` is set,
    which the caller does who found a file of it changed. Where the cache cannot be used, a warning, and a temporary
    folder that lasts as long as this process.

    ArtifactError where the archive is damaged, or its manifest and signature are no longer those of the head.
    """
    cache = caches.folder("artifacts")
    try:
        with caches.opened(cache):
            return _cached(head, cache, again)
    except caches.Unusable as problem:
        caches.warn(cache, problem, "every process unpacks archives again")
    temporary = private.folder(f"archive.{head.sha256}")
    if again or not _is_unpacked(head, temporary):
        shutil.rmtree(temporary, ignore_errors=True)
        with temporary_files():
            _extract_again(head, temporary)
    return temporary


def _cached(head: Head, cache: Path, again: bool) -> Path:
    folder = cache / head.sha256
    if again or not _is_unpacked(head, folder):
        caches.remove(folder)
        try:
            _extract_again(head, folder)
        except UsageError as error:
            if not _is_unpacked(head, folder):  # else another process was faster
                raise caches.Unusable(f"{error}: set XDG_CACHE_HOME to a folder that can be written") from error
        caches.evict(caches.entries(cache), caches.size_limit(), keep=folder)
    with contextlib.suppress(OSError):
        os.utime(folder)  # eviction removes what was not used for the longest time
    return folder


def _is_unpacked(head: Head, folder: Path) -> bool:
    """Whether a folder has the manifest and the signature of a head, and only this user can write to it."""
    try:
        if files.distrust(folder.lstat(), folder) is not None:
            return False
        signed = signing.head_of_folder(folder)
    except (OSError, ArtifactError):
        return False
    return (signed.manifest, signed.signature) == (head.manifest, head.signature)


def _extract_again(head: Head, output: Path) -> None:
    with _opened(head.path) as file:
        if _head(head.path, file) != head:
            raise ArtifactError(f"{head.path}: was changed while it was being opened")
        _extract(head, file, output, private=True)


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    """The archive for reading; whatever zipfile makes of a damaged one becomes an ArtifactError."""
    try:
        with files.open_regular(archive) as stream, zipfile.ZipFile(stream) as file:
            yield file
    except FileNotFoundError:
        raise ArtifactError(f"{archive}: no such file") from None
    except IsADirectoryError:
        raise ArtifactError(f"{archive}: is a folder, not an archive of `onnxopt pack`") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeError, ValueError, RuntimeError) as error:
        if not is_archive(archive):
            raise ArtifactError(
                f"{archive}: not an artifact, which is a folder or an archive of `onnxopt pack`; `onnxopt optimize` "
                "makes one of a model, and `onnxopt inspect` describes a model"
            ) from None
        raise ArtifactError(f"{archive}: not an intact archive of an artifact: {error}") from None
    except OSError as error:
        raise ArtifactError(f"{archive}: cannot be read: {error.strerror or error}") from None


def _head(archive: Path, file: zipfile.ZipFile) -> Head:
    signature = _read(archive, file, layout.SIGNATURE) if layout.SIGNATURE in file.namelist() else None
    return Head(archive, _read(archive, file, layout.MANIFEST), signature)


def _extract(head: Head, file: zipfile.ZipFile, output: Path, *, private: bool = False) -> None:
    archive, listed = head.path, head.parsed().files
    contents.check_paths(archive, listed)
    _check_entries(archive, file, listed)
    with staging(output, private=private) as folder:
        (folder / layout.MANIFEST).write_bytes(head.manifest)
        if head.signature is not None:
            (folder / layout.SIGNATURE).write_bytes(head.signature)
        for name, expected in listed.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with file.open(name) as source, path.open("wb") as target:
                sha256 = contents.copy_hashed(source, target, expected.bytes)
            contents.check_digest(archive / name, sha256, expected)


def _check_entries(archive: Path, file: zipfile.ZipFile, listed: Mapping[str, File]) -> None:
    """ArtifactError unless the entries are exactly the files, stored, with the sizes that the manifest says."""
    entries = file.infolist()
    names = [entry.filename for entry in entries]
    for name in names:
        if name not in listed and name not in layout.UNLISTED:
            raise ArtifactError(f"{archive}: holds {name!r}, which the manifest does not list")
        if names.count(name) > 1:
            raise ArtifactError(f"{archive}: holds {name!r} twice")
    if missing := [name for name in listed if name not in names]:
        raise ArtifactError(f"{archive / missing[0]}: is missing")
    for entry in entries:
        path = archive / entry.filename
        _check_stored(path, entry)
        if entry.filename in listed and entry.file_size != listed[entry.filename].bytes:
            says = listed[entry.filename].bytes
            raise ArtifactError(f"{path}: has {entry.file_size} bytes, the manifest says {says}")


def _check_stored(path: Path, entry: zipfile.ZipInfo) -> None:
    """A stored entry cannot be larger than the archive, so there is nothing for a decompression bomb to expand."""
    if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or entry.compress_size != entry.file_size:
        raise ArtifactError(f"{path}: is compressed or encrypted; make the archive with `onnxopt pack`")
    if entry.create_system == _UNIX and entry.external_attr >> 16 & 0o170000 not in (0, 0o100000):
        raise ArtifactError(f"{path}: is a link or another special file")


def _read(archive: Path, file: zipfile.ZipFile, name: str) -> bytes:
    """A small entry, whole."""
    try:
        entry = file.getinfo(name)
    except KeyError:
        raise ArtifactError(f"{archive}: not an archive of `onnxopt pack`: it holds no {name}") from None
    _check_stored(archive / name, entry)
    if entry.file_size > _LARGEST_MANIFEST:
        raise ArtifactError(f"{archive / name}: has {entry.file_size:,} bytes, too many for a {name}")
    return file.read(entry)
