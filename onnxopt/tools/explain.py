"""Explain: the fused nodes, the traffic that they save by the closed form, and why other nodes were not fused."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from onnxopt import text_table
from onnxopt.artifact import layout, result, result_table
from onnxopt.artifact.manifest import Kernel, Manifest
from onnxopt.artifact.open import read_manifest
from onnxopt.artifact.result import Result
from onnxopt.artifact.summary import (
    alike,
    by_reason,
    executed_text,
    fixing_text,
    fused_text,
    not_emulated_text,
    not_lowered,
    precision_lines,
    predicted_rows,
    reference_lines,
    rewrites_text,
    size_text,
    status_text,
    totals_text,
    unmeasured,
    work_text,
)
from onnxopt.fusion.kernel import Traffic
from onnxopt.graph import signature
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds import KINDS
from onnxopt.kinds.attention.kind import ATTENTION
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.paths import StrPath
from onnxopt.program.attention import CODES
from onnxopt.program.gemm import FLOAT8
from onnxopt.runtime.predicted import ERROR

CLOSED_FORM = "n elementwise ops over B bytes with c bytes of side inputs move 2nB + c unfused, 2B + c fused"
_EXAMPLES = 3
_GROUPS = 10
_UNRECOGNISED = 9  # and a line that there are more
_LISTED = 40  # operators of a kernel
_TUNED = (layout.PRODUCT_ALGORITHMS, layout.CONVOLUTION_PLANS, layout.LAUNCH_CHOICES)
_PACKED = "MatMulNBits"  # a product with weights of 4 or 8 bits
_MULTI_HEAD = "MultiHeadAttention"
_LIBRARIES = {kind.name: kind.library for kind in KINDS if kind.library}


def explain(artifact: StrPath, *, kernels: bool = False, every_refusal: bool = False) -> str:
    """What an artifact fuses, what that saves, and why other nodes were not fused, as text.

    kernels: say of each kernel its entry points, and the shapes of each place, after the ten that save most.
    every_refusal: list each node that was not fused, instead of a count and a few examples for each reason.
    ArtifactError where `artifact` is no artifact.
    """
    manifest = read_manifest(artifact)
    return describe(manifest, result.read(Path(artifact), manifest), kernels=kernels, every_refusal=every_refusal)


def describe(
    manifest: Manifest, changed: Result | None = None, *, kernels: bool = False, every_refusal: bool = False
) -> str:
    """The same text, from a manifest. changed: counts of the whole model, where they are known."""
    return "\n".join(
        itertools.chain(
            _summary(manifest),
            result_table.change_lines(changed) if changed is not None else (),
            _traffic_and_checks(manifest),
            _groups(manifest),
            _predicted(manifest),
            _to_try(manifest),
            *(_kernel(k, manifest.archs) for k in manifest.kernels if kernels),
            _left_out(manifest),
            _unrecognised(manifest.refusals, every_refusal),
            _refusals("not fused:", [r for r in manifest.refusals if not _is_unrecognised(r)], every_refusal),
            _refusals("not lowered:", not_lowered(manifest), every_refusal),
        )
    )


def _summary(manifest: Manifest) -> Iterator[str]:
    yield fused_text(manifest, manifest.source.name)
    if text := rewrites_text(manifest.rewrites):
        yield f"rewritten: {text}"


def _traffic_and_checks(manifest: Manifest) -> Iterator[str]:
    if manifest.kernels:
        yield f"predicted traffic of what is fused: {totals_text(manifest.traffic)}"
        yield f"closed form: {CLOSED_FORM}"
    yield _verified(manifest)
    if manifest.precision is not None:
        yield from precision_lines(manifest.precision)
    if manifest.reference is not None:
        yield from reference_lines(manifest.reference)
    yield from (f"note: {note}" for note in manifest.notes)


def _verified(manifest: Manifest) -> str:
    """Whether the artifact was verified, and which of its kernels were executed for that, in one line."""
    status, executed = status_text(manifest.verify), executed_text(manifest.verify, manifest.archs)
    reason = f" ({manifest.verify.reason})" if manifest.verify.status in ("failed", "not_run") else ""
    missing = not_emulated_text(manifest.verify)
    return (
        f"verify: {status}{reason}"
        + (f"; kernels executed: {executed}" if executed else "")
        + (f"; not emulated: {missing}" if missing else "")
    )


def _groups(manifest: Manifest) -> Iterator[str]:
    """The kernels that save most, with all their calls: first by bytes, where sizes are known, then by launches."""
    if not manifest.kernels:
        return
    saved = {kernel.name: _saved(kernel) for kernel in manifest.kernels}
    ranked = sorted(manifest.kernels, key=lambda kernel: saved[kernel.name], reverse=True)
    yield ""
    yield f"the {min(_GROUPS, len(ranked))} of {len(ranked)} groups that save most (--kernels says more of each):"
    rows = [(*_saving_texts(kernel), f"{_operators(kernel)}  {kernel.name}") for kernel in ranked[:_GROUPS]]
    for line in text_table.lines(("calls", "launches", "bytes", "group"), rows, left=("group",)):
        yield f"    {line}"


def _operators(kernel: Kernel) -> str:
    """The operators in their order, or counted where they are many."""
    if len(kernel.operators) <= _LISTED:
        return ", ".join(kernel.operators)
    counts = collections.Counter(kernel.operators)
    return ", ".join(op if count == 1 else f"{count} x {op}" for op, count in counts.items())


def _predicted(manifest: Manifest) -> Iterator[str]:
    """The predicted times on every GPU that kernels were compiled for."""
    if manifest.predicted is None:
        return
    sizes = signature.describe(manifest.predicted.sizes)
    yield ""
    yield f"predicted milliseconds of a run with a CUDA graph, {sizes}:"
    notes = unmeasured(manifest)
    times = predicted_rows(manifest.predicted)
    rows = [(name, f"{before:.3g}", f"{after:.3g}", notes.get(name, "measured")) for name, before, after in times]
    for line in text_table.lines(("GPU", "before", "after", "thresholds"), rows, left=("GPU", "thresholds")):
        yield f"    {line}"
    yield f"    a roofline: {ERROR}"


def _saved(kernel: Kernel) -> tuple[int, int]:
    """Predicted bytes and launches that all calls of a kernel save; 0 bytes for those of unknown size."""
    traffic = [site.traffic for site in kernel.sites]
    with_bytes = [t for t in traffic if t.bytes_before is not None and t.bytes_after is not None]
    saved = sum((t.bytes_before or 0) - (t.bytes_after or 0) for t in with_bytes)
    return saved, sum(t.launches_before - t.launches_after for t in traffic)


def _saving_texts(kernel: Kernel) -> tuple[str, str, str]:
    """Calls, launches and bytes of a kernel."""
    traffic = [site.traffic for site in kernel.sites]
    launches = f"{sum(t.launches_before for t in traffic)} -> {sum(t.launches_after for t in traffic)}"
    with_bytes = [t for t in traffic if t.bytes_before is not None and t.bytes_after is not None]
    before, after = sum(t.bytes_before or 0 for t in with_bytes), sum(t.bytes_after or 0 for t in with_bytes)
    sizes = f"{size_text(before)} -> {size_text(after)}" if len(with_bytes) == len(traffic) else "dynamic"
    return str(len(traffic)), launches, sizes


def _to_try(manifest: Manifest) -> Iterator[str]:
    """What a user can do that may gain most."""
    dtypes = {dtype for kernel in manifest.kernels for dtype in (*kernel.inputs, *kernel.outputs)}
    rows = []
    if manifest.archs and manifest.precision is None and "float32" in dtypes:
        rows.append("optimize --precision float16: about half of the bytes, if 16 bits are enough")
    if manifest.fixing is not None:
        rows.append(fixing_text(manifest.fixing))
    elif manifest.traffic.unknown:
        rows.append("fixed sizes of dims that never change, in the export: kernels are chosen once")
    if manifest.archs and not any(name.endswith(_TUNED) for name in manifest.files):
        rows.append("onnxopt tune, on the GPU that serves: the fastest options and algorithms there")
    if rows:
        yield ""
        yield "what may gain more:"
        yield from (f"    {row}" for row in rows)


def _kernel(kernel: Kernel, archs: Sequence[str]) -> Iterator[str]:
    where = "CUDA and CPU" if kernel.cpu else "CUDA; the CPU runs the original nodes, which are faster there"
    yield ""
    yield f"{kernel.name}: {_operators(kernel)} ({where})"
    if kernel.variants:
        yield f"    variants: {', '.join(v.removeprefix(kernel.name).lstrip('_') for v in kernel.variants)}"
    if kernel.kind in _LIBRARIES:
        codes = kernel.kind == GEMM.name and FLOAT8 in kernel.inputs
        of = " on 8-bit floats (fp8), or on the same codes in float16 where it refuses those" if codes else ""
        rows = "few rows read the codes; more of them run" if _PACKED in kernel.ops else "runs"
        yield f"    {rows} as a call of {_LIBRARIES[kernel.kind]}{of}"
    if kernel.kind == FLASH_ATTENTION.name:
        faster = "it is faster than ONNX Runtime's for the number of keys to expect"
        alone = "no operator of ONNX Runtime computes it"
        yield f"    attention in one kernel of onnxopt: {faster if _MULTI_HEAD in kernel.ops else alone}"
    if kernel.kind == ATTENTION.name and kernel.outputs[1] in CODES:
        yield f"    reads the cache as {kernel.outputs[1]} codes, and adds the new tokens to it as such"
    for (shapes, traffic), count in alike(kernel).items():
        inputs, outputs = shapes[: len(kernel.inputs)], shapes[len(kernel.inputs) :]
        yield f"    {count} x ({', '.join(inputs)}) -> {', '.join(outputs)}: {_traffic(traffic)}"
        if work := work_text(traffic, kernel.outputs[0], archs):
            yield f"        {work}"


def _traffic(traffic: Traffic) -> str:
    launches = f"{traffic.launches_before} launches -> {traffic.launches_after}"
    if traffic.bytes_before is None or traffic.bytes_after is None:
        return launches
    return f"{size_text(traffic.bytes_before)} -> {size_text(traffic.bytes_after)}, {launches}"


def _left_out(manifest: Manifest) -> Iterator[str]:
    for row in manifest.left_out:
        yield ""
        yield f"left out by verification: {row.name} ({', '.join(row.ops)}): {row.reason}"


def _is_unrecognised(refusal: Refusal) -> bool:
    return refusal.reason.startswith("not recognised as ")


def _unrecognised(refusals: Iterable[Refusal], every: bool) -> Iterator[str]:
    """What looks like one operator and stayed several, and where the nearest rule stopped: for a user to report."""
    groups = list(by_reason(filter(_is_unrecognised, refusals)).values())
    if groups:
        yield ""
        yield "looks like one operator, and was not recognised (please report these lines):"
    for rows in groups if every else groups[:_UNRECOGNISED]:
        text = rows[0].reason.removeprefix("not recognised as ")
        yield f"    {len(rows)} x {text} ({rows[0].op_type} `{rows[0].node}`)"
    if len(groups) > _UNRECOGNISED and not every:
        yield f"    and {len(groups) - _UNRECOGNISED} more (--all lists them)"


def _refusals(title: str, refusals: Iterable[Refusal], every: bool) -> Iterator[str]:
    reasons = by_reason(refusals)
    if reasons:
        yield ""
        yield title
    for reason, rows in reasons.items():
        yield f"    {len(rows)} x {reason}"
        for row in rows if every else rows[:_EXAMPLES]:
            beside = f" beside {row.neighbour}" if row.neighbour else ""
            yield f"        {row.node} ({row.op_type}){beside}"
        if not every and len(rows) > _EXAMPLES:
            yield f"        and {len(rows) - _EXAMPLES} more (--all lists them)"
