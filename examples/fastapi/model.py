"""One model behind the service: a session whose inputs and outputs lie in buffers on the device."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any, NamedTuple

import configuration
import numpy as np
import onnxruntime as ort

_MOST_SHAPES = 16  # sets of buffers, and graphs; other shapes run all the same, through ONNX Runtime's own buffers
_NUMPY = {"float": "float32", "double": "float64"}  # where ONNX Runtime's names are not numpy's

_INVALID = ort.capi.onnxruntime_pybind11_state.InvalidArgument  # as for an index that a table does not have
Arrays = dict[str, np.ndarray[Any, Any]]
Dim = int | str | None  # None: open, and without a name


class RefusedInputs(Exception):
    """ONNX Runtime cannot run these inputs; the message is its own, in one line."""


class Tensor(NamedTuple):
    """An input or output as the model declares it."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[Dim, ...]


class Model:
    """One session. Runs come one after the other: they share the buffers, and on a GPU they would share it anyway."""

    def __init__(self, artifact: Path, file: str = ""):
        self.configuration, data = configuration.choose(artifact, file)
        self._session = configuration.session(artifact, data)
        self.provider = data["provider"]
        self._device = "cuda" if self.provider == configuration.CUDA else "cpu"
        self._lock = threading.Lock()
        self._bound: dict[tuple[tuple[int, ...], ...], _Bound] = {}
        self.inputs = tuple(_tensor(i) for i in self._session.get_inputs())
        self.outputs = tuple(_tensor(o) for o in self._session.get_outputs())

    def run(self, feeds: Arrays) -> Arrays:
        """Every output by name.

        RefusedInputs where ONNX Runtime calls them invalid, or fails at shapes that have not run before. Other errors
        of ONNX Runtime are no matter of the inputs, and raised as they are.
        """
        shapes = tuple(feeds[tensor.name].shape for tensor in self.inputs)
        with self._lock:
            try:
                results = self._run(feeds, shapes)
            except Exception as error:  # ONNX Runtime raises a dozen unrelated classes
                if isinstance(error, _INVALID) or shapes not in self._bound:
                    raise RefusedInputs(" ".join(str(error).split())[:500]) from error
                raise
        return {tensor.name: result for tensor, result in zip(self.outputs, results, strict=True)}

    def _run(self, feeds: Arrays, shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray[Any, Any]]:
        if shapes not in self._bound and len(self._bound) < _MOST_SHAPES:
            self._bound[shapes] = _Bound(self._session, feeds, self._device, graph=len(self._bound) + 1)
        if shapes in self._bound:
            try:
                return self._bound[shapes].run(feeds)
            except RuntimeError:  # the only class that a run with a binding raises; a plain run says what it is
                return self._session.run(None, feeds, _graph(-1))
        return self._session.run(None, feeds, _graph(-1))

    def warm_up(self, sizes: dict[str, str]) -> None:
        """Run once at these sizes, so that kernels are loaded, algorithms chosen and graphs captured.

        sizes: of open dims by their name ("8"), or of whole inputs ("8x128"); others are 1. Integers are ones: valid
        token ids, masks and types. ValueError for what the model does not have.
        """
        known = {tensor.name for tensor in self.inputs} | self.open_dims
        if unknown := sorted(sizes.keys() - known):
            raise ValueError(f"{', '.join(unknown)}: is no input and no open dim of the model; it has {sorted(known)}")
        rng = np.random.default_rng(0)
        feeds = {}
        for tensor in self.inputs:
            told = sizes.get(tensor.name)
            shape = [int(d) for d in told.split("x")] if told else [_size(d, sizes) for d in tensor.dims]
            if len(shape) != len(tensor.dims):
                raise ValueError(f"{tensor.name}={told}: the input has {len(tensor.dims)} dims")
            values = rng.standard_normal(shape) if tensor.dtype.kind == "f" else np.ones(shape)
            feeds[tensor.name] = np.asarray(values).astype(tensor.dtype)
        self.run(feeds)

    @property
    def open_dims(self) -> set[str]:
        """Names of the open dims of the inputs."""
        return {dim for tensor in self.inputs for dim in tensor.dims if isinstance(dim, str)}

    @property
    def has_one_shape(self) -> bool:
        return all(isinstance(dim, int) for tensor in self.inputs for dim in tensor.dims)


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


def _size(dim: Dim, sizes: dict[str, str]) -> int:
    return dim if isinstance(dim, int) else int(sizes.get(dim, 1)) if dim else 1


def _tensor(declared: Any) -> Tensor:
    """ValueError for what numpy does not have."""
    match = re.fullmatch(r"tensor\((\w+)\)", declared.type)
    name = _NUMPY.get(match[1], match[1]) if match else ""
    try:
        dtype = np.dtype(name or "object")
    except TypeError:
        dtype = np.dtype("object")
    if dtype.kind not in "biuf":
        raise ValueError(f"{declared.name} is {declared.type}, and this service takes tensors of numpy's numbers only")
    return Tensor(declared.name, dtype, tuple(declared.shape))
