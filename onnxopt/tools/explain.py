"""Explain: what was fused, what that saves by the closed form, and why everything else stayed as it is."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from onnxopt.artifact import archive
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.manifest import Kernel, Manifest, Totals
from onnxopt.fusion.regions import Traffic
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite import FAMILIES

CLOSED_FORM = "n elementwise ops over B bytes with c bytes of side inputs move 2nB + c unfused, 2B + c fused"
_EXAMPLES = 3
_MOST = 20  # nodes listed one by one
_NAMED_VALUE = re.compile(r"^\S+ (?=also reaches|is needed elsewhere)")


def explain(artifact: str | Path, *, every_refusal: bool = False) -> str:
    """The explanation of an artifact as text for people. ArtifactError where it is none.

    every_refusal: list each refused node instead of a count and a few examples a reason.
    """
    return describe(manifests.load(archive.folder_of(Path(artifact))), every_refusal=every_refusal)


def describe(manifest: Manifest, *, every_refusal: bool = False) -> str:
    """The same for a manifest at hand."""
    return "\n".join(
        itertools.chain(
            _summary(manifest),
            *(_kernel(k) for k in manifest.kernels),
            _left_out(manifest),
            _refusals(manifest.refusals, every_refusal),
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
    yield from (f"note: {note}" for note in manifest.notes)


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


def _kernel(kernel: Kernel) -> Iterator[str]:
    where = "CUDA and CPU" if kernel.cpu else "CUDA; the CPU runs the original nodes, which are faster there"
    yield ""
    yield f"{kernel.name}: {', '.join(kernel.ops)} ({where})"
    yield f"    variants: {', '.join(v.removeprefix(kernel.name).lstrip('_') for v in kernel.variants)}"
    for (shapes, traffic), count in alike(kernel).items():
        inputs, outputs = shapes[: len(kernel.inputs)], shapes[len(kernel.inputs) :]
        yield f"    {count} x ({', '.join(inputs)}) -> {', '.join(outputs)}: {_traffic(traffic)}"


def alike(kernel: Kernel) -> collections.Counter[tuple[tuple[str, ...], Traffic]]:
    """How many places of a kernel have the same shapes (inputs then outputs) and the same predicted traffic."""
    return collections.Counter((tuple(map(_nameless, s.shapes)), s.traffic) for s in kernel.sites)


def _nameless(shape: str) -> str:
    """Dims that only onnx's shape inference named, each place otherwise, as "?"."""
    return re.sub(r"\bunk__\d+", "?", shape)


def _traffic(traffic: Traffic) -> str:
    launches = f"{traffic.launches_before} launches -> {traffic.launches_after}"
    if traffic.bytes_before is None or traffic.bytes_after is None:
        return launches
    return f"{size_text(traffic.bytes_before)} -> {size_text(traffic.bytes_after)}, {launches}"


def _left_out(manifest: Manifest) -> Iterator[str]:
    for row in manifest.left_out:
        yield ""
        yield f"left out by verification: {row.name} ({', '.join(row.ops)}): {row.reason}"


def _refusals(refusals: Iterable[Refusal], every: bool) -> Iterator[str]:
    reasons = by_reason(refusals)
    if reasons:
        yield ""
        yield "not fused:"
    for reason, rows in reasons.items():
        yield f"    {len(rows)} x {reason}"
        for row in rows if every else rows[:_EXAMPLES]:
            beside = f" beside {row.neighbour}" if row.neighbour else ""
            yield f"        {row.node} ({row.op_type}){beside}"
        if not every and len(rows) > _EXAMPLES:
            yield f"        and {len(rows) - _EXAMPLES} more (--all lists them)"


def by_reason(refusals: Iterable[Refusal]) -> dict[str, list[Refusal]]:
    """Refusals under their reasons, most frequent first; the value that a reason names differs from node to node."""
    found: dict[str, list[Refusal]] = collections.defaultdict(list)
    for refusal in refusals:
        found[_NAMED_VALUE.sub("a value ", refusal.reason)].append(refusal)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def size_text(count: float) -> str:
    """Bytes for people, in powers of 1000: 1.23 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def placement_text(host: Sequence[tuple[str, str]], blocking: Sequence[tuple[str, str]]) -> str:
    """What stays on the host under the CUDA provider, and what keeps a CUDA graph from being captured."""
    lines = [f"CUDA graph: {f'blocked by {len(blocking)} nodes' if blocking else 'nothing blocks it'}"]
    lines += [f"    {name}: {reason}" for name, reason in blocking[:_MOST]]
    lines += [f"on the host under the CUDA provider: {len(host)} nodes"] if host else []
    lines += [f"    {name}: {reason}" for name, reason in host[:_MOST] if (name, reason) not in blocking]
    return "\n".join(lines)
