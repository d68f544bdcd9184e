"""Archives: an artifact as one file, a zip whose bytes follow from the artifact alone.

Entries are stored, not compressed (weights and kernels hardly shrink, and what a compressor writes differs between its
releases), sorted by name, and carry no time, owner or link. Reading trusts nothing: names and sizes must be those of
the manifest inside, no more and no fewer, and each file is hashed while it is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from onnxopt.artifact import layout
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import check_digest, check_output, check_paths, check_size, staging
from onnxopt.artifact.manifest import File
from onnxopt.errors import ArtifactError, UsageError

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first that a zip can hold
_BLOCK = 1 << 20
_LARGEST_MANIFEST = 256 << 20  # bytes; it is read before anything says how long it should be
_UNIX, _PLAIN_FILE = 3, 0o100644 << 16


def pack(artifact: str | Path, output: str | Path) -> Path:
    """Write the artifact folder `artifact` as the new file `output`; the same artifact always gives the same bytes.

    The archive holds the signature too, and no file that the manifest does not list. ArtifactError where a file is not
    what was packaged, UsageError where `output` cannot be written; nothing is left then.
    """
    folder, output = Path(artifact), Path(output)
    data = manifests.read(folder)
    files = manifests.parse(data, folder / layout.MANIFEST).files
    check_paths(folder, files)
    with staging(output, file=True) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        with _entry(archive, layout.MANIFEST, len(data)) as entry:
            entry.write(data)
        if (folder / layout.SIGNATURE).is_file():
            signature = (folder / layout.SIGNATURE).read_bytes()
            with _entry(archive, layout.SIGNATURE, len(signature)) as entry:
                entry.write(signature)
        for name, expected in sorted(files.items()):
            _pack_file(archive, folder / name, name, expected)
    return output


def _pack_file(archive: zipfile.ZipFile, path: Path, name: str, expected: File) -> None:
    check_size(path, expected)
    try:
        source = path.open("rb")
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from None
    with source, _entry(archive, name, expected.bytes) as entry:
        sha256 = _copy(source, entry, expected.bytes)
    check_digest(path, sha256, expected)


@contextlib.contextmanager
def _entry(archive: zipfile.ZipFile, name: str, size: int) -> Iterator[IO[bytes]]:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr, info.file_size = _UNIX, _PLAIN_FILE, size
    with archive.open(info, "w", force_zip64=size >= 1 << 31) as entry:
        yield entry


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> str:
    """Copy at most `size` bytes; returns the SHA-256 of the bytes copied."""
    digest = hashlib.sha256()
    while size > 0 and (block := source.read(min(_BLOCK, size))):
        digest.update(block)
        target.write(block)
        size -= len(block)
    return digest.hexdigest()


# --- reading ---------------------------------------------------------------------------------------------------------


def unpack(archive: str | Path, output: str | Path) -> Path:
    """Make the artifact folder `output` from an archive: whole, with every hash checked, or not at all.

    ArtifactError names the entry that is missing, changed or not of the artifact; UsageError where `output` exists
    already or cannot be written.
    """
    archive, output = Path(archive), Path(output)
    check_output(output)
    with _opened(archive) as file:
        _extract(archive, file, output)
    return output


def is_archive(path: Path) -> bool:
    """Whether a path is a zip file, which no model file is."""
    return path.is_file() and zipfile.is_zipfile(path)


def folder_of(path: Path) -> Path:
    """The artifact folder of a path: itself, or where the archive at `path` is kept unpacked.

    That is $XDG_CACHE_HOME/onnxopt/artifacts (~/.cache/...), by the hash of its manifest and signature.
    """
    if not path.is_file():
        return path
    with _opened(path) as file:
        names = [name for name in layout.UNLISTED if name in file.namelist()]
        head = b"".join(_read(path, file, name) for name in names)
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnxopt" / "artifacts"
        kept = cache / hashlib.sha256(head).hexdigest()
        if not kept.is_dir():
            try:
                _extract(path, file, kept)
            except UsageError:
                if not kept.is_dir():  # else another process was faster
                    raise
    return kept


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    """The archive for reading; whatever zipfile makes of a damaged one becomes an ArtifactError."""
    try:
        with zipfile.ZipFile(archive) as file:
            yield file
    except FileNotFoundError:
        raise ArtifactError(f"{archive}: no such file") from None
    except IsADirectoryError:
        raise ArtifactError(f"{archive}: is a folder, not an archive of `onnxopt pack`") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, UnicodeError, ValueError, RuntimeError) as error:
        raise ArtifactError(f"{archive}: not an artifact: neither a folder nor an intact archive: {error}") from None
    except OSError as error:
        raise ArtifactError(f"{archive}: cannot be read: {error.strerror or error}") from None


def _extract(archive: Path, file: zipfile.ZipFile, output: Path) -> None:
    data = _read(archive, file, layout.MANIFEST)
    files = manifests.parse(data, archive / layout.MANIFEST).files
    check_paths(archive, files)
    _check_entries(archive, file, files)
    with staging(output) as folder:
        (folder / layout.MANIFEST).write_bytes(data)
        if layout.SIGNATURE in file.namelist():
            (folder / layout.SIGNATURE).write_bytes(_read(archive, file, layout.SIGNATURE))
        for name, expected in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with file.open(name) as source, path.open("wb") as target:
                sha256 = _copy(source, target, expected.bytes)
            check_digest(archive / name, sha256, expected)


def _check_entries(archive: Path, file: zipfile.ZipFile, files: Mapping[str, File]) -> None:
    """ArtifactError unless the entries are exactly the files, stored, with the sizes that the manifest says."""
    entries = file.infolist()
    names = [entry.filename for entry in entries]
    for name in names:
        if name not in files and name not in layout.UNLISTED:
            raise ArtifactError(f"{archive}: holds {name!r}, which the manifest does not list")
        if names.count(name) > 1:
            raise ArtifactError(f"{archive}: holds {name!r} twice")
    if missing := [name for name in files if name not in names]:
        raise ArtifactError(f"{archive / missing[0]}: is missing")
    for entry in entries:
        path = archive / entry.filename
        _check_stored(path, entry)
        if entry.filename in files and entry.file_size != files[entry.filename].bytes:
            says = files[entry.filename].bytes
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
