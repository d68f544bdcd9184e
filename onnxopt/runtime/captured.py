"""CUDA's own figures of a session: free memory of the device, and the kernels that one run launches.

The run is captured into a CUDA graph that is never launched, and the graph's kernels are counted. That needs no
profiler. A run that waits for the device cannot be captured, as where the CPU reads what the GPU computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.sessions import RunError, one_line

if TYPE_CHECKING:
    from cuda.bindings import driver


class Captured:
    """The first device with its primary context, current in this thread, and a stream for a session to run on."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver = driver
        self._check(driver.cuInit(0))
        self._context = self._check(driver.cuDevicePrimaryCtxRetain(self._check(driver.cuDeviceGet(0))))
        self.make_current()
        self._stream: driver.CUstream = self._check(
            driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value)
        )

    def make_current(self) -> None:
        """In a thread that has no context yet."""
        self._check(self._driver.cuCtxSetCurrent(self._context))

    @property
    def provider_options(self) -> dict[str, str]:
        """With these the CUDA provider of a session runs on the stream."""
        return {"user_compute_stream": str(int(self._stream))}

    def free_bytes(self) -> int:
        """Of the whole device, whoever uses it."""
        free, _ = self._check(self._driver.cuMemGetInfo())
        return int(free)

    def launches(self, run: BoundRun) -> int:
        """Kernels of one run. run: of a session on the stream, which ran before. RunError where it is not captured."""
        driver = self._driver
        relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._check(driver.cuStreamBeginCapture(self._stream, relaxed))
        failed: RunError | None = None
        try:
            run.enqueue()
        except RunError as error:
            failed = error
        status, graph = driver.cuStreamEndCapture(self._stream)
        if failed is not None:
            raise failed
        self._check((status,))
        _, count = self._check(driver.cuGraphGetNodes(graph))
        nodes, _ = self._check(driver.cuGraphGetNodes(graph, count)) if count else ([], 0)
        kinds = [self._check(driver.cuGraphNodeGetType(node)) for node in nodes]
        return sum(kind == driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL for kind in kinds)

    def _check(self, answer: tuple[Any, ...]) -> Any:
        """What a call of the driver returned beside its status; RunError where that is an error."""
        status, *values = answer
        if status != self._driver.CUresult.CUDA_SUCCESS:
            raise RunError(f"the CUDA driver answered {one_line(status.name)}")
        return values[0] if len(values) == 1 else tuple(values)
