"""Lowers the precision of a float32 model: measures ranges, converts, compares with float32, and puts nodes back.

Where an output of the converted model misses its goal, the nodes at fault are found by bisection; what they compute
stays float32. Where no few of them are at fault, because rounding adds up, the nodes whose results lose most stay
float32, twice as many each time.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from onnxopt.graph import precision, write
from onnxopt.graph.precision import NOTHING, Kept, Range, bodies
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.signature import Sizes
from onnxopt.runtime import sessions
from onnxopt.verification.lowering import ranges, restoring
from onnxopt.verification.lowering.goals import ROUNDED, Goals, Quality
from onnxopt.verification.lowering.quality import Outputs, qualities
from onnxopt.verification.reference import Reference
from onnxopt.verification.rounding import widening
from onnxopt.verification.sampling.extremes import extremes

# Signal to noise of an output, in dB, below which nodes go back, where none was asked for. Networks lose 45 to 70 dB
# with float16, and 18 dB more with bfloat16.
_GOAL = {ir.DataType.FLOAT16: 30.0, ir.DataType.BFLOAT16: 12.0}
_SECONDS = 15.0  # of each search for nodes that go back: some 15 trials of a detector with 650 nodes of 16 bits
_MARGIN = 0.5  # dB above what was asked for: fused kernels round elsewhere


@dataclasses.dataclass(frozen=True)
class Narrowed:
    """A model of lower precision. folder: where its file model.onnx is. narrow: how many nodes became 16 bit.

    kept: the nodes that stay float32. restored: names of those that stay float32 because outputs were wrong
    otherwise. quality: of the model's outputs, computed in float32 with every stored value rounded (provider ROUNDED).
    """

    folder: Path
    narrow: int
    kept: tuple[Kept, ...]
    restored: tuple[str, ...]
    quality: tuple[Quality, ...]


def narrow(
    model: ir.Model,
    reference: Reference,
    dtype: ir.DataType,
    folder: Path,
    *,
    keep_float: str | None = None,
    goals: Goals | None = None,
    pinned: Sizes | None = None,
) -> Narrowed:
    """Lower the precision of a normalized float32 model into a file in `folder`.

    The model stays as it is, but for dtypes that ONNX Runtime alone knows, which are noted in it.

    reference: the original's outputs, for whose inputs the ranges are measured. keep_float: a regular expression of the
    names of nodes that stay float32. goals: that were asked for; where half of the nodes in float32 do not reach them,
    the result is the first conversion's. pinned: sizes that the user gave. RunError where ONNX Runtime does not run the
    model with its values as outputs.
    """
    ranges.complete_dtypes(model, folder)
    feeds = [reference.feeds(case) for case in reference.outputs]
    measured = ranges.measure(model, feeds, dtype, folder, extremes(model, reference, pinned or {}))
    asked = goals or Goals()
    min_sqnr = _GOAL[dtype] if asked.min_sqnr is None else asked.min_sqnr + _MARGIN
    trials = _Trials(model, reference, measured, dtype, folder, keep_float)
    first = trials.run(())
    goals = dataclasses.replace(asked, min_sqnr=min_sqnr)
    chosen = restoring.restored(trials, first, trials.narrow_nodes(), trials.loss, goals, seconds=_SECONDS)
    return Narrowed(trials.write(chosen), chosen.narrow, chosen.kept, chosen.restored, chosen.quality)


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A model of lower precision in memory. The rest is as in Narrowed."""

    model: ir.Model
    narrow: int
    kept: tuple[Kept, ...]
    restored: tuple[str, ...]
    quality: tuple[Quality, ...]


class _Trials:
    """Conversions of one model with different nodes kept in float32. What they share is written once."""

    def __init__(
        self,
        model: ir.Model,
        reference: Reference,
        measured: Mapping[str, Range],
        dtype: ir.DataType,
        folder: Path,
        keep_float: str | None,
    ) -> None:
        self._model, self._reference, self._measured, self._dtype = model, reference, measured, dtype
        self._folder, self._keep_float = folder, keep_float
        self._losses: dict[str, float] = {}  # by node that the first conversion makes 16 bit
        self._cases = list(reference.outputs)  # what missed goals last comes first
        self._shared = Path(tempfile.mkdtemp(dir=folder))
        self._constants = precision.Constants(dtype, Joiner(self._shared).constant)
        self._weights = widening.Weights(self._shared, widening.IN_FLOAT32)

    def run(self, restored: Collection[str], until: Goals | None = None) -> _Trial:
        """Convert with these nodes kept in float32, and compare. until: as for `restoring.Trials`."""
        model = self._model.clone()
        choice = precision.choose(
            model,
            self._measured,
            self._dtype,
            keep_float=self._keep_float,
            restored=restored,
            constants=self._constants,
        )
        if not self._losses:
            self._losses = {n.name or "": self._loss(n) for n in bodies.nodes_of(model.graph) if n in choice.narrow}
        precision.convert(model, choice, self._constants)
        quality = self._quality(model, until) if choice.narrow else ()
        return _Trial(model, len(choice.narrow), choice.kept, tuple(restored), quality)

    def discard(self, trial: _Trial) -> None:
        """Does nothing: a trial has no files of its own."""

    def write(self, trial: _Trial) -> Path:
        """Write the model into a new folder, which is returned, and remove what trials share."""
        for graph in trial.model.graphs():
            for value in graph.initializers.values():
                if value.const_value is not None:
                    value.const_value.name = value.name  # later trials may have named it
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        write.save(trial.model, folder)
        shutil.rmtree(self._shared)
        return folder

    def narrow_nodes(self) -> list[str]:
        """The names of the nodes that the first conversion makes 16 bit."""
        return list(self._losses)

    def loss(self, node: str) -> float:
        """What rounding costs the results of a node."""
        return self._losses[node]

    def _loss(self, node: ir.Node) -> float:
        return max((self._measured.get(v.name or "", NOTHING).loss for v in node.outputs), default=0.0)

    def _quality(self, model: ir.Model, until: Goals | None) -> tuple[Quality, ...]:
        """The model in float32 with every stored value rounded: the CPU rounds hardly any value of float16."""
        path = widening.write_widened(model.clone(), self._weights, rounded=True)
        session = self._reference.open(path, optimize=False)

        cases = iter(tuple(self._cases))

        def pairs() -> Iterator[tuple[Outputs, Outputs]]:
            for case in cases:
                feeds = self._reference.feeds(case)
                wide = {name: a if isinstance(a, list) else widening.widened(a) for name, a in feeds.items()}
                yield self._reference.outputs[case], sessions.run(session, wide)

        quality = qualities(ROUNDED, False, pairs(), until)
        if until is not None and not until.reached_by(quality):
            self._cases.insert(0, self._cases.pop(-len(list(cases)) - 1))
        return quality
