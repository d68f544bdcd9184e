"""What became of each model of a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from onnxopt.artifact import existing, layout
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact import result as results
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.report.facts import read_facts
from onnxopt.artifact.result import Result
from onnxopt.errors import OnnxoptError
from onnxopt.tools.folders.contents import MODEL

SCHEMA_VERSION = 1  # of folder.json and of the JSON that the command prints


@dataclasses.dataclass(frozen=True)
class FolderModel:
    """A model of a folder. path: in the folder, the same before and after.

    manifest, result: of its artifact. error: why the original was kept instead. Either it or the others are None.
    """

    path: str
    manifest: Manifest | None
    error: OnnxoptError | None
    result: Result | None = None

    @property
    def record(self) -> str | None:
        """The folder of its manifest and report in the new folder."""
        return None if self.manifest is None else f"{layout.MODEL_RECORDS}/{self.path.removesuffix(MODEL)}.record"

    def to_json(self) -> dict[str, Any]:
        if self.manifest is None or self.result is None:
            code = self.error.exit_code if self.error else 0
            return {"path": self.path, "status": "kept", "reason": str(self.error), "exit_code": code}
        return {
            "path": self.path,
            "status": "optimized",
            "record": self.record,
            "sha256_of_original": self.manifest.source.sha256,
            "nodes_fused": sum(len(k.operators) * len(k.sites) for k in self.manifest.kernels),
            "calls": sum(len(k.sites) for k in self.manifest.kernels),
            "kernels": len(self.manifest.kernels),
            "nodes_before": self.result.nodes.before,
            "nodes_after": self.result.nodes.after,
            "launches_before": self.result.launches.before,
            "launches_after": self.result.launches.after,
            "verify": self.manifest.verify.status,
        }


@dataclasses.dataclass(frozen=True)
class OptimizedFolder:
    """What optimize_folder wrote. library: of all models; None where no model has kernels. others: files copied.

    unchanged: an earlier call made it, of the same files with the same options.
    """

    path: Path
    models: tuple[FolderModel, ...]
    others: tuple[str, ...]
    library: Path | None
    unchanged: bool = False

    @property
    def exit_code(self) -> int:
        """0 where every model was optimized, else the largest code of those that were not."""
        return max(model.error.exit_code if model.error else 0 for model in self.models)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "models": [model.to_json() for model in self.models],
            "others": list(self.others),
            "library": None if self.library is None else self.library.relative_to(self.path).as_posix(),
        }


def read(folder: Path) -> OptimizedFolder:
    """What an earlier call wrote. ArtifactError where a manifest of it cannot be read."""
    record = existing.record_of(folder)
    assert record is not None
    models = tuple(_optimized(folder, row) if "record" in row else _kept(row) for row in record["models"])
    library = None if record["library"] is None else folder / record["library"]
    return OptimizedFolder(folder, models, tuple(record["others"]), library, unchanged=True)


def _optimized(folder: Path, row: dict[str, Any]) -> FolderModel:
    place = folder / row["record"]
    manifest = manifests.load(place)
    return FolderModel(row["path"], manifest, None, results.of(place, manifest, read_facts(place, manifest)))


def _kept(row: dict[str, Any]) -> FolderModel:
    error = OnnxoptError(row["reason"])
    error.exit_code = row["exit_code"]
    return FolderModel(row["path"], None, error)
