"""The original's session on the CPU, and its outputs of one case, made in the background of other work."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onnxopt.background import in_background
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import Array, RunError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Case = TypeVar("Case")


@dataclasses.dataclass(frozen=True)
class Begun(Generic[Case]):
    """outputs: of the case that was run; empty where there was none to run, or ONNX Runtime refused it.

    seconds: that the run took.
    """

    session: InferenceSession
    outputs: dict[Case, dict[str, Array]]
    seconds: float


class Ahead(Generic[Case]):
    """A session of the model file on the CPU, which runs one case. config: entries of the session's configuration.

    feeds: draws the inputs of the case; None to run none.
    """

    def __init__(
        self, model: Path, config: Mapping[str, str], case: Case, feeds: Callable[[], Mapping[str, Any]] | None
    ):
        self._stop = sessions.run_options()
        self._begun: Future[Begun[Case]] | None = in_background(lambda: self._begin(model, config, case, feeds))

    def take(self) -> Begun[Case] | None:
        """Wait for it; None from the second call on, since keeping the session would keep the weights in memory.

        RunError where ONNX Runtime refuses the model.
        """
        begun, self._begun = self._begun, None
        return None if begun is None else begun.result()

    def stop(self) -> None:
        """End a run that nobody waits for."""
        self._stop.terminate = True

    def _begin(
        self, model: Path, config: Mapping[str, str], case: Case, feeds: Callable[[], Mapping[str, Any]] | None
    ) -> Begun[Case]:
        session, outputs = sessions.open_session(model, config=config), {}
        started = time.monotonic()
        if feeds is not None:
            try:
                outputs[case] = sessions.run(session, feeds(), self._stop)
            except RunError:  # the reference runs it again, and says why not
                outputs = {}
        return Begun(session, outputs, time.monotonic() - started)
