"""Package: the artifact folder, written whole or not at all, and the check that it is still what was written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from onnxopt import paths
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.manifest import FILE as MANIFEST
from onnxopt.manifest import File, Manifest

MODEL = "model.onnx"
PORTABLE_MODEL = "model.portable.onnx"
LIBRARY_FOLDER = "lib"
LIBRARY = "libonnxopt_ops.so"


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
def staging(output: Path) -> Iterator[Path]:
    """An empty folder beside `output` that becomes `output` when the block ends; any exception removes it.

    Missing parents are made, and removed again with it. UsageError where the file system refuses.
    """
    check_output(output)
    output = output.absolute()
    made = [p for p in output.parents if not p.exists()]
    folder: Path | None = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent))
        yield folder
        folder.chmod(0o777 & ~_umask())  # mkdtemp's folders are private
        if os.path.lexists(output):  # rename would replace an empty folder
            raise UsageError(f"{output}: was made by someone else meanwhile")
        folder.rename(output)
    except BaseException as error:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise UsageError(f"{output}: cannot be written: {error.strerror or error}") from error
        raise


def built_library() -> Path:
    """The custom-op library that belongs to this onnxopt. ArtifactError where it was not built."""
    library = paths.library()
    if not library.is_file():
        raise ArtifactError(f"{library} is not built; run `make build`, or `pip install .`")
    return library


def write_library(folder: Path, kernels_json: str, fatbin: bytes | None) -> Path:
    """Write a copy of the library, and the kernels it finds beside itself, into the new folder `folder`.

    Returns the copy's path. Always a copy: the dynamic loader takes two links to one file for one library, with one
    kernels.json.
    """
    folder.mkdir()
    shutil.copy(built_library(), folder / LIBRARY)
    (folder / "kernels.json").write_text(kernels_json, "utf-8")
    if fatbin is not None:
        (folder / "kernels.fatbin").write_bytes(fatbin)
    return folder / LIBRARY


def hash_files(folder: Path) -> dict[str, File]:
    """Hash and size of every file under `folder`, by its path in it, sorted."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): hash_file(p) for p in paths if p.name != MANIFEST}


def hash_file(path: Path) -> File:
    with path.open("rb") as file:
        return File(sha256=hashlib.file_digest(file, "sha256").hexdigest(), bytes=os.fstat(file.fileno()).st_size)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).write_text(manifest.to_json(), "utf-8")


def check_files(folder: Path, files: Mapping[str, File]) -> None:
    """ArtifactError naming the first file that is missing, outside the folder, or not as the manifest says."""
    for name, expected in files.items():
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ArtifactError(f"{folder}: the manifest names a file outside the folder: {name}")
        try:
            actual_bytes = path.stat().st_size
            if actual_bytes != expected.bytes:
                raise ArtifactError(f"{path}: has {actual_bytes} bytes, the manifest says {expected.bytes}")
            if hash_file(path).sha256 != expected.sha256:
                raise ArtifactError(f"{path}: is not the file that was packaged (its sha256 differs)")
        except FileNotFoundError:
            raise ArtifactError(f"{path}: is missing") from None
        except OSError as error:
            raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
