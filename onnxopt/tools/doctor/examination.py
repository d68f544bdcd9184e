"""The whole examination: the machine, then the artifact. A check that raises an error is a finding, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from onnxopt import onnxruntime_package
from onnxopt.errors import UsageError
from onnxopt.paths import StrPath
from onnxopt.runtime import time_limit
from onnxopt.runtime.sessions import one_line
from onnxopt.tools.doctor import artifact, graphs, machine, placement, runtime
from onnxopt.tools.doctor.finding import Finding, Subject

MACHINE: tuple[Callable[[], Iterable[Finding]], ...] = (
    machine.driver,
    machine.gpu,
    runtime.onnxruntime,
    runtime.driver_for_runtime,
    runtime.cuda_provider,
    runtime.cudnn,
)
ARTIFACT: tuple[Callable[[Subject], Iterable[Finding]], ...] = (
    artifact.versions,
    artifact.operators,
    artifact.architectures,
    artifact.configuration,
    artifact.verification,
    placement.library,
    graphs.cuda_graph,
)
_REPORT = "please report it, with what is printed here"


def examine(path: StrPath | None = None, *, timeout: float | None = None) -> list[Finding]:
    """Examine this machine, and the artifact folder `path` if there is one; returns a finding for each check.

    timeout: seconds that one run of the artifact may take, as for `optimize`. UsageError where there is no such folder.
    An artifact with damaged files is not run.
    """
    time_limit.check(timeout)
    findings: list[Finding] = []
    if missing := onnxruntime_package.missing():  # nothing else can be told without it
        return [Finding("onnxruntime", "problem", *missing)]
    for check in MACHINE:
        findings += _carried_out(check.__name__, check)
    if path is None:
        return findings
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such artifact folder")
    subject, files = artifact.files(folder)
    findings += files
    if subject is not None and subject.opened:
        with time_limit.runs_end_within(time_limit.limit_of(timeout, subject.manifest.source.bytes)):
            for examine_artifact in ARTIFACT:
                findings += _carried_out(examine_artifact.__name__, lambda c=examine_artifact: c(subject))  # type: ignore[misc]
    return findings


def _carried_out(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001 - the other checks still run, and this error is a finding
        kind = type(error).__name__
        return [Finding(name.replace("_", " "), "problem", f"the check failed: {kind}: {one_line(error)}", _REPORT)]
