"""Lowers the precision of a float32 model: measures ranges, converts, compares with float32, and puts nodes back.

Where an output of the converted model misses its goal, the nodes at fault are found by bisection; what they compute
stays float32. Where no few of them are at fault, because rounding adds up, the nodes whose results lose most stay
float32, twice as many each time.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from onnxopt.graph import precision, write
from onnxopt.graph.precision import NOTHING, Kept, Range
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.runtime.sessions import RunError
from onnxopt.verification import ranges, widening
from onnxopt.verification.bisect import bisect
from onnxopt.verification.quality import ROUNDED, Outputs, Quality, qualities, worst
from onnxopt.verification.reference import Check, Reference

# Signal to noise of an output, in dB, below which nodes go back, where none was asked for. Networks lose 45 to 70 dB
# with float16, and 18 dB more with bfloat16.
_GOAL = {ir.DataType.FLOAT16: 30.0, ir.DataType.BFLOAT16: 12.0}
_MARGIN = 0.5  # dB above what was asked for: fused kernels round elsewhere
_SECONDS = 30.0  # of looking for nodes at fault
_FEWEST_TRIALS = 8  # of bisection, which takes twice the logarithm of all nodes for a single one at fault
_MOST_RESTORED = 0.5  # share of the nodes; a model that needs more is no model of 16 bits
_FEW = 4  # nodes that may be at fault in any model
_MOST_AT_FAULT = 0.25  # share of the nodes; more are no culprits, but a sum of roundings


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
    min_sqnr: float | None = None,
) -> Narrowed:
    """Lower the precision of a normalized float32 model, which stays as it is, into a file in `folder`.

    reference: the original's outputs, for whose inputs the ranges are measured. keep_float: a regular expression of the
    names of nodes that stay float32. min_sqnr: dB that were asked for; where half of the nodes in float32 do not reach
    them, the result is the first conversion's. RunError where ONNX Runtime does not run the model with its values as
    outputs.
    """
    feeds = [reference.feeds(case) for case in reference.outputs]
    measured = ranges.measure(model, feeds, dtype, folder)
    goal = _GOAL[dtype] if min_sqnr is None else min_sqnr + _MARGIN
    trials = _Trials(model, reference, measured, dtype, folder, keep_float, goal)
    first = trials.run(())
    if not first.narrow or trials.reaches(first.quality):
        return first
    return _repaired(trials, first)


def _repaired(trials: _Trials, first: Narrowed) -> Narrowed:
    """The model with the fewest nodes in float32 that reaches the goal, as far as there is time to find it."""
    names, best = trials.narrow_nodes(), first
    culprits = trials.culprits(names)
    if len(culprits) > max(_FEW, _MOST_AT_FAULT * len(names)):
        culprits = ()
    worst_first = sorted(names, key=lambda name: -trials.loss(name))
    count = 0
    while count <= _MOST_RESTORED * len(names) and trials.in_time():
        if restored := tuple(dict.fromkeys((*culprits, *worst_first[:count]))):
            found = trials.run(restored)
            few = found.narrow < (1.0 - _MOST_RESTORED) * first.narrow
            if not few and (trials.reaches(found.quality) or (culprits and not count)):
                trials.discard(best)
                best = found
            else:
                trials.discard(found)
            if few or trials.reaches(found.quality):
                break
        count = 2 * count or 1
    return best


class _OutOfTime(Exception):
    pass


class _Trials:
    """Conversions of one model with different nodes kept in float32."""

    def __init__(
        self,
        model: ir.Model,
        reference: Reference,
        measured: Mapping[str, Range],
        dtype: ir.DataType,
        folder: Path,
        keep_float: str | None,
        goal: float,
    ) -> None:
        self._model, self._reference, self._measured, self._dtype = model, reference, measured, dtype
        self._folder, self._keep_float, self._goal = folder, keep_float, goal
        self._deadline = 0.0  # set by the first question
        self._losses: dict[str, float] = {}  # by node that the first conversion makes 16 bit

    def run(self, restored: Collection[str]) -> Narrowed:
        """Convert with these nodes kept in float32, and compare."""
        model = self._model.clone()
        choice = precision.choose(model, self._measured, self._dtype, keep_float=self._keep_float, kept=restored)
        if not self._losses:
            self._losses = {n.name or "": self._loss(n) for n in model.graph if n in choice.narrow}
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        precision.convert(model, choice, Joiner(folder).kept)
        write.save(model, folder)
        for weight in folder.glob("*.weight"):
            weight.unlink()  # copied into the model's own files
        quality = self._quality(folder / write.MODEL_FILE) if choice.narrow else ()
        return Narrowed(folder, len(choice.narrow), choice.kept, tuple(restored), quality)

    def discard(self, found: Narrowed) -> None:
        """Remove the files of a conversion, which are as large as the model."""
        shutil.rmtree(found.folder, ignore_errors=True)

    def in_time(self) -> bool:
        """Whether there is time left to look for better conversions than the first."""
        self._deadline = self._deadline or time.monotonic() + _SECONDS
        return time.monotonic() < self._deadline

    def reaches(self, quality: Sequence[Quality]) -> bool:
        return all(row.reaches(self._goal) for row in quality)

    def narrow_nodes(self) -> list[str]:
        """The names of the nodes that the first conversion makes 16 bit."""
        return list(self._losses)

    def loss(self, node: str) -> float:
        """What rounding costs the results of a node."""
        return self._losses[node]

    def _loss(self, node: ir.Node) -> float:
        return max((self._measured.get(v.name or "", NOTHING).loss for v in node.outputs), default=0.0)

    def culprits(self, names: Sequence[str]) -> tuple[str, ...]:
        """The nodes that must not become 16 bit, () where there is no time to find them."""
        trials = itertools.count(1)
        most = _FEWEST_TRIALS + 3 * len(names).bit_length()

        def failure_of(enabled: Sequence[str]) -> Check | None:
            if not self.in_time() or next(trials) > most:
                raise _OutOfTime
            taken = set(enabled)
            found = self.run([name for name in names if name not in taken])
            self.discard(found)
            row = worst(found.quality)
            if row is None or self.reaches(found.quality):
                return None
            return Check(row.provider, False, "", row.output, None, error="too far from float32")

        try:
            return tuple(bisect(names, failure_of, str))
        except _OutOfTime:
            return ()

    def _quality(self, model: Path) -> tuple[Quality, ...]:
        """The model in float32 with every stored value rounded: the CPU rounds hardly any value of float16."""
        pairs: list[tuple[Outputs, Outputs]] = []
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            wide = widening.widen(model, Path(folder), rounded=True)
            for case, actual in self._reference.outputs_of(wide, None, optimize=False):
                if isinstance(actual, RunError):
                    raise actual
                pairs.append((self._reference.outputs[case], actual))
        return qualities(ROUNDED, False, pairs)
