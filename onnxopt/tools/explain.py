"""Explain: the fused nodes, the traffic that they save by the closed form, and why other nodes were not fused."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from onnxopt.artifact.manifest import Kernel, Manifest
from onnxopt.artifact.open import read_manifest
from onnxopt.artifact.summary import (
    alike,
    by_reason,
    executed_text,
    not_emulated_text,
    not_lowered,
    precision_lines,
    rewrites_text,
    size_text,
    totals_text,
    work_text,
)
from onnxopt.fusion.kernel import Traffic
from onnxopt.graph.refusal import Refusal
from onnxopt.kinds import KINDS
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.program.gemm import CODES

CLOSED_FORM = "n elementwise ops over B bytes with c bytes of side inputs move 2nB + c unfused, 2B + c fused"
_EXAMPLES = 3
_LIBRARIES = {kind.name: kind.library for kind in KINDS if kind.library}


def explain(artifact: str | Path, *, every_refusal: bool = False) -> str:
    """What an artifact fuses, what that saves, and why other nodes were not fused, as text.

    every_refusal: list each node that was not fused, instead of a count and a few examples for each reason.
    ArtifactError where `artifact` is no artifact.
    """
    return describe(read_manifest(artifact), every_refusal=every_refusal)


def describe(manifest: Manifest, *, every_refusal: bool = False) -> str:
    """The same text, from a manifest."""
    return "\n".join(
        itertools.chain(
            _summary(manifest),
            *(_kernel(k, manifest.archs) for k in manifest.kernels),
            _left_out(manifest),
            _refusals("not fused:", manifest.refusals, every_refusal),
            _refusals("not lowered:", not_lowered(manifest), every_refusal),
        )
    )


def _summary(manifest: Manifest) -> Iterator[str]:
    places = sum(len(k.sites) for k in manifest.kernels)
    ops = sum(len(k.ops) * len(k.sites) for k in manifest.kernels)
    yield f"{manifest.source.name}: {ops} nodes fused into {places} calls of {len(manifest.kernels)} kernels"
    if text := rewrites_text(manifest.rewrites):
        yield f"rewritten: {text}"
    if manifest.kernels:
        yield f"predicted traffic: {totals_text(manifest.traffic)}"
        yield f"closed form: {CLOSED_FORM}"
    yield _verified(manifest)
    if manifest.precision is not None:
        yield from precision_lines(manifest.precision)
    yield from (f"note: {note}" for note in manifest.notes)


def _verified(manifest: Manifest) -> str:
    """Whether the artifact was verified, and which of its kernels were executed for that, in one line."""
    status, executed = manifest.verify.status.replace("_", " "), executed_text(manifest.verify, manifest.archs)
    reason = f" ({manifest.verify.reason})" if manifest.verify.status in ("failed", "not_run") else ""
    missing = not_emulated_text(manifest.verify)
    return (
        f"verify: {status}{reason}"
        + (f"; kernels executed: {executed}" if executed else "")
        + (f"; not emulated: {missing}" if missing else "")
    )


def _kernel(kernel: Kernel, archs: Sequence[str]) -> Iterator[str]:
    where = "CUDA and CPU" if kernel.cpu else "CUDA; the CPU runs the original nodes, which are faster there"
    yield ""
    yield f"{kernel.name}: {', '.join(kernel.ops)} ({where})"
    if kernel.variants:
        yield f"    variants: {', '.join(v.removeprefix(kernel.name).lstrip('_') for v in kernel.variants)}"
    if kernel.kind in _LIBRARIES:
        codes = kernel.kind == GEMM.name and CODES in kernel.inputs
        of = " on 8-bit floats (fp8), or on the same codes in float16 where it refuses those" if codes else ""
        yield f"    runs as a call of {_LIBRARIES[kernel.kind]}{of}"
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
