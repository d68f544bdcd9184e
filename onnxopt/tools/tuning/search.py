"""The search: one option after the other, each value against the best so far; what is faster and right stays."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt.costs.tuning import numbers
from onnxopt.runtime import configuration as configurations
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.sessions import RunError
from onnxopt.tools.tuning import kernels, rounds
from onnxopt.tools.tuning.kernels import MeasuredKernels
from onnxopt.tools.tuning.knobs import AnyKnob
from onnxopt.tools.tuning.oracle import Oracle, Verdict
from onnxopt.tools.tuning.rounds import Comparison
from onnxopt.tools.tuning.state import State, Trial

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

SECTIONS = ("provider_options", "session_options", "session_config", kernels.SECTION)
_PASSES = 3  # an option may pay only after another was changed
_MIN_NOISE = numbers().min_gain
_CONFIRMING_ROUNDS = 15

# progress(done, total, text): after each trial, and with a text when something else begins.
Progress = Callable[[int, int, str], None]


@dataclasses.dataclass(frozen=True)
class Target:
    """What is tuned: the model with its library on a provider. graph: through a CUDA graph.

    kernels: where the library comes from, with or without choices that it measured; None where it measures none.
    """

    folder: Path
    model: Path
    library: Path | None
    provider: str
    graph: bool
    kernels: MeasuredKernels | None = None

    def open(self, configuration: dict[str, Any], *, graph: bool | None = None) -> InferenceSession:
        """RunError where ORT refuses."""
        wanted = self.graph if graph is None else graph
        library = self.kernels.library(configuration) if self.kernels else self.library
        return configurations.open_session(self.model, library, configuration, self.folder, cuda_graph=wanted)


class OutOfTime(Exception):
    """The budget is spent. Never leaves tune."""


class Search:
    """best: the fastest configuration that is right, so far. taken: the trials that led there from `start`.

    deadline: no trial begins after it (time.monotonic). seconds: for one comparison, at most.
    """

    def __init__(
        self,
        target: Target,
        oracle: Oracle,
        state: State,
        start: dict[str, Any],
        knobs: Sequence[AnyKnob],
        deadline: float,
        progress: Progress,
        seconds: float = rounds.MAX_SECONDS,
    ):
        self.target, self.oracle, self.state, self.start, self.knobs = target, oracle, state, start, list(knobs)
        self.best, self.chosen = start, list[tuple[AnyKnob, Trial]]()
        self._remaining = set[tuple[Any, ...]]()  # values that something was faster than: there is no way back
        self._deadline, self._progress, self._seconds = deadline, progress, seconds
        self._bound: BoundRun | None = None

    def add_first(self, knobs: Sequence[AnyKnob]) -> None:
        """Knobs to try before the others."""
        self.knobs[:0] = knobs

    @property
    def _total(self) -> int:
        return sum(len(k.values) - 1 for k in self.knobs)

    def run(self) -> bool:
        """Try everything; True if it was all tried, False if the time was up."""
        try:
            for number in range(_PASSES):
                if not self._pass(number):
                    return True
        except OutOfTime:
            return False
        finally:
            self._bound = None
            gc.collect()
        return True

    def _pass(self, number: int) -> bool:
        """Every value of every knob once; True if one was taken."""
        before, done = len(self.chosen), 0
        for knob in self.knobs:
            for value in knob.values:
                settings = digest(self.best)
                if value == knob.current(self.best) or self._values(knob.apply(self.best, value)) in self._remaining:
                    continue
                trial = self.state.earlier(knob.name, value, settings) or self._try(knob, value, settings)
                done = min(done + 1, self._total)
                if trial.outcome == "faster":
                    self.chosen.append((knob, trial))
                    self._remaining.add(self._values(self.best))
                    self.best = knob.apply(self.best, value)
                again = f" (pass {number + 1})" if number else ""
                self._progress(done, self._total, f"{knob.name}={value}: {describe(trial)}{again}")
        return len(self.chosen) > before

    def _values(self, configuration: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(knob.current(configuration) for knob in self.knobs)

    def _try(self, knob: AnyKnob, value: Any, settings: str) -> Trial:
        if time.monotonic() > self._deadline:
            raise OutOfTime
        started = time.monotonic()
        self.state.begin(knob.name, value, settings)
        try:
            trial = self._measure(knob, value, settings)
        except KeyboardInterrupt:
            self.state.give_up(knob.name, value, settings)
            raise
        self.state.seconds += time.monotonic() - started
        self.state.add(trial)
        return trial

    def _measure(self, knob: AnyKnob, value: Any, settings: str) -> Trial:
        incumbent = self._incumbent()
        noise = self._noise(incumbent)
        try:
            session = self.target.open(knob.apply(self.best, value))
            candidate = BoundRun(session, self.oracle.feeds, self.target.provider)
            verdict = self.oracle.check(session, candidate)
            if verdict.excess is None or verdict.excess > self.oracle.allowed:
                return Trial(knob.name, value, settings, "wrong", verdict.reason)
            comparison = rounds.compare(incumbent, candidate, noise=noise, seconds=self._seconds)
        except RunError as error:
            return Trial(knob.name, value, settings, "failed", str(error))
        outcome = "faster" if comparison.faster(noise) else "not faster"
        if outcome == "faster":
            self._bound = candidate
        return Trial(
            knob.name,
            value,
            settings,
            outcome,
            ratio=round(comparison.ratio, 4),
            error=round(comparison.error, 4),
            ms=round(comparison.second_ms, 4),
        )

    def _incumbent(self) -> BoundRun:
        if self._bound is None:
            self._bound = BoundRun(self.target.open(self.best), self.oracle.feeds, self.target.provider)
        return self._bound

    def _noise(self, incumbent: BoundRun) -> float:
        """How far two sessions of one configuration are apart on this machine, measured once."""
        if self.state.noise is None:
            self._progress(0, self._total, "measuring how much this machine's timings scatter")
            twin = BoundRun(self.target.open(self.best), self.oracle.feeds, self.target.provider)
            same = rounds.compare(incumbent, twin, seconds=self._seconds)
            self.state.noise = round(max(_MIN_NOISE, abs(same.ratio - 1.0) + same.error), 4)
            self.state.write()
        return self.state.noise


def verdict_on(target: Target, oracle: Oracle, configuration: dict[str, Any]) -> Verdict:
    """What a configuration computes. RunError where it does not run."""
    session = target.open(configuration)
    return oracle.check(session, BoundRun(session, oracle.feeds, target.provider))


def confirm(
    target: Target, oracle: Oracle, before: dict[str, Any], after: dict[str, Any], *, graph: bool, seconds: float
) -> Comparison:
    """Two configurations in fresh sessions, all rounds that `seconds` allow."""
    runs = [
        BoundRun(target.open(configuration, graph=graph), oracle.feeds, target.provider)
        for configuration in (before, after)
    ]
    return rounds.compare(runs[0], runs[1], limit=_CONFIRMING_ROUNDS, seconds=seconds)


def digest(configuration: dict[str, Any]) -> str:
    """A short hash of everything that a configuration passes to ONNX Runtime."""
    text = json.dumps({section: configuration[section] for section in SECTIONS}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(trial: Trial) -> str:
    """ "1.08 times as fast", or why not."""
    if trial.ratio is None:
        return f"{trial.outcome}: {trial.reason}"
    return f"{trial.ratio:.3f} times as fast{'' if trial.outcome == 'faster' else ', rejected'}"
