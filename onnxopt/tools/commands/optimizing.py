"""What `onnxopt optimize` does where there is work: progress, and a summary of the artifact as text or JSON."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from onnxopt import text_table
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.result_table import conclusion, tables
from onnxopt.artifact.summary import fixing_text, precision_lines, reference_lines, size_text
from onnxopt.phases import Progress, silent
from onnxopt.pipeline import flow
from onnxopt.pipeline.making import Artifact
from onnxopt.pipeline.options import Options
from onnxopt.printable import printable
from onnxopt.tools import progress
from onnxopt.tools.batching import jobs, table, work
from onnxopt.tools.commands.printing import columns, print_json
from onnxopt.tools.commands.verification_text import verification_notes
from onnxopt.tools.folders import OptimizedFolder, optimize_folder

_SHOWN = 0.1  # seconds of a phase


def optimize_one(model: Path, output: Path, chosen: Options, force: bool, quiet: bool, as_json: bool) -> None:
    """Optimize a model file, and say what became of it."""
    with progress.shown(quiet) as advance:
        follower = _Tables(advance or silent)
        artifact = flow.optimize(model, output, chosen, force=force, progress=advance if as_json else follower)
    if as_json:
        result, manifest = dataclasses.asdict(artifact.result), artifact.manifest.model_dump(mode="json")
        print_json({"artifact": str(artifact.path), "result": result, "manifest": manifest})
    else:
        if not follower.count:  # made meanwhile by another process
            follower.result(artifact)
        width, colour = columns()
        click.echo(f"\n{printable(_wrote(artifact))}")
        click.echo(conclusion(artifact.result, width, colour=colour))


class _Tables:
    """Progress that prints what is known of the result while kernels are compiled. count: how often it did."""

    def __init__(self, advance: Progress) -> None:
        self._advance, self.count = advance, 0

    def __call__(self, phase: str, detail: str, done: int, total: int) -> None:
        self._advance(phase, detail, done, total)

    def result(self, artifact: Artifact) -> None:
        width, colour = columns()
        parts = (printable(_notes(artifact.manifest)), tables(artifact.result, width, colour=colour))
        with progress.paused():
            if self.count:
                click.echo("\nKernels that need more registers than a GPU has were split. The result with the others:")
            click.echo("\n\n".join(filter(None, parts)))
        self.count += 1


def optimize_all(folder: Path, output: Path, chosen: Options, force: bool, quiet: bool, as_json: bool) -> None:
    """Optimize the models of a folder, and say what became of each. Exits with the code of those that failed."""
    with progress.shown(quiet) as advance:
        optimized = optimize_folder(folder, output, chosen, force=force, progress=advance)
    if as_json:
        print_json({"folder": str(optimized.path), **optimized.to_json()})
    else:
        click.echo(printable(_folder_text(optimized)))
    click.get_current_context().exit(optimized.exit_code)


def optimize_many(
    patterns: Sequence[str], out_dir: Path, chosen: Options, force: bool, quiet: bool, as_json: bool
) -> None:
    """Optimize many models and folders into `out_dir`. Exits with the code of those that failed."""
    sources = jobs.sources(patterns, out_dir)
    outcomes = []
    with progress.shown(quiet) as advance:
        for k, (name, source) in enumerate(zip(jobs.names(sources), sources, strict=True), 1):
            title = f"{name} ({k} of {len(sources)})"
            shown = functools.partial(_named, advance, title) if advance else None
            outcomes.append(work.optimize(jobs.Job(name, source, out_dir / name, chosen), shown, force=force))
    if as_json:
        print_json({"models": [outcome.to_json() for outcome in outcomes]})
    else:
        click.echo(table.text(outcomes))
    click.get_current_context().exit(max(outcome.exit_code for outcome in outcomes))


def _named(advance: Progress, name: str, phase: str, detail: str, done: int, total: int) -> None:
    advance(phase, f"{name} {detail}".strip(), done, total)


def _folder_text(optimized: OptimizedFolder) -> str:
    lines = text_table.lines(
        ("model", "nodes", "launches", "verify"), [*_model_rows(optimized)], left=("model", "verify")
    )
    lines += [f"{model.path}: not optimized: {model.error}" for model in optimized.models if model.error is not None]
    done = sum(model.manifest is not None for model in optimized.models)
    lines.append(
        f"wrote {optimized.path}: {done} of {len(optimized.models)} models optimized, "
        f"{len(optimized.others)} other files copied"
    )
    if optimized.library is None:
        return "\n".join([*lines, "nothing was fused, so there is no library"])
    record = next(optimized.path / model.record for model in optimized.models if model.record is not None)
    lines += [
        f"one library for all of them: {optimized.library}",
        "next: register it with your session options, by register_custom_ops_library; without it no kernel runs",
        f"      onnxopt explain {shlex.quote(str(record))} (what was fused, and what would gain more)",
    ]
    return "\n".join(lines)


def _model_rows(optimized: OptimizedFolder) -> Iterator[tuple[str, ...]]:
    for model in optimized.models:
        if (result := model.result) is not None:
            changes = (f"{change.before} -> {change.after}" for change in (result.nodes, result.launches))
            yield model.path, *(text.replace("None", "?") for text in changes), result.verify


def _notes(manifest: Manifest) -> str:
    """What the tables do not say."""
    lines = [f"left out: {row.name}: {row.reason}" for row in manifest.left_out]
    lines += [f"note: {note}" for note in manifest.notes]
    lines += [f"could gain: {fixing_text(manifest.fixing)}"] if manifest.fixing is not None else []
    lines += precision_lines(manifest.precision) if manifest.precision is not None else []
    lines += reference_lines(manifest.reference) if manifest.reference is not None else []
    lines += verification_notes(manifest.verify, manifest.archs)
    return "\n".join(lines)


def _wrote(artifact: Artifact) -> str:
    """How long it took, and what the library takes beside the model."""
    seconds, library = artifact.manifest.seconds, artifact.result.library_bytes
    phases = ", ".join(f"{name} {passed:.1f}" for name, passed in seconds.items() if passed >= _SHOWN)
    took = f"wrote {artifact.path} in {sum(seconds.values()):.1f} s{f' ({phases})' if phases else ''}"
    return f"{took}; library and kernels take {size_text(library)}" if library else took
