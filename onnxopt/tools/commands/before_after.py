"""The end of `onnxopt optimize`: what changed, as a table, and the command to try next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.report.facts import Facts
from onnxopt.artifact.report.gpus import FIRST
from onnxopt.artifact.summary import predicted_rows, size_text, unmeasured
from onnxopt.graph import signature
from onnxopt.runtime.sessions import CUDA
from onnxopt.tools import text_table

_GPUS, _NAMED = 2, 4  # of the predicted times: rows where no GPU was named, and at most
_PREDICTED = "of what is fused, predicted"


def table(manifest: Manifest, facts: Facts, named: Sequence[str] = ()) -> list[str]:
    """Before and after: nodes of the graph, launches and bytes of those that are fused, kernels, and predicted times.

    A call of a fused function is one node.

    named: the GPUs that the user named, by key, which predicted times are for.
    """
    traffic = manifest.traffic
    rows: list[tuple[str, str, str]] = []
    if facts.before is not None and facts.after is not None:
        rows.append(("nodes of the graph", f"{facts.before.nodes:,}", f"{facts.after.nodes:,}"))
    if manifest.kernels:
        rows.append((f"launches {_PREDICTED}", f"{traffic.launches_before:,}", f"{traffic.launches_after:,}"))
        rows.append((f"bytes {_PREDICTED}", *_bytes(manifest)))
        rows.append(("kernels of onnxopt", "0", f"{len(manifest.kernels):,}"))
    rows += _times(manifest, named)
    lines = text_table.lines(("", "before", "after"), rows, left=("",))
    places = f"bytes: and {traffic.unknown} calls whose sizes depend on dynamic dims"
    return [*lines, *([places] if traffic.unknown and traffic.bytes_before else [])]


def _times(manifest: Manifest, named: Sequence[str]) -> list[tuple[str, str, str]]:
    """Predicted times on the named GPUs, else on those that most people have; `explain` lists all."""
    if manifest.predicted is None:
        return []
    predicted = {row.gpu for row in manifest.predicted.times}
    keys = [key for key in named if key in predicted][:_NAMED]
    keys = keys or [key for key in (*FIRST, *sorted(predicted)) if key in predicted][:_GPUS]
    at = f" at {signature.describe(manifest.predicted.sizes)}" if manifest.predicted.sizes else ""
    rows = predicted_rows(manifest.predicted, keys)
    notes = {name: f" ({note})" for name, note in unmeasured(manifest).items()}
    return [
        (f"predicted ms, {name}{at}{notes.get(name, '')}", f"{before:.3g}", f"{after:.3g}")
        for name, before, after in rows
    ]


def _bytes(manifest: Manifest) -> tuple[str, str]:
    traffic = manifest.traffic
    if not traffic.bytes_before:
        return ("dynamic", "dynamic") if traffic.unknown else ("0 B", "0 B")
    return size_text(traffic.bytes_before), size_text(traffic.bytes_after)


def next_command(path: Path, manifest: Manifest) -> str:
    """The command that helps most with this artifact, and why."""
    artifact = shlex.quote(str(path))
    if not manifest.kernels:
        return f"next: onnxopt explain {artifact} --all (why nothing was fused)"
    if manifest.verify.status in ("skipped", "not_run"):
        original = shlex.quote(manifest.source.path or "MODEL")
        return f"next: onnxopt verify {original} {artifact} (nothing was compared yet)"
    ran_on_gpu = any(row.provider == CUDA and row.kernels for row in manifest.verify.executed or ())
    if manifest.archs and not ran_on_gpu:
        return f"next: onnxopt doctor {artifact} and onnxopt bench {artifact}, on the machine with the GPU that serves"
    return f"next: onnxopt bench {artifact} (times it against the original)"
