"""A session that replays CUDA graphs and still gives right answers whatever is run.

ORT replays a captured graph over the buffers that were bound when it was captured, whatever the caller binds or feeds
later. So each set of bound buffers gets a graph of its own here, and a run whose buffers may move gets none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnxruntime as ort

_ENTRY = "gpu_graph_id"
_NONE = -1  # ORT: run without a graph
_MOST = 32  # graphs of one session; each holds device memory

Place = tuple[str, int, tuple[int, ...], str]  # device, address, shape, type of one bound buffer


class GraphSession(ort.InferenceSession):  # type: ignore[misc]
    """An InferenceSession whose CUDA EP has enable_cuda_graph=1.

    `run` and its relatives, which copy through buffers of their own, run without a graph. `run_with_iobinding` captures
    one the first time that all inputs and outputs are bound to certain device buffers, and replays it whenever the same
    buffers are bound again; beyond 32 sets of buffers, and where one is not bound to a fixed place on the device, it
    runs without. Run options keep everything but their gpu_graph_id. Not for concurrent runs: graphs share the
    session's stream and buffers.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._graph_ids: dict[tuple[Place, ...], int] = {}
        self._options: dict[int, ort.RunOptions] = {}  # making them takes as long as launching a graph

    def io_binding(self) -> GraphBinding:
        return GraphBinding(self)

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
        if places is None or (places not in self._graph_ids and len(self._graph_ids) >= _MOST):
            return _NONE
        return self._graph_ids.setdefault(places, len(self._graph_ids) + 1)


class GraphBinding(ort.IOBinding):  # type: ignore[misc]
    """An IOBinding that remembers where each input and output lies."""

    def __init__(self, session: GraphSession):
        super().__init__(session)
        self._names = [("in", i.name) for i in session.get_inputs()]
        self._names += [("out", o.name) for o in session.get_outputs()]
        self._bound: dict[tuple[str, str], Place | None] = {}
        self._places: tuple[Place, ...] | None = None
        self._changed = True

    def places(self) -> tuple[Place, ...] | None:
        """Where every input lies, then every output; None where one is not fixed on a device."""
        if self._changed:
            found = [self._bound.get(name) for name in self._names]
            self._places = None if None in found else tuple(p for p in found if p is not None)
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
    options = ort.RunOptions() if options is None else options
    options.add_run_config_entry(_ENTRY, str(graph))
    return options
