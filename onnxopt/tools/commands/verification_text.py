"""The text of a verification report, which `onnxopt optimize` and `onnxopt verify` print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxopt import text_table
from onnxopt.artifact.result import errors
from onnxopt.artifact.result_table import errors_table
from onnxopt.artifact.summary import counted, executed_text, limit_text, not_emulated_text, status_text, weak_lines
from onnxopt.printable import printable
from onnxopt.verification.check import Check
from onnxopt.verification.rounding.exactness import FromFloat64, QuantizedExactness
from onnxopt.verification.verify import VerificationReport


def verification_text(report: VerificationReport, archs: Sequence[str], width: int, *, colour: bool) -> str:
    """The table of errors, notes, and how it went. archs: that the artifact's kernels were compiled for.

    width: columns. colour: with a terminal's escape sequences in the table.
    """
    table = errors_table([*errors(report)], fine=colour)
    lines = [text_table.drawn([table], width, colour=colour), ""] if report.checks else []
    ended = {"failed": f"FAILED: {report.reason}", "not_run": f"NOT RUN, nothing was compared: {report.reason}"}
    status = ended.get(report.status) or status_text(report)
    return "\n".join([*lines, *map(printable, [*verification_notes(report, archs), f"verify: {status}"])])


def verification_notes(report: VerificationReport, archs: Sequence[str]) -> list[str]:
    """What the table of errors does not say: how float64 judges, outputs that do not count, kernels executed, notes."""
    lines: list[str] = []
    for provider in report.providers:
        for library in (True, False):
            checks = [c for c in report.checks if c.provider == provider and c.library is library]
            label = f"{provider} {'with' if library else 'without'} the library"
            lines += [f"{label}: {line}" for line in _evidence(checks)]
    lines += [f"does not count: {line}" for line in weak_lines(report)]
    if executed := executed_text(report, archs):
        lines.append(f"kernels executed: {executed}")
    if missing := not_emulated_text(report):
        lines.append(f"not emulated: {missing}")
    lines += report.notes
    if report.skipped:
        first, *others = report.skipped
        more = f" (and {counted(len(others), 'more case')}; --json lists them)" if others else ""
        lines.append(f"not run by the original: {first.case}: {first.reason}{more}")
    return lines


def _evidence(checks: Sequence[Check]) -> Iterator[str]:
    """What speaks for outputs that are not near the original's."""
    exact = [c.exactness for c in checks if c.exactness is not None]
    steps = [e for e in exact if isinstance(e, QuantizedExactness)]
    if steps:
        distance, original = max(e.found_rms for e in steps), max(e.original_rms for e in steps)
        without = "rms from the original without steps of codes"
        yield f"{without}: {limit_text(distance)}; of the original's own: {limit_text(original)}"
    elif exact:
        wider = "float64" if any(isinstance(e, FromFloat64) for e in exact) else "float32"
        distance, original = max(e.found for e in exact), max(e.original for e in exact)
        yield f"error against {wider}: {limit_text(distance)}; of the original: {limit_text(original)}"
    noisy = [c for c in checks if c.ok and c.noise is not None]
    if noisy:
        spread = max(c.noise or 0.0 for c in noisy)
        moved = f"what last places move the original by, up to {limit_text(spread)}"
        yield f"{counted(len(noisy), 'output')} within 4 times {moved}"
