"""The artifact folder: written whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from onnxopt import files, leftovers, paths
from onnxopt.artifact import contents, existing, layout
from onnxopt.artifact.manifest import File, Manifest
from onnxopt.errors import ArtifactError, UsageError

_LONGEST_NAME = 64  # characters of an output's name in that of the folder which becomes it


def output_path(output: str | os.PathLike[str]) -> Path:
    """What a caller gave as output. UsageError where it is no path."""
    if not isinstance(output, (str, os.PathLike)):
        raise UsageError(f"the output is the path of a new folder, not {type(output).__name__}")
    return Path(output)


def check_output(output: Path, *, replace: bool = False) -> None:
    """UsageError unless a new folder can be made at `output`; called before any work is done.

    replace: where an artifact may be there already.
    """
    if os.path.lexists(output):
        if not replace:
            raise UsageError(f"{output}: exists already; remove it or choose another output")
        existing.check_replaceable(output)
    parent = next((p for p in output.absolute().parents if os.path.lexists(p)), None)
    if parent is None or not parent.is_dir():
        raise UsageError(f"{output}: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"{output}: no permission to write in {parent}")


@contextlib.contextmanager
def staging(output: Path, *, file: bool = False, private: bool = False, replace: bool = False) -> Iterator[Path]:
    """An empty folder beside `output` that becomes `output` when the block ends; any exception removes it, and a later
    process where this one is killed.

    file: yield the path of a file to write instead; its temporary folder is removed. private: a folder for this user
    alone. replace: an artifact that is there stays until the new one is whole. Missing parents are made, and removed
    again when an exception is raised. UsageError where the file system refuses.
    """
    check_output(output, replace=replace)
    output = output.absolute()
    parents = [p for p in output.parents if not p.exists()]
    folder: Path | None = None
    lock: int | None = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        name = output.name[:_LONGEST_NAME]
        folder, lock = leftovers.locked_folder(output.parent, f".{name}.", leftovers.PARTIAL)
        staged = folder / output.name if file else folder
        with leftovers.removed_by(functools.partial(_discard, folder, parents)):
            yield staged
        if not file and not private:
            staged.chmod(0o777 & ~_umask())  # mkdtemp's folders are private
        if not os.path.lexists(output):
            staged.rename(output)
        elif replace:
            _replace(staged, output)
        else:  # rename would replace a file or an empty folder
            raise UsageError(f"{output}: another process made it meanwhile")
        if file:
            folder.rmdir()
    except BaseException as error:
        _discard(folder, parents)
        if isinstance(error, OSError):
            raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from error
        raise
    finally:
        if lock is not None:
            os.close(lock)


def _replace(staged: Path, output: Path) -> None:
    """Put a new artifact in the place of an old one, which is on the disk until the new one has its name."""
    existing.check_replaceable(output)
    old = output.with_name(f".{output.name[:_LONGEST_NAME]}.replaced")
    shutil.rmtree(old, ignore_errors=True)  # of a process that was killed between the next two steps
    output.rename(old)
    try:
        staged.rename(output)
    except BaseException:
        old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _discard(folder: Path | None, parents: Sequence[Path]) -> None:
    """Remove a folder with everything in it, then its parents as far as they are empty."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    for parent in parents:
        with contextlib.suppress(OSError):
            parent.rmdir()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for temporary files, gone when the block ends. UsageError where none can be made, or it is full."""
    with temporary_files(), scratch() as folder:
        yield folder


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """The same for a block that writes elsewhere too, whose errors stay. UsageError where none can be made."""
    with contextlib.ExitStack() as stack:
        with temporary_files():
            folder = stack.enter_context(leftovers.temporary_folder())
        yield folder


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """Turn an OSError of a block that writes temporary files into a UsageError that names their folder and TMPDIR.

    An OSError that names a file elsewhere stays as it is; one of a full disk names none.
    """
    try:
        yield
    except OSError as error:
        named = error.filename2 or error.filename  # a copy names its source first
        if named is not None and not Path(os.fsdecode(named)).is_relative_to(temporary_root()):
            raise
        raise UsageError(
            f"{temporary_root()}: cannot be written: {error.strerror or error}; "
            "make room there, or set TMPDIR to another folder"
        ) from error


def temporary_root() -> str:
    """The folder of temporary files for messages: $TMPDIR, also where no folder can be used."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return os.environ.get("TMPDIR") or "/tmp"


def built_library() -> Path:
    """The custom-op library that belongs to this onnxopt. ArtifactError where it was not built."""
    library = paths.library()
    if not library.is_file():
        raise ArtifactError(f"{library} is not built; run `make build`, or `pip install .`")
    return library


def write_library(folder: Path, kernels_json: str, fatbin: bytes | None) -> Path:
    """Write a copy of the library, and the kernels that it reads from beside itself, into the new folder `folder`.

    Returns the copy's path. Not a link: the dynamic loader takes two links to one file for one library, which would
    read one kernels.json.
    """
    folder.mkdir()
    shutil.copy(built_library(), folder / layout.LIBRARY)
    (folder / layout.KERNELS).write_text(kernels_json, "utf-8")
    if fatbin is not None:
        (folder / layout.FATBIN).write_bytes(fatbin)
    return folder / layout.LIBRARY


def hash_files(folder: Path) -> dict[str, File]:
    """Hash and size of every file under `folder`, by its path in it, sorted."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): hash_file(p) for p in paths if p.name != layout.MANIFEST}


def hash_file(path: Path) -> File:
    """Hash and size of a regular file. OSError for anything else, without waiting for it."""
    with files.open_regular(path) as file:
        return File(sha256=hashlib.file_digest(file, "sha256").hexdigest(), bytes=os.fstat(file.fileno()).st_size)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, replacing an older one in one step."""
    replace_text(folder / layout.MANIFEST, manifest.to_json())


def replace_text(path: Path, text: str, folder: Path | None = None) -> None:
    """Write a file in one step: a reader, and a later process after a crash, finds the old text or the new one.

    folder: where the new text is written first, on the same file system; default beside the file. UsageError where the
    file system refuses; then the old text stays.
    """
    part = (folder or path.parent) / f".{path.name}.partial"
    try:
        part.write_text(text, "utf-8")
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def data_files(files: Collection[str], model: str) -> list[str]:
    """The files that hold weights of the artifact's model file `model`: its own, or those that it shares."""
    data = [name for name in files if name.endswith(".data") and "/" not in name]
    return [name for name in data if name == f"{model}.data"] or data


def copy_checked(source: Path, target: Path, expected: File) -> None:
    """Copy a file of an artifact. ArtifactError where the copy is not what was packaged."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with contents.held(source.parent) as folder, target.open("wb") as file:
        folder.copy(source.name, file, expected)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
