"""Report: write an artifact's report again, with measurements, into the artifact or elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from onnxopt.artifact import layout
from onnxopt.artifact.open import open_artifact
from onnxopt.artifact.report import facts as report_facts
from onnxopt.artifact.report import page
from onnxopt.errors import UsageError
from onnxopt.paths import StrPath


def report(artifact: StrPath, *, bench: Sequence[StrPath] = (), output: StrPath | None = None) -> Path:
    """Write the report of an artifact again with measurements added, and return its path.

    bench: files that `onnxopt bench --json` printed (one result or a list); a result replaces an earlier one of the
    same device, provider and case. output: the page to write; default the artifact's own report.html, whose hash in the
    manifest then changes too. Raises ArtifactError, UsageError.
    """
    opened = open_artifact(artifact)
    folder, manifest = opened.folder, opened.manifest
    facts = report_facts.read_facts(folder, manifest)
    results = [result for path in bench for result in report_facts.read_measurements(Path(path), manifest)]
    if results:
        facts = dataclasses.replace(facts, measurements=report_facts.merged(facts.measurements, results))
    if output is None:
        if not Path(artifact).is_dir():
            raise UsageError(f"{artifact}: is an archive, and stays as it is; say with -o where to write the report")
        page.update(folder, manifest, facts)
        return folder / layout.REPORT
    path = Path(output)
    try:
        path.write_text(page.render(folder, manifest, facts), "utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path
