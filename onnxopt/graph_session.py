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
        self._graph_ids: dict[tuple[tuple[str, Place], ...], int] = {}

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
        graph = self.graph_id(iobinding.places(self)) if isinstance(iobinding, GraphBinding) else _NONE
        return super().run_with_iobinding(iobinding, _with_graph(run_options, graph))

    def graph_id(self, places: tuple[tuple[str, Place], ...] | None) -> int:
        """The id of the graph over these buffers; -1 for None, and where there are too many graphs already."""
        if places is None or (places not in self._graph_ids and len(self._graph_ids) >= _MOST):
            return _NONE
        return self._graph_ids.setdefault(places, len(self._graph_ids) + 1)


class GraphBinding(ort.IOBinding):  # type: ignore[misc]
    """An IOBinding that remembers where each input and output lies."""

    def __init__(self, session: GraphSession):
        super().__init__(session)
        self._inputs: dict[str, Place | None] = {}
        self._outputs: dict[str, Place | None] = {}

    def places(self, session: GraphSession) -> tuple[tuple[str, Place], ...] | None:
        """Every input and output by name with its buffer; None where one is not fixed on a device."""
        found: list[tuple[str, Place]] = []
        for nodes, bound in ((session.get_inputs(), self._inputs), (session.get_outputs(), self._outputs)):
            for node in nodes:
                place = bound.get(node.name)
                if place is None:
                    return None
                found.append((node.name, place))
        return tuple(found)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        super().bind_cpu_input(name, arr_on_cpu)
        self._inputs[name] = None

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        super().bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._inputs[name] = _place(device_type, device_id, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        super().bind_ortvalue_input(name, ortvalue)
        self._inputs[name] = _place_of(ortvalue)

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
        self._outputs[name] = _place(device_type, device_id, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        super().bind_ortvalue_output(name, ortvalue)
        self._outputs[name] = _place_of(ortvalue)

    def clear_binding_inputs(self) -> None:
        super().clear_binding_inputs()
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        super().clear_binding_outputs()
        self._outputs.clear()


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
