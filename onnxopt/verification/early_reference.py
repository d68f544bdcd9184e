"""The original's session on the CPU, and its outputs of one case, made in the background of other work."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt.background import in_background
from onnxopt.graph.signature import Sizes
from onnxopt.graph.traits import Traits
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import Array, RunError, RunTimeout
from onnxopt.verification.sampling import cases, samples
from onnxopt.verification.sampling.cases import SEEDS, Case

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_CONFIG = {"session.disable_prepacking": "1"}  # a few runs do not earn back a second copy of the weights


@dataclasses.dataclass(frozen=True)
class Ran:
    """A run of the original, which took so many seconds.

    inputs: the digest of what it got (`cases.digest`), since others may be drawn later.
    """

    inputs: str
    outputs: dict[str, Array]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Begun:
    """ran: the case that was run; empty where there was none to run, or ONNX Runtime refused it.

    seconds: that the run took.
    """

    session: InferenceSession
    ran: dict[Case, Ran]
    seconds: float


class EarlyRun:
    """A session of the model file on the CPU, which runs one case. config: entries of the session's configuration.

    feeds: draws the inputs of the case; None to run none.
    """

    def __init__(
        self, model: Path, config: Mapping[str, str], case: Case, feeds: Callable[[], Mapping[str, Any]] | None
    ):
        self._stop = sessions.run_options()
        self._begun: Future[Begun] | None = in_background(lambda: self._begin(model, config, case, feeds))

    def take(self) -> Begun | None:
        """Wait for it; None from the second call on, since keeping the session would keep the weights in memory.

        RunError where ONNX Runtime refuses the model, RunTimeout where the run took longer than it may.
        """
        begun, self._begun = self._begun, None
        return None if begun is None else begun.result()

    def stop(self) -> None:
        """End a run that nobody waits for."""
        self._stop.terminate = True

    def _begin(
        self, model: Path, config: Mapping[str, str], case: Case, feeds: Callable[[], Mapping[str, Any]] | None
    ) -> Begun:
        session, ran = sessions.open_session(model, setup=sessions.SessionSetup(config)), dict[Case, Ran]()
        started = time.monotonic()
        if feeds is not None:
            try:
                drawn = feeds()
                before = time.monotonic()
                outputs = sessions.run(session, drawn, self._stop)
                ran[case] = Ran(cases.digest(drawn), outputs, time.monotonic() - before)
            except RunTimeout:
                raise  # the reference would wait as long again
            except RunError:  # the reference runs it again, and says why not
                ran = {}
        return Begun(session, ran, time.monotonic() - started)


def run_early(model: Path, traits: Traits, pinned: Sizes | None) -> EarlyRun:
    """Begin a session on the CPU for a Reference of these, and run its first case. pinned: None to run none."""
    case = None if pinned is None else Case(tuple(cases.usual(traits, pinned)[0].items()), SEEDS[0])
    if case is None or cases.why_not(traits, case):
        return EarlyRun(model, config_of(traits), Case((), SEEDS[0]), None)
    sizes, seed = dict(case.sizes), case.seed
    return EarlyRun(model, config_of(traits), case, lambda: samples.draw(traits.inputs, sizes, seed, traits.uses))


def config_of(traits: Traits) -> dict[str, str]:
    """Entries of the configuration of every session of the original's forms."""
    left_out = ";".join(traits.trapping_optimizers)
    return {**_CONFIG, **({sessions.WITHOUT_OPTIMIZERS: left_out} if left_out else {})}
