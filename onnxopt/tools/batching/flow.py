"""A batch: jobs of a configuration or of patterns, without those that are done; each result is kept as it comes."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from onnxopt import leftovers
from onnxopt.errors import UsageError
from onnxopt.paths import StrPath
from onnxopt.tools.batching import config, local, on_ray, work
from onnxopt.tools.batching.jobs import Job
from onnxopt.tools.batching.state import SCHEMA_VERSION, Action, State, key_of, read_state
from onnxopt.tools.batching.work import ModelOutcome

_STAGE = ".batch"  # in the folder of the outputs: what is being made

# progress(done, total, outcome): called as each model ends.
Progress = Callable[[int, int, ModelOutcome], None]


@dataclasses.dataclass(frozen=True)
class BatchResult:
    """What became of each model of a batch, in the order in which they were given; path/batch.json has the same."""

    path: Path
    models: tuple[ModelOutcome, ...]

    @property
    def exit_code(self) -> int:
        """0 where every model is done, else the largest code of those that failed."""
        return max(outcome.exit_code for outcome in self.models)

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, "models": [outcome.to_json() for outcome in self.models]}


def plan(
    models: StrPath | Sequence[StrPath], out_dir: StrPath, archs: Sequence[str] | None = None
) -> list[tuple[Job, Action]]:
    """What a batch would do, without doing it. "again": it changed or failed. "refused": its output is in the way."""
    patterns = [models] if isinstance(models, (str, os.PathLike)) else list(models)
    if not patterns:
        raise UsageError("no model: give a configuration file, models or patterns")
    state = read_state(Path(out_dir))
    return [(job, state.action(job)) for job in config.jobs_of(patterns, Path(out_dir), archs)]


def batch(
    models: StrPath | Sequence[StrPath],
    out_dir: StrPath,
    *,
    archs: Sequence[str] | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    progress: Progress | None = None,
) -> BatchResult:
    """Optimize many models, each into a folder of `out_dir`, and go on where an earlier run ended.

    models: a configuration file (docs/folders.md), or paths and patterns of models and of folders of models. archs: as
    for `optimize`, of each model for which the configuration file has none of its own. jobs: how
    many at once on this machine, in processes of their own; default one for two cores. ray: address of a Ray cluster
    to run on instead ("auto", "HOST:PORT", or "local" for one on this machine); every machine reaches the same paths.

    A model that fails leaves the others done. What is done and did not change is left alone: neither the model's files,
    by size and time, nor its options, nor onnxopt's version. out_dir/batch.json says what became of each model.

    UsageError where the configuration is wrong, another batch writes to `out_dir`, or the cluster cannot be used.
    """
    folder = Path(out_dir)
    plan(models, folder, archs)  # what is wrong with the question shows before a folder is made
    with _own(folder), _stage(folder) as stage:
        running = _Running(read_state(folder), plan(models, folder, archs), progress)
        todo = [dataclasses.replace(job, output=stage / job.name) for job in running.begin()]
        if todo and ray is not None:
            on_ray.run(todo, ray, running.keep)
        elif todo:
            local.run(todo, jobs, running.keep)
        return BatchResult(folder, tuple(running.outcomes[job.name] for job, _ in running.planned))


class _Running:
    """A batch that goes on. outcomes: by name, of the jobs that ended."""

    def __init__(self, state: State, planned: list[tuple[Job, Action]], progress: Progress | None) -> None:
        self.planned, self.outcomes = planned, dict[str, ModelOutcome]()
        self._state, self._progress = state, progress
        self._jobs: dict[str, tuple[Job, str]] = {}  # those to do, with their keys

    def begin(self) -> list[Job]:
        """The jobs to do; the others end."""
        for job, action in self.planned:
            if action == "done":
                self._end(job, self._state.outcome(job))
            elif action == "refused":
                self._end(job, work.failed(job, f"{job.output}: exists already and is not of this batch; remove it"))
            else:
                self._jobs[job.name] = job, key_of(job)
        return [job for job, _ in self._jobs.values()]

    def keep(self, staged: Job, outcome: ModelOutcome) -> None:
        """Record the outcome of a job, and put what it made in the place of what may be there."""
        job, key = self._jobs[staged.name]
        outcome = dataclasses.replace(outcome, output=str(job.output))
        succeeded = outcome.summary is not None and staged.output.is_dir()
        if succeeded and job.output.exists():
            shutil.rmtree(job.output)
        self._state.record(job, key, outcome)
        if succeeded:
            staged.output.rename(job.output)
        self._end(job, outcome)

    def _end(self, job: Job, outcome: ModelOutcome) -> None:
        self.outcomes[job.name] = outcome
        if self._progress:
            self._progress(len(self.outcomes), len(self.planned), outcome)


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[None]:
    """The folder of the outputs, made where it is missing, for this batch alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"{folder}: another batch writes there; wait for it, or take another --out-dir") from None
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _stage(folder: Path) -> Iterator[Path]:
    """An empty folder beside the outputs; one that a killed batch left is removed."""
    stage = folder.absolute() / _STAGE
    remove = functools.partial(shutil.rmtree, stage, ignore_errors=True)
    remove()
    try:
        stage.mkdir()
    except OSError as error:
        raise UsageError(f"{stage}: cannot be written: {error.strerror or error}") from error
    with leftovers.removed_by(remove):
        try:
            yield stage
        finally:
            remove()
