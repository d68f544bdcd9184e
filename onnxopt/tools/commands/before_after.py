"""The end of `onnxopt optimize`: what changed, as a table, and the command to try next."""

from __future__ import annotations

import shlex
from pathlib import Path

from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.report.facts import Facts
from onnxopt.artifact.summary import size_text
from onnxopt.runtime.sessions import CUDA
from onnxopt.tools import text_table

_OF_FUSED = "of what is fused, predicted"


def table(manifest: Manifest, facts: Facts) -> list[str]:
    """Operators of the whole graph, launches and bytes of the nodes that are fused, and kernels; before and after."""
    traffic = manifest.traffic
    rows: list[tuple[str, str, str]] = []
    if facts.before is not None and facts.after is not None:
        rows.append(("operators", f"{facts.before.nodes:,}", f"{facts.after.nodes:,}"))
    if manifest.kernels:
        rows.append((f"launches {_OF_FUSED}", f"{traffic.launches_before:,}", f"{traffic.launches_after:,}"))
        rows.append((f"bytes {_OF_FUSED}", *_bytes(manifest)))
        rows.append(("kernels of onnxopt", "0", f"{len(manifest.kernels):,}"))
    lines = text_table.lines(("", "before", "after"), rows, left=("",))
    places = f"bytes: and {traffic.unknown} calls whose sizes depend on dynamic dims"
    return [*lines, *([places] if traffic.unknown and traffic.bytes_before else [])]


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
        return f"next: onnxopt verify {shlex.quote(manifest.source.path)} {artifact} (nothing was compared yet)"
    ran_on_gpu = any(row.provider == CUDA and row.kernels for row in manifest.verify.executed or ())
    if manifest.archs and not ran_on_gpu:
        return f"next: onnxopt doctor {artifact} and onnxopt bench {artifact}, on the machine with the GPU that serves"
    return f"next: onnxopt bench {artifact} (times it against the original)"
