"""Texts and groups that summarize an artifact or a model for people; `explain`, `inspect` and the report share them."""

from __future__ import annotations

import collections
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from onnxopt.artifact.manifest import Fixing, Kernel, Manifest, Precision, Predicted, ReferenceQuality, Totals
from onnxopt.costs import measured
from onnxopt.fusion.kernel import Traffic
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.rewrite import FAMILIES
from onnxopt.runtime.gpus import catalogue
from onnxopt.runtime.sessions import CUDA
from onnxopt.verification.lowering.goals import Goals, Quality
from onnxopt.verification.verify import VerificationReport

_LISTED_NODES = 20
_NAME_OR_SHAPE = re.compile(r"`[^`]*`|\[[^\]]*\]")


def fused_text(manifest: Manifest, name: str) -> str:
    """How many kernels a model has, in one line. name: how the line calls the model."""
    calls = sum(len(k.sites) for k in manifest.kernels)
    return f"{name}: {counted(len(manifest.kernels), 'fused kernel')}, called by {counted(calls, 'node')}"


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 call", "2 calls"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def limit_text(share: float) -> str:
    """A difference beside the allowed one: "0.45 % of the limit", "1.25 times the limit"."""
    return f"{100 * share:.2g} % of the limit" if share < 0.995 else f"{share:.3g} times the limit"


def rewrites_text(rewrites: Mapping[str, int]) -> str:
    """What the families of rewrite rules did, "" where none applied."""
    rows = {name: FAMILIES.get(name, f"{{}} x {name}") for name in rewrites}
    return ", ".join(rows[name].format(count) for name, count in rewrites.items() if count)


def precision_lines(precision: Precision) -> list[str]:
    """What lower precision means for the model, and how near each output is to float32."""
    nodes = f"{precision.nodes} nodes store {precision.dtype}, {len(precision.kept)} stay float32"
    restored = f", {len(precision.restored)} of them because outputs were too far from it" if precision.restored else ""
    lines = [f"precision: {nodes}{restored}; ranges of {data_text(precision.data)}"]
    if precision.caches:
        lines.append(f"caches: {len(precision.caches) // 2} inputs and as many outputs are {precision.dtype}")
    return lines + [f"    {quality_text(row)}" for row in precision.quality]


def not_lowered(manifest: Manifest) -> list[Refusal]:
    """The nodes that stay float32 in a model of lower precision."""
    rows = manifest.precision.kept if manifest.precision is not None else ()
    return [Refusal(row.node, row.op_type, "", row.reason) for row in rows]


def reference_lines(reference: ReferenceQuality) -> list[str]:
    """How near each output of a quantized model is to the float32 model's, and what it misses."""
    goals = Goals(reference.min_sqnr, reference.min_cosine, reference.min_top1, reference.min_top5, reference.max_kl)
    lines = [f"quality against {reference.name}, with {data_text(reference.data)}:"]
    return lines + [f"    {'MISSED: ' if goals.missed(row) else ''}{quality_text(row)}" for row in reference.quality]


def data_text(data: Sequence[str]) -> str:
    """The inputs that ranges or quality were measured with, by their names."""
    return ", ".join(data) or "generated inputs, which say nothing about quality on real ones"


def quality_text(row: Quality) -> str:
    """One output against float32, in one line."""
    parts = ["equal to float32" if row.sqnr_db is None else f"{row.sqnr_db:.1f} dB"]
    parts += [f"cosine {row.cosine:.7f}"] if row.cosine is not None else []
    parts += [f"argmax agrees in {row.argmax:.2%} of the rows"] if row.argmax is not None else []
    parts += [f"top-5 in {row.top5:.2%}"] if row.top5 is not None else []
    parts += [f"KL {row.kl:.2e} nats"] if row.kl is not None else []
    parts += [f"{row.invalid} elements NaN or infinite on one side alone"] if row.invalid else []
    return f"{row.output}, {row.source}: {', '.join(parts)}"


def totals_text(totals: Totals) -> str:
    """Predicted bytes and kernel launches of all places together, before and after."""
    launches = f"{totals.launches_before} launches -> {totals.launches_after}"
    if not totals.bytes_before:
        return f"{launches} (bytes depend on dynamic dims)" if totals.unknown else launches
    unknown = f", and {totals.unknown} places whose size depends on dynamic dims" if totals.unknown else ""
    saved = 1 - totals.bytes_after / totals.bytes_before
    return f"{size_text(totals.bytes_before)} -> {size_text(totals.bytes_after)} (-{saved:.0%}), {launches}{unknown}"


def fixing_text(fixing: Fixing) -> str:
    """What fixing dims would save, and by which options."""
    shapes = " ".join(f"--shape {shlex.quote(name)}=SIZE" for name in fixing.dims)
    saved = f"{fixing.launches_before} launches of the whole model become {fixing.launches_after}"
    unchanging = "these dims never change" if fixing.dims[1:] else "it never changes"
    return f"optimize {shapes} --fix, if {unchanging}: {saved}"


def predicted_rows(predicted: Predicted, keys: Sequence[str] = ()) -> list[tuple[str, float, float]]:
    """A GPU's name and its predicted milliseconds before and after. keys: of the GPUs; default all."""
    names = {gpu.key: gpu.name.removeprefix("NVIDIA ") for gpu in catalogue().values()}
    rows = [row for row in predicted.times if not keys or row.gpu in keys]
    return [(names.get(row.gpu, row.gpu), row.before_ms, row.after_ms) for row in rows]


def unmeasured(manifest: Manifest) -> dict[str, str]:
    """GPU of the predicted times -> "not measured on this GPU", and of which kinds where others were; its name as
    predicted_rows has it. Without those on which thresholds of all the artifact's kinds were measured."""
    found, kinds = {}, sorted({kernel.kind for kernel in manifest.kernels})
    for gpu in catalogue().values():
        lacking = [kind for kind in kinds if not measured.gpus(kind) & set(gpu.driver_names)]
        if lacking:
            of = "" if lacking == kinds else f": {', '.join(lacking)}"
            found[gpu.name.removeprefix("NVIDIA ")] = f"not measured on this GPU{of}"
    return found


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


def status_text(report: VerificationReport) -> str:
    """How verification went, in a word or two: "passed", "passed (1 output does not count)", "not run"."""
    weak = len({row.output for row in report.weak})
    if report.status != "passed" or not weak:
        return report.status.replace("_", " ")
    return f"passed ({counted(weak, 'output')} {'does' if weak == 1 else 'do'} not count)"


def weak_lines(report: VerificationReport) -> list[str]:
    """The outputs that do not count as passed, and why, a line each; of all providers together where these agree."""
    providers: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for row in report.weak:
        providers[row.output, row.reason].append(_short(row.provider))
    return [f"output {output} ({', '.join(names)}): {reason}" for (output, reason), names in providers.items()]


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")


def size_text(count: float) -> str:
    """Bytes for people, in powers of 1000: 1.23 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def work_text(traffic: Traffic, dtype: str, archs: Sequence[str]) -> str:
    """What a convolution or a product computes, and what bounds it: "7.4 GFLOP, 562 a byte: bound by arithmetic".

    dtype: of the operands. archs: the GPU architectures that kernels were compiled for; the catalogue's GPUs of these
    count, with their peak rates. "" where there is no such work or its size is not known.
    """
    if not traffic.flops or not traffic.bytes_after:
        return ""
    a_byte = traffic.flops / traffic.bytes_after
    gpus = [gpu for gpu in catalogue().values() if not gpu.refused and gpu.arch in archs]
    rates = {gpu.key: (gpu.fp32_tflops if dtype == "float32" else gpu.fp16_tflops) * 1e12 for gpu in gpus}
    bound = [gpu for gpu in gpus if a_byte * gpu.bandwidth_gb_s * 1e9 > rates[gpu.key]]
    text = f"{traffic.flops / 1e9:.3g} GFLOP, {a_byte:.3g} a byte"
    if not gpus:
        return text
    if len(bound) in (0, len(gpus)):
        return f"{text}: bound by {'arithmetic' if bound else 'memory'}"
    return f"{text}: bound by arithmetic on {len(bound)} of {len(gpus)} GPUs of the catalogue, by memory on the others"


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
