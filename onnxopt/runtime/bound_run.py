"""A session with inputs and outputs bound to the device, so that a timed run copies nothing to the host."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from onnxopt.runtime import sessions
from onnxopt.runtime.graph_session import GraphSession
from onnxopt.runtime.sessions import CUDA, Array, RunError, RunTimeout
from onnxopt.runtime.watched import Watched

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class BoundRun:
    """Calling it runs the session once and returns the seconds until the outputs are complete.

    keep_outputs: write to the same buffers each time, so that a GraphSession replays a CUDA graph; not possible where
    random numbers decide output shapes. first: seconds of the first run, which comes before any other. RunError where
    ONNX Runtime refuses, RunTimeout where a run takes longer than the limit that was current when this was made.
    """

    def __init__(
        self, opened: InferenceSession, feeds: Mapping[str, Array], provider: str, *, keep_outputs: bool = True
    ):
        self.session = opened
        self._device = "cuda" if provider == CUDA else "cpu"
        self._binding = opened.io_binding()
        # Copies: a tensor on the CPU is the array's own memory, and `refill` would change the caller's.
        self._inputs = {name: sessions.to_ort_value(array.copy(), self._device) for name, array in feeds.items()}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        # A GraphSession has options of its own, and what can be captured has no node between two others to end it.
        self._options = None if isinstance(opened, GraphSession) else sessions.run_options()
        self._watched = Watched(self._options)
        self._names = [o.name for o in opened.get_outputs()]
        tensors_only = all(o.type.startswith("tensor(") and "string" not in o.type for o in opened.get_outputs())
        for name in self._names:
            self._binding.bind_output(name, self._device if tensors_only else "cpu")
        self.first = self()
        if keep_outputs and tensors_only:
            for name, value in zip(self._names, self._binding.get_outputs(), strict=True):
                self._binding.bind_ortvalue_output(name, value)

    def __call__(self) -> float:
        started = time.perf_counter()
        self._watched.begin()
        try:
            self.session.run_with_iobinding(self._binding, self._options)
            self._binding.synchronize_outputs()
        except Exception as error:  # ORT raises a dozen unrelated classes
            if up := self._watched.time_is_up():
                raise RunTimeout(str(up)) from error
            raise RunError(sessions.one_line(error)) from error
        finally:
            self._watched.end()
        seconds = time.perf_counter() - started
        if up := self._watched.time_is_up():
            raise RunTimeout(str(up))
        return seconds

    def enqueue(self) -> None:
        """Hand a run to the device and do not wait for it. RunError where ONNX Runtime refuses."""
        import onnxruntime as ort

        options = ort.RunOptions()
        options.log_severity_level = 4
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        try:
            self.session.run_with_iobinding(self._binding, options)
        except Exception as error:  # as above
            raise RunError(sessions.one_line(error)) from error

    def refill(self, feeds: Mapping[str, Array]) -> None:
        """Write other contents, of the same shapes, into the input buffers."""
        for name, array in feeds.items():
            sessions.refill(self._inputs[name], array)

    def outputs(self) -> dict[str, Array]:
        """The outputs of the last run, by name."""
        types = [o.type for o in self.session.get_outputs()]
        return sessions.to_arrays(self._names, self._binding.get_outputs(), types)
