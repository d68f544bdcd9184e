"""Lower precision of an artifact: what was asked for, the converted model, and how near the result is to float32."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnxopt.artifact.folder import temporary_files
from onnxopt.artifact.manifest import Precision
from onnxopt.errors import NotVerifiedError, UsageError
from onnxopt.graph import read, rewrite, signature, write
from onnxopt.graph.branches import branches_of
from onnxopt.graph.passes.opset import READABLE, TARGET
from onnxopt.graph.precision import bodies, ranges
from onnxopt.graph.precision.caches import find as find_caches
from onnxopt.graph.precision.fit import HEADROOM, UNMEASURED
from onnxopt.graph.precision.masks import separate_numbers
from onnxopt.option_fields import not_one_of
from onnxopt.pipeline.build import Baseline, Build
from onnxopt.pipeline.options import DTYPES, Dtype, Options
from onnxopt.program.dtypes import to_ir
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.lowering import narrowing
from onnxopt.verification.lowering.goals import Goals
from onnxopt.verification.lowering.narrowing import Narrowed
from onnxopt.verification.lowering.quality import check_inputs, qualities_of, refuse_missed
from onnxopt.verification.reference import Reference
from onnxopt.verification.refusals import original_runs
from onnxopt.verification.rounding.widening import NotWidened
from onnxopt.verification.sampling.extremes import refused_empty
from onnxopt.verification.sampling.user_data import UserData

_UNMEASURED = "ranges cannot be measured"


@dataclasses.dataclass(frozen=True)
class Asked:
    """dtype: of DTYPES. goals: that every output has to reach. keep_float: a regular expression of node names.

    caches: whether inputs and outputs that are caches get the dtype too. verify: whether the result is verified.
    """

    dtype: Dtype
    goals: Goals
    keep_float: str | None = None
    caches: bool = False
    verify: bool = True


def asked(options: Options) -> Asked | None:
    """What was asked for; None for the model's own precision. UsageError for options that do not fit together."""
    if options.precision is None:
        for name in ("calibrate", "keep_float", "caches"):
            if getattr(options, name):
                raise UsageError(f"{name} is about a lower precision, which was not asked for; give precision too")
        return None
    chosen = next((name for name in DTYPES if name == options.precision), None)
    if chosen is None:
        raise UsageError(f"precision {not_one_of(options.precision, DTYPES)}")
    if options.keep_float is not None:
        try:
            re.compile(options.keep_float)
        except re.error as error:
            raise UsageError(f"keep_float {options.keep_float!r} is no regular expression: {error}") from None
    goals = options.goals if options.reference is None else Goals()
    return Asked(chosen, goals, options.keep_float, options.caches, options.verify)


def lowest_opset(want: Asked | None) -> int:
    """The opset that newer models may be lowered to. Convolutions of bfloat16 begin with opset 22."""
    return READABLE if want is not None and want.dtype == "bfloat16" else TARGET


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A converted model, and the float32 original's outputs to hold the artifact against.

    source: the converted model; None where no value can be stored in 16 bits. notes: what stays float32 unasked.
    never_empty: of its traits, as the original refuses it.
    """

    source: read.Source | None
    notes: tuple[str, ...]
    want: Asked
    narrowed: Narrowed
    originals: Sequence[Reference]
    data: Sequence[UserData]
    caches: Sequence[str]
    never_empty: frozenset[frozenset[str]] = frozenset()

    def precision(self, build: Build, scratch: Path) -> Precision:
        """The manifest's record. DisagreementError where an output is farther from float32 than was asked for."""
        quality, goals = self.narrowed.quality, self.want.goals
        if self.want.verify and quality:
            with build.loadable_library(scratch) as library:
                on_cpu = any(kernel.cpu for kernel in build.kernels)
                quality = (*quality, *qualities_of(self.originals, build.model_file, library, on_cpu=on_cpu))
        if goals.stated:
            refuse_missed(quality, goals, "keep nodes in float32 with --keep-float, or ask for less")
        return Precision(
            dtype=self.want.dtype,
            data=tuple(item.name for item in self.data),
            keep_float=self.want.keep_float,
            **dataclasses.asdict(goals),
            nodes=self.narrowed.narrow,
            kept=self.narrowed.kept,
            restored=self.narrowed.restored,
            quality=quality,
            caches=tuple(self.caches),
        )


def lower(original: Baseline, normalized: ir.Model, want: Asked, folder: Path, caches: Sequence[str] = ()) -> Lowered:
    """Convert a model into a file in `folder`, which has to outlive the result.

    original: with inputs to measure ranges with, else they are drawn. normalized: its normalized form, which stays as
    it is. caches: names of those that have the dtype in the original's source already. UsageError where the model is
    not of float32, or a cache does not fit. ModelError where ONNX Runtime does not open it, NotVerifiedError where it
    does not run it here, so that no range can be measured.
    """
    source, traits = original.source, original.traits
    if traits.precision != "float32":
        raise UsageError(f"{source}: is a {traits.precision} model; lower precision is for float32 models")
    advice = "Give inputs that the model takes with --calibrate"
    unchecked = "without a lower precision, --no-verify optimizes it unchecked"
    try:
        with original_runs(source, _UNMEASURED, advice, unchecked), temporary_files():
            originals = original.references(traits, folder)
            check_inputs(originals[0])
            _check_caches(originals[0], caches, to_ir(want.dtype))
            folded = normalized.clone()
            rewrite.prepare_float32(folded)
            separate_numbers(folded)
            goals = want.goals if want.verify else None
            pinned = signature.pin(traits.inputs, original.shapes, traits.checked)
            narrowed = narrowing.narrow(
                folded, originals[0], to_ir(want.dtype), folder, keep_float=want.keep_float, goals=goals, pinned=pinned
            )
            never_empty = refused_empty(originals[0])
    except (RunError, NotWidened) as error:
        raise NotVerifiedError(f"{source}: {_UNMEASURED}: {error}. {advice}") from error
    converted = None
    if narrowed.narrow:
        read_back = read.load(narrowed.folder / write.MODEL_FILE)
        converted = dataclasses.replace(read_back, title=f"{source} in {want.dtype}", converted=True)
    notes = (*_notes_of_bodies(folded), *_notes_of_branches(folded, narrowed), *_notes_of_caches(folded, want))
    return Lowered(converted, notes, want, narrowed, originals, original.data, caches, never_empty)


def _check_caches(original: Reference, caches: Sequence[str], dtype: ir.DataType) -> None:
    """UsageError where a cache reaches numbers that the dtype does not hold with the headroom of other values."""
    for case, outputs in original.outputs.items():
        values = {**original.feeds(case), **outputs}
        for cache in caches:
            greatest = float(np.abs(values[cache].astype(np.float64)).max(initial=0.0))
            if not greatest * HEADROOM <= ranges.largest(dtype):
                name = dtype.name.lower()
                reached = f"reaches {greatest:.3g}, {HEADROOM:g} times of which {name} does not hold"
                raise UsageError(f"the cache {cache} {reached}; leave out caches")


def _notes_of_bodies(model: ir.Model) -> tuple[str, ...]:
    """What a user should know of the float32 nodes in graphs of other operators than If, Loop and Scan."""
    chosen = list(bodies.nodes_of(model.graph))
    owners = {n.op_type for n in chosen if bodies.runs_graphs(n) and not bodies.graphs_of(n)}
    inner = sum(map(_computes_float, model.graph.all_nodes())) - sum(map(_computes_float, chosen))
    if not inner:
        return ()
    total = inner + sum(map(_computes_float, chosen))
    where = ", ".join(sorted(owners))
    return (
        f"precision: {inner} of {total} nodes that compute floats are in bodies of {where} and stay float32, with "
        "their weights; export the step that you serve as a model of its own to lower it",
    )


def _notes_of_branches(model: ir.Model, narrowed: Narrowed) -> tuple[str, ...]:
    """Which branches of If stay float32 because no run took them."""
    kept = {row.node: row.reason for row in narrowed.kept}
    notes = []
    for node in bodies.nodes_of(model.graph):
        for branch in branches_of(node):
            reasons = [kept.get(str(n.name)) for n in bodies.nodes_of(branch) if _computes_float(n)]
            unmeasured = sum(reason is not None and reason.endswith(UNMEASURED) for reason in reasons)
            if unmeasured and None not in reasons:
                name = next(name for name, a in node.attributes.items() if a.value is branch)
                stay = f"{unmeasured} nodes of the {name} of `{node.name}` stay float32"
                notes.append(f"precision: {stay}, because no input took it; give inputs that do with --calibrate")
    return tuple(notes)


def _notes_of_caches(model: ir.Model, want: Asked) -> tuple[str, ...]:
    """What caches of float32 cost, where they could be of 16 bits."""
    names = () if want.caches else find_caches(model)
    if not names:
        return ()
    inputs = sum(value.name in names for value in model.graph.inputs)
    counts = f"{inputs} inputs and {len(names) - inputs} outputs"
    return (
        f"precision: {counts} are a decoder's cache and stay float32, with a Cast each in every step; --caches makes "
        f"them {want.dtype}, which also halves their memory",
    )


def _computes_float(node: ir.Node) -> bool:
    return any(value.dtype == ir.DataType.FLOAT for value in node.outputs)
