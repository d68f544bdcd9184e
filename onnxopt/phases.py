"""Phases: how work that takes long says what it is doing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from onnxopt.errors import ModelError, step
from onnxopt.printable import one_line

# progress(phase, detail, done, total): called when a phase starts, and as one advances that counts its steps (compile,
# verify); done and total are 0 where nothing is counted, detail may name what is worked on.
Progress = Callable[[str, str, int, int], None]


def silent(phase: str, detail: str, done: int, total: int) -> None:
    """For callers that do not ask."""


_TITLES = {
    "load": "Reading the model",
    "normalize": "Normalizing",
    "precision": "Measuring ranges",
    "rewrite": "Recognising attention",
    "fuse": "Finding chains",
    "outline": "Outlining functions",
    "generate": "Generating CUDA source",
    "compile": "Compiling kernels",
    "quantize": "Quantizing",
    "package": "Writing the artifact",
    "original": "Running the original",
    "verify": "Verifying",
    "open": "Measuring memory",
    "profile": "Writing a trace",
    "time": "Timing",
}
_IN_A_LOG = frozenset({"precision", "compile", "quantize", "original", "verify", "time"})  # that may take long
_LOG_AFTER = 1.0  # seconds; what takes less, as an error in the input, needs no progress
_LOG_SECONDS = 5.0  # between two lines of one phase in a log
_ESTIMATE_SECONDS = 1.0  # after which the steps done say how long the others take


class Steps:
    """What to say of each call of a progress callback. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._phase, self._began = ("", ""), 0.0
        self._started, self._said = clock(), 0.0
        self._announced: set[tuple[str, str]] = set()

    def text(self, phase: str, detail: str, done: int, total: int) -> str:
        """One line: the phase, what it works on, the count of its steps and the time left."""
        now = self._clock()
        if (phase, detail) != self._phase or not done:
            self._phase, self._began = (phase, detail), now
        parts = [_TITLES.get(phase, phase), *([one_line(detail)] if detail else [])]
        if total:
            passed, remaining = now - self._began, ""
            if done and done < total and passed >= _ESTIMATE_SECONDS:
                remaining = f", about {_duration(passed / done * (total - done))} left"
            parts.append(f"{done} of {total}{remaining}")
        return ": ".join(parts)

    def in_log(self, phase: str, detail: str, done: int, total: int) -> str:
        """The line for a log, "" where an earlier one is enough."""
        text, now = self.text(phase, detail, done, total), self._clock()
        new = (phase, detail) not in self._announced  # phases may come in turn, as those of several trials
        if phase not in _IN_A_LOG or now - self._started < _LOG_AFTER:
            return ""
        if not new and (not total or now - self._said < _LOG_SECONDS):
            return ""
        self._said = now
        self._announced.add((phase, detail))
        return text


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@contextlib.contextmanager
def in_notebook() -> Iterator[Progress | None]:
    """A callback that keeps a line below a notebook's cell up to date, and empties it at the end; None elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if not hasattr(shell, "kernel"):  # IPython in a terminal has none
        yield None
        return
    from IPython.display import display

    steps, line = Steps(), display({"text/plain": ""}, raw=True, display_id=True)

    def show(text: str) -> None:
        line.update({"text/plain": text}, raw=True)

    try:
        yield lambda *step: show(steps.text(*step))
    finally:
        show("")


class Phases:
    """Times the phases, says which one begins, and names the one that fails. One that comes twice adds up.

    model: how messages call the model. passing: an error that is no failure of a phase.
    """

    def __init__(self, progress: Progress | None, model: str, passing: type[Exception]):
        self.seconds: dict[str, float] = {}
        self.progress = progress or silent
        self._model, self._passing = model, passing

    def counting(self, name: str) -> Callable[[int, int], None]:
        """What a phase calls with the number of its finished steps, and of all."""
        return lambda done, total: self.progress(name, "", done, total)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.counting(name)(0, 0)
        started = time.perf_counter()
        with step(f"{self._model}: the step '{name}'", self._passing):
            try:
                yield
            except ModelError as error:
                if self._model in str(error):
                    raise
                raise type(error)(f"{self._model}: {error}") from error  # of a pass, which knows the graph alone
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - started, 3)
