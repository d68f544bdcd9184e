"""What a batch has done so far, in batch.json beside its outputs: so that a later run goes on after a kill.

A job is done where its entry says so, nothing that it depends on has changed, and its output is there. The entry is
written before the output gets its name, so an output without one was never this batch's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Literal

from onnxopt import versions
from onnxopt.artifact import layout
from onnxopt.artifact.folder import replace_text
from onnxopt.errors import ModelError, UsageError
from onnxopt.graph import read
from onnxopt.tools.batching.jobs import Job
from onnxopt.tools.batching.work import FusionCounts, MeasuredTimes, ModelOutcome
from onnxopt.tools.folders.assemble import RECORD

FILE = "batch.json"
SCHEMA_VERSION = 1
Action = Literal["new", "again", "done", "refused"]


@dataclasses.dataclass
class State:
    """The entries of batch.json by the jobs' names: the key of what a job depended on, and its outcome."""

    path: Path
    entries: dict[str, dict[str, Any]]

    def action(self, job: Job) -> Action:
        """What is to be done: "refused" where the output is there and not of this batch, "again" where it changed."""
        entry, there = self.entries.get(job.name), os.path.lexists(job.output)
        if entry is None:
            return "refused" if there else "new"
        finished = [job.output / layout.MANIFEST, job.output / RECORD]
        if entry["status"] == "done" and entry["key"] == key_of(job) and any(path.is_file() for path in finished):
            return "done"
        return "again"

    def outcome(self, job: Job) -> ModelOutcome:
        """The outcome of a job that is done."""
        fields = {k: v for k, v in self.entries[job.name].items() if k not in ("key", "status")}
        summary = FusionCounts(**fields["summary"]) if fields["summary"] else None
        measured = MeasuredTimes(**fields["measured"]) if fields["measured"] else None
        return ModelOutcome(**{**fields, "summary": summary, "measured": measured, "resumed": True})

    def record(self, job: Job, key: str, outcome: ModelOutcome) -> None:
        """Write the outcome of a job. UsageError where the file system refuses."""
        self.entries[job.name] = {"key": key, **outcome.to_json()}
        document = {"schema_version": SCHEMA_VERSION, "onnxopt": versions.onnxopt(), "models": self.entries}
        replace_text(self.path, json.dumps(document, indent=2) + "\n")


def read_state(folder: Path) -> State:
    """The state of the batch in a folder, which need not be there. UsageError where batch.json is no such file."""
    path = folder / FILE
    try:
        document = json.loads(path.read_text("utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise UsageError(f"{path}: has schema version {document['schema_version']}, this onnxopt reads 1")
        return State(path, dict(document["models"]))
    except (FileNotFoundError, NotADirectoryError):
        return State(path, {})
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: is damaged ({error}); remove it with the outputs, or take another folder") from None


def key_of(job: Job) -> str:
    """A digest of what the output depends on: the options, this onnxopt, and sizes and times of the files."""
    paths = [Path(p) for p in (*job.options.data, *job.options.calibrate) if isinstance(p, str | Path)]
    reference = job.options.reference
    near = [Path(reference)] if reference is not None else []
    files = [(str(path), *_stamp(path)) for path in (*_files(job.source), *paths, *near)]
    asked = [dataclasses.asdict(job.options), job.tune, job.bench]
    text = json.dumps([str(job.source), files, asked, versions.onnxopt()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (-1, 0)
    return (status.st_size, status.st_mtime_ns)


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        return sorted(path for path in source.rglob("*") if path.is_file())
    try:
        return [source, *map(Path, read.external_files(source))]
    except ModelError:  # optimizing it says what is wrong
        return [source]
