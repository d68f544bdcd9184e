"""The artifact folder: written whole or not at all, and the check that it still holds what was written."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from onnxopt import leftovers, paths
from onnxopt.artifact import layout
from onnxopt.artifact.manifest import File, Manifest
from onnxopt.errors import ArtifactError, UsageError

_COMPLETE = (layout.LIBRARY_FOLDER, layout.PROVIDERS)  # folders that hold nothing but what the manifest lists


def check_output(output: Path) -> None:
    """UsageError unless a new folder can be made at `output`; called before any work is done."""
    if os.path.lexists(output):
        raise UsageError(f"{output}: exists already; remove it or choose another output")
    parent = next((p for p in output.absolute().parents if os.path.lexists(p)), None)
    if parent is None or not parent.is_dir():
        raise UsageError(f"{output}: {parent} is not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(f"{output}: no permission to write in {parent}")


@contextlib.contextmanager
def staging(output: Path, *, file: bool = False) -> Iterator[Path]:
    """An empty folder beside `output` that becomes `output` when the block ends; any exception removes it.

    file: yield the path of a file to write instead; its temporary folder is removed. Missing parents are made, and
    removed again when an exception is raised. UsageError where the file system refuses.
    """
    check_output(output)
    output = output.absolute()
    parents = [p for p in output.parents if not p.exists()]
    folder: Path | None = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent))
        staged = folder / output.name if file else folder
        with leftovers.removed_by(functools.partial(_discard, folder, parents)):
            yield staged
        if not file:
            staged.chmod(0o777 & ~_umask())  # mkdtemp's folders are private
        if os.path.lexists(output):  # rename would replace a file or an empty folder
            raise UsageError(f"{output}: another process made it meanwhile")
        staged.rename(output)
        if file:
            folder.rmdir()
    except BaseException as error:
        _discard(folder, parents)
        if isinstance(error, OSError):
            raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from error
        raise


def _discard(folder: Path | None, parents: Sequence[Path]) -> None:
    """Remove a folder with everything in it, then its parents as far as they are empty."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    for parent in parents:
        with contextlib.suppress(OSError):
            parent.rmdir()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder for temporary files, gone when the block ends. UsageError where none can be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="onnxopt.")
    except OSError as error:
        where = tempfile.gettempdir()
        raise UsageError(
            f"{where}: cannot be written: {error.strerror or error}; set TMPDIR to another folder"
        ) from error
    with folder as name, leftovers.removed_by(functools.partial(shutil.rmtree, name, ignore_errors=True)):
        yield Path(name)


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
    with path.open("rb") as file:
        return File(sha256=hashlib.file_digest(file, "sha256").hexdigest(), bytes=os.fstat(file.fileno()).st_size)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json, replacing an older one in one step."""
    replace_text(folder / layout.MANIFEST, manifest.to_json())


def replace_text(path: Path, text: str, folder: Path | None = None) -> None:
    """Write a file in one step: a reader, and a later process after a crash, finds the old text or the new one.

    folder: where the new text is written first, on the same file system; default beside the file.
    """
    part = (folder or path.parent) / f".{path.name}.partial"
    part.write_text(text, "utf-8")
    part.replace(path)


def check_files(folder: Path, files: Mapping[str, File]) -> None:
    """ArtifactError naming the first file that is missing, outside the folder, or not as the manifest says.

    A file that the manifest does not list is refused where others would take it for the artifact's: in lib/ and
    providers/.
    """
    check_paths(folder, files)
    for name, expected in files.items():
        path = folder / name
        check_size(path, expected)
        try:
            sha256 = hash_file(path).sha256
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from None
        check_digest(path, sha256, expected)
    for name in _COMPLETE:
        for path in sorted((folder / name).rglob("*")):
            if not path.is_dir() and path.relative_to(folder).as_posix() not in files:
                raise ArtifactError(f"{path}: is not of this artifact: the manifest does not list it")


def check_paths(folder: Path, files: Mapping[str, File]) -> None:
    """ArtifactError where a manifest names a file outside the folder, or one that no manifest may list."""
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or path.as_posix() != name:
            raise ArtifactError(f"{folder}: the manifest names a file outside the folder: {name}")
        if name in layout.UNLISTED:
            raise ArtifactError(f"{folder}: the manifest lists {name}, which no manifest may list")


def check_size(path: Path, expected: File) -> None:
    """ArtifactError where there is no such file, or its size is another."""
    try:
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(f"{path}: is missing") from None
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not path.is_file():
        raise ArtifactError(f"{path}: is not a file")
    if size != expected.bytes:
        raise ArtifactError(f"{path}: has {size} bytes, the manifest says {expected.bytes}")


def data_files(files: Collection[str], model: str) -> list[str]:
    """The files that hold weights of the artifact's model file `model`: its own, or those that it shares."""
    data = [name for name in files if name.endswith(".data") and "/" not in name]
    return [name for name in data if name == f"{model}.data"] or data


def copy_checked(source: Path, target: Path, expected: File) -> None:
    """Copy a file of an artifact. ArtifactError where the copy is not what was packaged."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    check_digest(source, hash_file(target).sha256, expected)


def check_digest(path: Path, sha256: str, expected: File) -> None:
    """ArtifactError where a file's SHA-256 is not the expected one. path: of the file, for the message."""
    if sha256 != expected.sha256:
        raise ArtifactError(f"{path}: is not the file that was packaged (its sha256 differs)")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
