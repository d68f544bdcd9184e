"""Report: make an artifact's report again, with measurements, in its place or elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.open import open_artifact
from onnxopt.artifact.report import facts as report_facts
from onnxopt.artifact.report import page
from onnxopt.errors import UsageError
from onnxopt.tools import bench as benchmark


def report(artifact: str | Path, *, bench: Sequence[str | Path] = (), output: str | Path | None = None) -> Path:
    """Make the report of an artifact again, adding what was measured, and return its path.

    bench: files with what `onnxopt bench --json` printed (one result or a list); a result for a device, provider and
    case that the report has already takes that one's place. output: where to write the page; default the artifact's
    own report.html, whose hash in the manifest then changes too. Raises ArtifactError, UsageError.
    """
    opened = open_artifact(artifact)
    folder, manifest = opened.folder, opened.manifest
    facts = page.read_facts(folder, manifest)
    new = [m for path in bench for m in report_facts.read_measurements(Path(path), manifest)]
    if new:
        facts = dataclasses.replace(facts, measurements=report_facts.merged(facts.measurements, new))
    if output is None:
        if not Path(artifact).is_dir():
            raise UsageError(f"{artifact}: is an archive, and stays as it is; say with -o where to write the report")
        page.update(folder, manifest, facts)
        return folder / page.FILE
    path = Path(output)
    try:
        path.write_text(page.render(folder, manifest, facts), "utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def keep(artifact: Path, result: benchmark.Result) -> None:
    """Add a result of this process to the page of an artifact folder. ArtifactError, UsageError as above."""
    manifest = manifests.load(artifact)
    facts = page.read_facts(artifact, manifest)
    measurements = report_facts.merged(facts.measurements, [report_facts.from_result(result)])
    page.update(artifact, manifest, dataclasses.replace(facts, measurements=measurements))
