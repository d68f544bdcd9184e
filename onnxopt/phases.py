"""Phases: how work that takes long says what it is doing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from onnxopt.errors import ModelError, step

# progress(phase, detail, done, total): called when a phase starts, and as one advances that counts its steps (compile,
# verify); done and total are 0 where nothing is counted, detail may name what is worked on.
Progress = Callable[[str, str, int, int], None]


def silent(phase: str, detail: str, done: int, total: int) -> None:
    """For callers that do not ask."""


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
