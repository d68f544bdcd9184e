"""Recording in a finished artifact: a benchmark, or a verification on another machine, in manifest and report."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from onnxopt.artifact import layout
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.fleet import Fleet
from onnxopt.artifact.manifest import ReferenceQuality
from onnxopt.artifact.measurement import BenchResult
from onnxopt.artifact.report import facts as report_facts
from onnxopt.artifact.report import page
from onnxopt.errors import UsageError
from onnxopt.verification.verify import VerificationReport, completed


def check_recordable(folder: Path) -> None:
    """UsageError unless the manifest of an artifact folder may be written again."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: only an artifact folder can keep a record")
    if (folder / layout.SIGNATURE).is_file():
        raise UsageError(f"{folder}: is signed, and recording changes what was signed: record first, then sign")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder}: a record is written into this folder, and there is no permission to")


def record(folder: Path, result: BenchResult, fleet: Fleet | None = None) -> None:
    """Add a benchmark to an artifact's manifest and report. fleet: what it means for a load that was asked about.

    ArtifactError where manifest or report cannot be read, UsageError where they cannot be written.
    """
    check_recordable(folder)
    manifest = manifests.load(folder)
    facts = report_facts.read_facts(folder, manifest)
    facts = dataclasses.replace(facts, measurements=report_facts.merged(facts.measurements, [result]))
    measurements = (*manifest.measurements, result.measurement(fleet))
    page.update(folder, manifest.model_copy(update={"measurements": measurements}), facts)


def record_verification(folder: Path, report: VerificationReport) -> VerificationReport:
    """Complete the verification in an artifact's manifest and report; returns the completed one. Errors as `record`."""
    check_recordable(folder)
    manifest = manifests.load(folder)
    verification = completed(manifest.verify, report)
    page.update(folder, manifest.model_copy(update={"verify": verification}), report_facts.read_facts(folder, manifest))
    return verification


def record_reference(folder: Path, quality: ReferenceQuality) -> None:
    """Say in an artifact's manifest and report how near it is to a float32 model. Errors as `record`.

    It replaces what was known for the same model and inputs of the same providers, and everything of other ones.
    """
    check_recordable(folder)
    manifest = manifests.load(folder)
    earlier = manifest.reference
    if earlier is not None and (earlier.sha256, earlier.data) == (quality.sha256, quality.data):
        again = {row.provider for row in quality.quality}
        earlier_rows = tuple(row for row in earlier.quality if row.provider not in again)
        quality = quality.model_copy(update={"quality": (*earlier_rows, *quality.quality)})
    page.update(folder, manifest.model_copy(update={"reference": quality}), report_facts.read_facts(folder, manifest))
