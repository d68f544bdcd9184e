"""The outputs that every tried session has to give: those of the artifact's plain graph, in exact float32."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onnxopt.errors import UsageError, VerificationError
from onnxopt.graph import signature
from onnxopt.runtime import sessions
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.sessions import Array, RunError
from onnxopt.tools import bench
from onnxopt.tools.bench_options import BenchOptions
from onnxopt.verification.compare import Limit, compare
from onnxopt.verification.sampling import samples

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_TIMES_UNTUNED = 2.0
_UNTRUSTED = 100.0  # TF32 rounds to 10 bits, where the limit for float32 leaves about 13


@dataclasses.dataclass(frozen=True)
class Verdict:
    """excess: the worst output's difference over its limit, None where outputs cannot be compared; reason: which."""

    excess: float | None
    reason: str = ""


class Oracle:
    """Inputs to time with and their right outputs, at the timed sizes with two seeds, and at another size if dynamic.

    allowed: what excess a session may have: the limit of verify, or twice what the untuned configuration has, where
    that computes float32 products in TF32. ModelError where the model does not run; UsageError where it draws random
    numbers.
    """

    def __init__(self, model: Path, provider: str, shapes: Mapping[str, tuple[int, ...]], scratch: Path):
        reference = bench.reference_of(model, None, provider, BenchOptions(shapes=shapes), scratch)
        self.model, self.traits = model, reference.traits
        if self.traits.random:
            raise UsageError(f"{model}: draws random numbers, so two configurations cannot be compared")
        self.case = next(iter(reference.outputs))
        sizes = dict(self.case.sizes)
        exact = sessions.open_session(model, provider=provider)
        seeds = (self.case.seed, self.case.seed + 1)
        self.feeds, self.other_feeds = (self._draw(sizes, seed) for seed in seeds)
        self._cases = [(feeds, sessions.run(exact, feeds)) for feeds in (self.feeds, self.other_feeds)]
        self._timed = len(self._cases)
        pinned = signature.pin(self.traits.inputs, shapes, self.traits.checked)
        for other in samples.usual_sizes(self.traits.inputs):
            other_sizes = samples.fitted(self.traits.inputs, other, pinned)
            if other_sizes == sizes:
                continue
            feeds = self._draw(other_sizes, self.case.seed)
            try:
                self._cases.append((feeds, sessions.run(exact, feeds)))
            except RunError:  # a size that the model does not take
                continue
            break
        self.allowed = 1.0

    def trust(self, untuned: Verdict) -> None:
        """Take the untuned configuration's own difference as the measure where it is above the limit.

        VerificationError where that is more than TF32 or the order of additions explain.
        """
        if untuned.excess is None or untuned.excess > _UNTRUSTED:
            raise VerificationError(
                f"{self.model}: not tuned, its outputs with the fused kernels differ from those without: "
                f"{untuned.reason}; see `onnxopt verify`"
            )
        self.allowed = max(1.0, _TIMES_UNTUNED * untuned.excess)

    def check(self, session: InferenceSession, bound: BoundRun) -> Verdict:
        """Run every case and compare: with session.run, then through the buffers that are timed.

        The bound run is repeated with other contents in the same buffers, which shows a CUDA graph that does not read
        them.
        """
        worst = Verdict(0.0)
        for feeds, expected in self._cases:
            worst = _worse(worst, self._compare(sessions.run(session, feeds), expected))
        for feeds, expected in self._cases[: self._timed][::-1]:
            bound.refill(feeds)
            bound()
            worst = _worse(worst, self._compare(bound.outputs(), expected))
        return worst

    def _compare(self, actual: Mapping[str, Array], expected: Mapping[str, Array]) -> Verdict:
        worst = Verdict(0.0)
        for name, reference in expected.items():
            decided = name.split("[")[0] in self.traits.float_decided
            difference = compare(reference, actual[name], Limit.of(self.traits.precision, float_decides=decided))
            reason = difference.reason or f"{difference.excess:.3g} times the limit"
            worst = _worse(worst, Verdict(difference.excess, f"output {name}: {reason}"))
        return worst

    def _draw(self, sizes: signature.Sizes, seed: int) -> dict[str, Array]:
        return samples.draw(self.traits.inputs, sizes, seed, self.traits.uses)


def _worse(a: Verdict, b: Verdict) -> Verdict:
    if a.excess is None or b.excess is None:
        return a if a.excess is None else b
    return a if a.excess >= b.excess else b
