"""The text of a verification report, which `onnxopt optimize` and `onnxopt verify` print."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from onnxopt.artifact.summary import counted, executed_text, limit_text, not_emulated_text, weak_lines
from onnxopt.verification.check import Check
from onnxopt.verification.compare import Difference
from onnxopt.verification.rounding.exactness import FromFloat64, QuantizedExactness
from onnxopt.verification.verify import VerificationReport


def verification_text(report: VerificationReport, archs: Sequence[str] = ()) -> str:
    """A line for each provider, with the library and without it, then the kernels executed, notes, and any failure.

    archs: the GPU architectures that the artifact's kernels were compiled for.
    """
    executed = executed_text(report, archs)
    if report.status == "skipped":
        return "verify: skipped" + (f"\nkernels executed: {executed}" if executed else "")
    if report.status == "not_run":
        return f"verify: NOT RUN, nothing was compared: {report.reason}"
    lines: list[str] = []
    for provider in report.providers:
        for library in (True, False):
            checks = [c for c in report.checks if c.provider == provider and c.library is library]
            if checks:
                weak = {row.output for row in report.weak if row.provider == provider}
                lines += _checks(f"{provider} {'with' if library else 'without'} the library", checks, weak)
    lines += [f"    does not count: {line}" for line in weak_lines(report)]
    if executed:
        lines.append(f"kernels executed: {executed}")
    if missing := not_emulated_text(report):
        lines.append(f"    not emulated: {missing}")
    lines += [f"    {note}" for note in report.notes]
    lines += [f"    not run by the original: {s.case}: {s.reason}" for s in report.skipped]
    if report.status == "failed":
        lines.append(f"verify: FAILED: {report.reason}")
    return "\n".join(lines)


def _checks(label: str, checks: Sequence[Check], weak: Collection[str]) -> Iterator[str]:
    """weak: names of outputs that do not count."""
    cases = counted(len({c.case for c in checks}), "case")
    state = "passed" if all(c.ok for c in checks) else "FAILED"
    outputs = {c.output for c in checks}
    counting = outputs.difference(weak)
    if state == "passed" and not counting:
        state = "UNDECIDED"
    share = "" if counting == outputs else f", {len(counting)} of {len(outputs)} outputs count"
    yield f"verify: {state}, {label}, {cases}{share}, {_worst([c.difference for c in checks if c.difference])}"
    exact = [c.exactness for c in checks if c.exactness is not None]
    steps = [e for e in exact if isinstance(e, QuantizedExactness)]
    if steps:
        distance, original = max(e.found_rms for e in steps), max(e.original_rms for e in steps)
        without = "rms from the original without steps of codes"
        yield f"    {without}: {limit_text(distance)}; of the original's own: {limit_text(original)}"
    elif exact:
        wider = "float64" if any(isinstance(e, FromFloat64) for e in exact) else "float32"
        distance, original = max(e.found for e in exact), max(e.original for e in exact)
        yield f"    error against {wider}: {limit_text(distance)}; of the original: {limit_text(original)}"
    noisy = [c for c in checks if c.ok and c.noise is not None]
    if noisy:
        spread = max(c.noise or 0.0 for c in noisy)
        moved = f"what last places move the original by, up to {limit_text(spread)}"
        yield f"    {counted(len(noisy), 'output')} within 4 times {moved}"


def _worst(differences: Sequence[Difference]) -> str:
    """The output closest to its limit: its largest absolute error, or of integers the share that differs."""
    worst = max(differences, key=lambda d: d.excess or 0.0, default=None)
    if worst is None or not worst.excess:
        return "equal" if all(d.ok for d in differences) else "not comparable"
    error = f"max abs error {worst.max_abs:.2g}"
    if worst.ulp is None:
        error = f"{1 - worst.agreement:.2%} of the elements differ"
    return f"{error} ({limit_text(worst.excess)})"
