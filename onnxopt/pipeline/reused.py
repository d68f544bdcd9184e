"""The kernels of a finished artifact in place of compiled ones, for the same network with other weights."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxopt.artifact import layout
from onnxopt.artifact.manifest import LeftOut, Manifest
from onnxopt.errors import UsageError
from onnxopt.fusion.region import Kernel

_FAMILY = "rewrite:"
_OWN = (layout.LIBRARY, layout.KERNELS, layout.FATBIN)  # files of the library's folder that every artifact has


class KernelsDiffer(UsageError):
    """The network gives other kernels. kernels: those that the artifact lacks."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        super().__init__("the kernels differ")
        self.kernels = tuple(kernels)


@dataclasses.dataclass(frozen=True)
class Reused:
    """An artifact whose kernels are taken. title: what the new one says that it was made of, if that is no file."""

    folder: Path
    manifest: Manifest
    title: str

    @property
    def wrong(self) -> dict[str, LeftOut]:
        """The families of rewrite rules that verification left out."""
        rows = [row for row in self.manifest.left_out if row.name.startswith(_FAMILY)]
        return {row.name.removeprefix(_FAMILY): row for row in rows}

    @property
    def split(self) -> set[frozenset[str]]:
        """The nodes of regions whose kernels spilled registers."""
        return {frozenset(nodes) for nodes in self.manifest.split}

    def fatbin(self, kernels: Sequence[Kernel], text: str) -> bytes | None:
        """The images of the kernels. text: their CUDA source. KernelsDiffer where the artifact has others."""
        wanted, left_out = {kernel.name for kernel in self.manifest.kernels}, {r.name for r in self.manifest.left_out}
        other = [kernel for kernel in kernels if kernel.name not in wanted | left_out]
        if other or wanted - {kernel.name for kernel in kernels}:
            raise KernelsDiffer(other)
        if layout.SOURCE not in self.manifest.files:
            return None
        if (self.folder / layout.SOURCE).read_text("utf-8") != text:
            raise KernelsDiffer(())
        return (self.folder / layout.LIBRARY_FOLDER / layout.FATBIN).read_bytes()

    def copy_measured(self, folder: Path) -> None:
        """Copy what `tune` measured, and the options of all providers: they do not depend on weights."""
        for name in self.manifest.files:
            kind, _, file = name.partition("/")
            if kind == layout.PROVIDERS or (kind == layout.LIBRARY_FOLDER and file not in _OWN):
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copy2(self.folder / name, folder / name)


def wrong_in(reused: Reused | None) -> Mapping[str, LeftOut]:
    """The families of rewrite rules to begin without."""
    return {} if reused is None else reused.wrong
