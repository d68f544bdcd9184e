"""Which models a batch is about: paths and patterns as models and folders, each with a name of its own."""

from __future__ import annotations

import collections
import dataclasses
import glob
import os
from collections.abc import Sequence
from pathlib import Path

from onnxopt.artifact import layout
from onnxopt.errors import UsageError
from onnxopt.paths import StrPath
from onnxopt.pipeline.options import Options

_MODEL = ".onnx"


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a job takes of a machine of a cluster. cpus: of optimizing. memory: bytes. gpus: of tuning and timing."""

    cpus: float = 1
    memory: int | None = None
    gpus: float = 1


@dataclasses.dataclass(frozen=True)
class Job:
    """One model, or one folder of models, to optimize. output: the artifact or folder to make, named `name`.

    options: of `onnxopt.optimize` or `onnxopt.optimize_folder`. tune: seconds to tune the artifact for, on the
    machine that does it. bench: time it against the original, and record that in it.
    """

    name: str
    source: Path
    output: Path
    options: Options
    tune: float | None = None
    bench: bool = False
    needs: Needs = Needs()

    @property
    def measures(self) -> bool:
        """Whether something is measured, which is for a machine with the GPU that will serve."""
        return self.tune is not None or self.bench


def sources(paths: Sequence[StrPath], out_dir: Path, folder: Path = Path()) -> list[Path]:
    """The models and folders that paths and patterns (models/**/*.onnx) name, each once, in order.

    folder: where relative ones begin. A pattern takes files, and one that ends with / folders; it takes none of
    the artifacts that an earlier run left in out_dir. UsageError where a path does not exist or a pattern has no match.
    """
    by_path: dict[str, Path] = {}
    for text in map(str, paths):
        matches = [text] if os.path.lexists(folder / text) else _matches(text, folder, out_dir)
        for path in (folder / match for match in matches):
            by_path.setdefault(os.path.abspath(path), path)
    return list(by_path.values())


def _matches(pattern: str, folder: Path, out_dir: Path) -> list[str]:
    if not glob.has_magic(pattern):
        raise UsageError(f"{folder / pattern}: no such file or folder")
    wanted = os.path.isdir if pattern.endswith("/") else os.path.isfile
    paths = sorted(path for path in glob.glob(pattern, root_dir=folder, recursive=True) if wanted(folder / path))
    matches = [path for path in paths if not _is_a_result(folder / path, out_dir)]
    if not matches:
        raise UsageError(f"{folder / pattern}: matches no {'folder' if pattern.endswith('/') else 'file'}")
    return matches


def _is_a_result(path: Path, out_dir: Path) -> bool:
    """Whether a path lies in an artifact or an optimized folder of out_dir, or is one."""
    below = Path(os.path.relpath(os.path.abspath(path), os.path.abspath(out_dir))).parts[:1]
    records = [out_dir.joinpath(*below, name) for name in (layout.MANIFEST, layout.FOLDER_RECORD)]
    return below not in ((), (os.pardir,)) and any(file.is_file() for file in records)


def names(paths: Sequence[Path]) -> list[str]:
    """A name for each path: that of the file without .onnx, or of the folder.

    Paths that share one have those of the folders below their common one in front: a/model.onnx is "a-model".
    UsageError where names are still the same.
    """
    short = [path.absolute().name.removesuffix(_MODEL) for path in paths]
    counts = collections.Counter(short)
    if max(counts.values(), default=0) > 1:
        root = os.path.commonpath([path.absolute().parent for path in paths])
        longer = [os.path.relpath(path.absolute(), root).removesuffix(_MODEL).replace(os.sep, "-") for path in paths]
        short = [long if counts[name] > 1 else name for name, long in zip(short, longer, strict=True)]
    by_name: dict[str, Path] = {}
    for name, path in zip(short, paths, strict=True):
        if (other := by_name.setdefault(name, path)) is not path:
            raise UsageError(f"{path} and {other} would both be named {name}; optimize them into two folders")
    return short
