"""Serves an artifact over HTTP, with plain ONNX Runtime:

    pip install fastapi uvicorn
    ARTIFACT=path/to/artifact uvicorn --app-dir examples/fastapi app:app
    curl localhost:8000/infer -H 'content-type: application/json' -d '{"x": [[0.5, -0.5]]}'

Inputs and outputs are bound to buffers that stay on the device, one set for each combination of shapes. On a GPU, if
the artifact says that the model qualifies, each set has a CUDA graph. The graph is captured when the set is first used,
and replayed after that.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from fastapi import Body, FastAPI, HTTPException

_MOST_SHAPES = 16  # sets of buffers, and graphs; other shapes run all the same, through ONNX Runtime's own buffers
_NUMPY = {"float": "float32", "double": "float64"}  # where ONNX Runtime's names are not numpy's

Arrays = dict[str, np.ndarray[Any, Any]]


class Model:
    """One session. Runs come one after the other: they share the buffers, and on a GPU they would share it anyway."""

    def __init__(self, artifact: Path):
        settings = json.loads((artifact / "providers" / "cuda.json").read_text("utf-8"))
        graph = settings.get("cuda_graph", {}).get("provider_options", {})
        options = ort.SessionOptions()
        options.register_custom_ops_library(str(artifact / "lib" / "libonnxopt_ops.so"))
        for name, value in settings["session_config"].items():
            options.add_session_config_entry(name, value)
        providers = [("CUDAExecutionProvider", settings["provider_options"] | graph), "CPUExecutionProvider"]
        self._session = ort.InferenceSession(str(artifact / "model.onnx"), options, providers=providers)
        self.provider = self._session.get_providers()[0]
        self._device = "cuda" if self.provider.startswith("CUDA") else "cpu"
        self._lock = threading.Lock()
        self._bound: dict[tuple[tuple[int, ...], ...], _Bound] = {}
        self.dtypes = {i.name: _dtype(i.type) for i in self._session.get_inputs()}
        self.outputs = [o.name for o in self._session.get_outputs()]

    def run(self, feeds: Arrays) -> Arrays:
        shapes = tuple(feeds[name].shape for name in self.dtypes)
        with self._lock:
            if shapes not in self._bound and len(self._bound) < _MOST_SHAPES:
                self._bound[shapes] = _Bound(self._session, feeds, self._device, graph=len(self._bound) + 1)
            if shapes in self._bound:
                return dict(zip(self.outputs, self._bound[shapes].run(feeds), strict=True))
            return dict(zip(self.outputs, self._session.run(None, feeds, _graph(-1)), strict=True))


class _Bound:
    """Buffers on the device for inputs and outputs of certain shapes, and the graph that runs over them."""

    def __init__(self, session: ort.InferenceSession, feeds: Arrays, device: str, graph: int):
        self._session, self._options = session, _graph(graph)
        self._binding = session.io_binding()
        self._inputs = {name: ort.OrtValue.ortvalue_from_numpy(array, device, 0) for name, array in feeds.items()}
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for output in session.get_outputs():
            self._binding.bind_output(output.name, device)
        session.run_with_iobinding(self._binding, _graph(-1))  # without a graph: it tells how large the outputs are
        self._outputs = self._binding.get_outputs()
        for output, value in zip(session.get_outputs(), self._outputs, strict=True):
            self._binding.bind_ortvalue_output(output.name, value)

    def run(self, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
        for name, value in self._inputs.items():
            value.update_inplace(feeds[name])
        self._session.run_with_iobinding(self._binding, self._options)
        self._binding.synchronize_outputs()
        return [value.numpy().copy() for value in self._outputs]  # on the CPU numpy() is a view of the buffer


def _graph(number: int) -> ort.RunOptions:
    """Run options that choose a CUDA graph; -1 runs without one. The CPU ignores it."""
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(number))
    return options


def _dtype(ort_type: str) -> np.dtype[Any]:
    """ "tensor(float16)" as numpy's float16. TypeError for what numpy does not have."""
    name = ort_type.removeprefix("tensor(").removesuffix(")")
    return np.dtype(_NUMPY.get(name, name))


app = FastAPI(title="onnxopt artifact")
model = Model(Path(os.environ["ARTIFACT"]).absolute())


@app.get("/health")
def health() -> dict[str, Any]:
    return {
        "provider": model.provider,
        "inputs": {n: str(d) for n, d in model.dtypes.items()},
        "outputs": model.outputs,
    }


@app.post("/infer")
def infer(inputs: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008  FastAPI declares bodies so
    if set(inputs) != set(model.dtypes):
        raise HTTPException(422, f"inputs are {', '.join(model.dtypes)}; the request has {', '.join(inputs) or 'none'}")
    try:
        feeds = {name: np.ascontiguousarray(np.asarray(inputs[name], dtype)) for name, dtype in model.dtypes.items()}
        results = model.run(feeds)
    except (ValueError, TypeError, OverflowError, ort.capi.onnxruntime_pybind11_state.InvalidArgument) as error:
        raise HTTPException(422, str(error)) from error
    for name, array in results.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise HTTPException(500, f"output {name} has NaN or infinity, which JSON cannot hold")
    return {name: array.tolist() for name, array in results.items()}
