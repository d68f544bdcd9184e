"""A session that replays CUDA graphs and gives right outputs for every run.

ONNX Runtime replays a captured graph over the buffers that were bound when it was captured, whatever the caller binds
or feeds later. So each set of bound buffers gets a graph of its own here, and a run whose buffers may move gets none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, IOBinding
else:
    # The classes of ONNX Runtime follow in `open_session`: this module can be imported where ONNX Runtime cannot, so
    # that `onnxopt doctor` starts there and says what is wrong.
    InferenceSession = IOBinding = object

_ENTRY = "gpu_graph_id"
_NONE = -1  # ORT: run without a graph
_MAX = 32  # graphs of one session; each holds device memory

Place = tuple[str, int, tuple[int, ...], str]  # device, address, shape, type of one bound buffer


class GraphSession(InferenceSession):  # type: ignore[misc]
    """An InferenceSession whose CUDA EP has enable_cuda_graph=1; `open_session` makes one.

    `run` and its variants copy through buffers of their own and run without a graph. `run_with_iobinding` captures a
    graph the first time that all inputs and outputs are bound to certain device buffers, and replays it whenever the
    same buffers are bound again. It runs without a graph where an input or output has no fixed address on the device,
    and beyond 32 sets of buffers. Run options keep everything but their gpu_graph_id. Not for concurrent runs: graphs
    share the session's stream and buffers.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._graph_ids: dict[tuple[Place, ...], int] = {}
        self._options: dict[int, Any] = {}  # making them takes as long as launching a graph

    def io_binding(self) -> GraphBinding:
        _, binding = _classes()
        return binding(self)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        return super().run(output_names, input_feed, _with_graph(run_options, _NONE))

    def run_async(
        self, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
    ) -> Any:
        return super().run_async(output_names, input_feed, callback, user_data, _with_graph(run_options, _NONE))

    def run_with_ort_values(self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None) -> Any:
        return super().run_with_ort_values(output_names, input_dict_ort_values, _with_graph(run_options, _NONE))

    def run_with_ortvaluevector(self, run_options: Any, *args: Any) -> Any:
        return super().run_with_ortvaluevector(_with_graph(run_options, _NONE), *args)

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> Any:
        graph = self.graph_id(iobinding.places()) if isinstance(iobinding, GraphBinding) else _NONE
        if run_options is not None:
            return super().run_with_iobinding(iobinding, _with_graph(run_options, graph))
        if graph not in self._options:
            self._options[graph] = _with_graph(None, graph)
        return super().run_with_iobinding(iobinding, self._options[graph])

    def graph_id(self, places: tuple[Place, ...] | None) -> int:
        """The id of the graph over these buffers; -1 for None, and where there are too many graphs already."""
        if places is None or (places not in self._graph_ids and len(self._graph_ids) >= _MAX):
            return _NONE
        return self._graph_ids.setdefault(places, len(self._graph_ids) + 1)


class GraphBinding(IOBinding):  # type: ignore[misc]
    """An IOBinding that remembers the address of each input and output; `GraphSession.io_binding` makes one."""

    def __init__(self, session: GraphSession):
        super().__init__(session)
        self._names = [("in", i.name) for i in session.get_inputs()]
        self._names += [("out", o.name) for o in session.get_outputs()]
        self._bound: dict[tuple[str, str], Place | None] = {}
        self._places: tuple[Place, ...] | None = None
        self._changed = True

    def places(self) -> tuple[Place, ...] | None:
        """The place of every input, then of every output; None where one has no fixed address on a device."""
        if self._changed:
            places = [self._bound.get(name) for name in self._names]
            self._places = None if None in places else tuple(p for p in places if p is not None)
            self._changed = False
        return self._places

    def _note(self, kind: str, name: str, place: Place | None) -> None:
        self._bound[kind, name] = place
        self._changed = True

    def _forget(self, kind: str) -> None:
        self._bound = {key: place for key, place in self._bound.items() if key[0] != kind}
        self._changed = True

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        super().bind_cpu_input(name, arr_on_cpu)
        self._note("in", name, None)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        super().bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._note("in", name, _place(device_type, device_id, element_type, shape, buffer_ptr))

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        super().bind_ortvalue_input(name, ortvalue)
        self._note("in", name, _place_of(ortvalue))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        super().bind_output(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._note("out", name, _place(device_type, device_id, element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        super().bind_ortvalue_output(name, ortvalue)
        self._note("out", name, _place_of(ortvalue))

    def clear_binding_inputs(self) -> None:
        super().clear_binding_inputs()
        self._forget("in")

    def clear_binding_outputs(self) -> None:
        super().clear_binding_outputs()
        self._forget("out")


def open_session(*args: Any, **kwargs: Any) -> GraphSession:
    """A GraphSession, which is an onnxruntime.InferenceSession too. Takes what InferenceSession takes."""
    session, _ = _classes()
    return session(*args, **kwargs)


@functools.cache
def _classes() -> tuple[type[GraphSession], type[GraphBinding]]:
    """The classes above in front of ONNX Runtime's, whose methods their super() calls."""
    import onnxruntime as ort

    return (
        type("GraphSession", (GraphSession, ort.InferenceSession), {"__doc__": GraphSession.__doc__}),
        type("GraphBinding", (GraphBinding, ort.IOBinding), {"__doc__": GraphBinding.__doc__}),
    )


def _place(
    device: str, device_id: int, element_type: Any, shape: Sequence[int] | None, address: int | None
) -> Place | None:
    if address is None or shape is None or not device.startswith(("cuda", "gpu")):
        return None
    return f"{device}:{device_id}", address, tuple(shape), str(element_type)


def _place_of(value: Any) -> Place | None:
    if not value.is_tensor():
        return None
    return _place(value.device_name().lower(), 0, value.data_type(), value.shape(), value.data_ptr())


def _with_graph(options: Any, graph: int) -> Any:
    import onnxruntime as ort

    options = ort.RunOptions() if options is None else options
    if _graph_of(options) != str(graph):  # ONNX Runtime warns where an entry is there already
        options.add_run_config_entry(_ENTRY, str(graph))
    return options


def _graph_of(options: Any) -> str | None:
    try:
        return str(options.get_run_config_entry(_ENTRY))
    except RuntimeError:  # has none
        return None
