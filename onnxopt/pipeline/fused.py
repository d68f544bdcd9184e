"""From the rewritten model to kernels: regions, their functions and entry points, and one fatbin.

A kind of kernels that raises an error is left out, and named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from onnxopt import versions
from onnxopt.artifact.manifest import LeftOut
from onnxopt.codegen import compiler_report, generate
from onnxopt.codegen.nvrtc import Compiled, compiled
from onnxopt.errors import StepError, describe
from onnxopt.fusion import entry_points, fuse, near_norms, outline, work
from onnxopt.fusion.lower import lower
from onnxopt.fusion.region import FusionPlan, Kernel, Kind
from onnxopt.fusion.work import Work
from onnxopt.graph import normalize
from onnxopt.graph.passes.contrib.restore import restore
from onnxopt.graph.signature import Sizes
from onnxopt.kinds import KINDS
from onnxopt.phases import Phases
from onnxopt.pipeline.machine_code import MachineCode
from onnxopt.pipeline.reused import Reused
from onnxopt.verification.bisect import bisect_in_order

_Spilled = Collection[frozenset[str]]  # names of the nodes of regions that need more registers than a GPU has


class _Planned(NamedTuple):
    """own: kernels with the entry points that the rules choose. kernels: with those that `tune` tries too.

    after: the work of all kernels that run the model, where it is known; launches: their number. text: CUDA source.
    """

    model: ir.Model
    plan: FusionPlan
    own: tuple[Kernel, ...]
    kernels: tuple[Kernel, ...]
    after: tuple[Work, ...] | None
    launches: int
    text: str


class Fused(NamedTuple):
    """own: kernels with the entry points that the rules choose. kernels: with those that `tune` tries too, and `code`.

    after: the work of all kernels that run the model, where it is known; launches: their number. left_out: kinds of
    kernels that failed. split: the nodes of regions that were split, as their kernels spilled.
    """

    model: ir.Model
    plan: FusionPlan
    own: tuple[Kernel, ...]
    kernels: tuple[Kernel, ...]
    code: MachineCode
    after: tuple[Work, ...] | None
    launches: int
    left_out: tuple[LeftOut, ...]
    split: frozenset[frozenset[str]]

    def spilling(self, made: Compiled | None) -> frozenset[frozenset[str]]:
        """The regions that spill registers and were not split. Alternatives may spill, as `tune` measures them."""
        if made is None or not made.usage:
            return frozenset()
        return frozenset(compiler_report.spilling(self.own, made.usage)) - self.split


@dataclasses.dataclass(frozen=True)
class Fuser:
    """Fuses models. archs: what to compile for. usual: sizes that the user gave. typical: of all dims, to predict at.

    alternatives: whether to compile other launch shapes of each kernel too. cache: folder of compiled kernels. reused:
    whose images are taken instead.
    """

    archs: Sequence[str]
    usual: Sizes
    typical: Sizes
    alternatives: bool
    cache: Path | None
    phases: Phases
    reused: Reused | None = None

    def fused(self, rewritten: ir.Model, spilled: frozenset[frozenset[str]] = frozenset()) -> Fused:
        """The model with calls of functions, and their kernels, which are being compiled; `rewritten` stays as it is.

        spilled: regions to split.
        """
        left_out = dict[str, LeftOut]()
        if self.reused is not None:
            spilled |= self.reused.split
        try:
            planned = self._planned(rewritten.clone(), KINDS, spilled)
        except StepError as error:
            if isinstance(error.__cause__, MemoryError):
                raise
            failing = self._failing(rewritten, KINDS, spilled)
            if not failing:
                raise
            left_out = {name: _failed(name, said) for name, said in failing.items()}
            planned = self._planned(rewritten.clone(), [k for k in KINDS if k.name not in left_out], spilled)
        return Fused(
            planned.model,
            planned.plan,
            planned.own,
            planned.kernels,
            self._code(planned),
            planned.after,
            planned.launches,
            tuple(left_out.values()),
            spilled,
        )

    def launches(self, rewritten: ir.Model) -> int:
        """The launches of the model once it is fused; `rewritten` stays as it is."""
        plan = lower(fuse.fuse(rewritten, KINDS, cuda=bool(self.archs), usual=self.usual), rewritten.opset_imports)
        return work.launches(rewritten, plan.regions, plan.shapes)

    def _planned(self, model: ir.Model, kinds: Sequence[Kind], spilled: _Spilled) -> _Planned:
        """Replace the regions of the model by calls of functions, in place, and write their kernels."""
        phases, cuda = self.phases, bool(self.archs)
        # Regions refer to nodes of the model: nothing may change the model between fuse and replace.
        with phases("fuse"):
            plan = fuse.fuse(model, kinds, spilled, cuda=cuda, usual=self.usual)
        with phases("lower"):
            plan = near_norms.with_refusals(lower(plan, model.opset_imports), model)
            after = work.model_work(model, self.typical, plan.regions)
            launches = work.launches(model, plan.regions, plan.shapes)
        with phases("outline"):
            functions = outline.functions(plan, model.opset_imports)
        with phases("entry_points"):
            own = entry_points.shared(entry_points.choose(functions, model.opset_imports, plan.shapes))
            kernels = entry_points.shared(map(entry_points.with_alternatives, own)) if self.alternatives else own
        with phases("outline"):
            outline.replace(model, functions)
            restore(model)
            model.metadata_props[normalize.MARK] = versions.onnxopt()
        with phases("generate"):
            return _Planned(model, plan, own, kernels, after, launches, generate.generate(kernels))

    def _failing(self, rewritten: ir.Model, kinds: Sequence[Kind], spilled: _Spilled) -> dict[str, str]:
        """The kinds that raise an error, each with what it says; none where fusing fails without any."""

        def error_of(names: Sequence[str]) -> str | None:
            try:
                self._planned(rewritten.clone(), [kind for kind in kinds if kind.name in names], spilled)
            except StepError as error:
                return describe(error)
            return None

        return bisect_in_order([kind.name for kind in kinds], error_of) if error_of(()) is None else {}

    def _code(self, planned: _Planned) -> MachineCode:
        """The machine code of the kernels, which is being compiled unless an artifact has it."""
        if self.reused is not None:
            fatbin = self.reused.fatbin(planned.kernels, planned.text)
            return MachineCode(planned.text, None if fatbin is None else lambda *_: Compiled(fatbin, {}))
        if not self.archs or not any(kernel.variants for kernel in planned.kernels):
            return MachineCode(planned.text, None)
        return MachineCode(planned.text, lambda *beside: compiled(planned.text, self.archs, self.cache, *beside))


def _failed(kind: str, error: str) -> LeftOut:
    return LeftOut(name=f"kind:{kind}", ops=(), reason=f"it failed: {error}", max_abs=None, excess=None)
