"""Texts and groups that summarize an artifact or a model for people; `explain`, `inspect` and the report share them."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence

from onnxopt.artifact.manifest import Kernel, Totals
from onnxopt.fusion.kernel import Traffic
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite import FAMILIES
from onnxopt.runtime.sessions import CUDA
from onnxopt.verification.verify import VerificationReport

_LISTED_NODES = 20
_NAME_OR_SHAPE = re.compile(r"`[^`]*`|\[[^\]]*\]")


def rewrites_text(rewrites: Mapping[str, int]) -> str:
    """What the families of rewrite rules did, "" where none applied."""
    rows = {name: FAMILIES[name].explanation if name in FAMILIES else f"{{}} x {name}" for name in rewrites}
    return ", ".join(rows[name].format(count) for name, count in rewrites.items() if count)


def totals_text(totals: Totals) -> str:
    """Predicted bytes and kernel launches of all places together, before and after."""
    launches = f"{totals.launches_before} launches -> {totals.launches_after}"
    if not totals.bytes_before:
        return f"{launches} (bytes depend on dynamic dims)" if totals.unknown else launches
    unknown = f", and {totals.unknown} places whose size depends on dynamic dims" if totals.unknown else ""
    saved = 1 - totals.bytes_after / totals.bytes_before
    return f"{size_text(totals.bytes_before)} -> {size_text(totals.bytes_after)} (-{saved:.0%}), {launches}{unknown}"


def executed_text(report: VerificationReport, archs: Sequence[str]) -> str:
    """Which kernels verification executed where: "CPU: 2 of 8 kernels; CUDA: compiled, not run". "" where unknown.

    archs: the GPU architectures that kernels were compiled for.
    """
    if report.executed is None and report.checks:
        return ""
    rows = report.executed or ()
    parts = [f"{_short(row.provider)}: {len(row.kernels)} of {row.of} kernels" for row in rows if row.of]
    if archs and not any(row.provider == CUDA for row in rows):
        parts.append("CUDA: compiled, not run")
    return "; ".join(parts)


def not_emulated_text(report: VerificationReport) -> str:
    """Which kernels an emulation did not run, and why: "MatMulAdd_1f, Gemm_2e: takes a GPU". "" for none."""
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    for row in report.executed or ():
        for name, reason in row.not_run.items():
            reasons[reason].append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def size_text(count: float) -> str:
    """Bytes for people, in powers of 1000: 1.23 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def placement_text(host: Sequence[tuple[str, str]], blocking: Sequence[tuple[str, str]]) -> str:
    """Which nodes stay on the host under the CUDA provider, and which prevent a CUDA graph: (name, reason) of each."""
    lines = [f"CUDA graph: {f'blocked by {len(blocking)} nodes' if blocking else 'nothing blocks it'}"]
    lines += [f"    {name}: {reason}" for name, reason in blocking[:_LISTED_NODES]]
    lines += [f"on the host under the CUDA provider: {len(host)} nodes"] if host else []
    lines += [f"    {name}: {reason}" for name, reason in host[:_LISTED_NODES] if (name, reason) not in blocking]
    return "\n".join(lines)


def alike(kernel: Kernel) -> collections.Counter[tuple[tuple[str, ...], Traffic]]:
    """How many places of a kernel have the same shapes (inputs then outputs) and the same predicted traffic."""
    return collections.Counter((tuple(map(_nameless, s.shapes)), s.traffic) for s in kernel.sites)


def by_reason(refusals: Iterable[Refusal]) -> dict[str, list[Refusal]]:
    """Refusals by reason, most frequent first. Reasons that differ in names or shapes only are one group.

    The key of a group is the reason where all refusals have the same text, else the reason with `...` for each name and
    [...] for each shape.
    """
    groups: dict[str, list[Refusal]] = collections.defaultdict(list)
    for refusal in refusals:
        groups[_NAME_OR_SHAPE.sub(lambda text: f"{text[0][0]}...{text[0][-1]}", refusal.reason)].append(refusal)
    titled = {
        rows[0].reason if all(row.reason == rows[0].reason for row in rows) else text: rows
        for text, rows in groups.items()
    }
    return dict(sorted(titled.items(), key=lambda item: (-len(item[1]), item[0])))


def _nameless(shape: str) -> str:
    """A shape's text with "?" for dims that only onnx's shape inference named, differently at each place."""
    return re.sub(r"\bunk__\d+", "?", shape)
