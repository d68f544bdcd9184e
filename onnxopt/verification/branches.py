"""Which branches of the main graph's If no case ran, so that nothing in them was compared."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxopt.graph import read, write
from onnxopt.graph.branches import branches_of
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import RunError

_LISTED = 3
Feeds = Mapping[str, Any]


def unrun(model: Path, runs: Sequence[Feeds], folder: Path) -> str:
    """A sentence that names the branches that none of the runs takes, "" where there are none.

    model: a file; the conditions of its If are computed by ONNX Runtime from the inputs of the runs. folder: for
    temporary files.
    """
    loaded = read.load(model).model
    conditions = {str(node.name): node.inputs[0] for node in loaded.graph if branches_of(node)}
    if not conditions or not runs:
        return ""
    try:
        taken = _taken(loaded, [value for value in conditions.values() if value is not None], runs, folder)
    except RunError as error:
        return f"which branches of If were run is not known: {error}"
    missed = [
        f"{'then' if branch else 'else'}_branch of `{name}`"
        for name, value in conditions.items()
        for branch in (True, False)
        if value is not None and branch not in taken[value]
    ]
    if not missed:
        return ""
    more = f" and {len(missed) - _LISTED} more" if len(missed) > _LISTED else ""
    names = ", ".join(missed[:_LISTED]) + more
    return f"no case ran the {names}, so nothing in it was compared; give inputs with --data"


def _taken(
    model: ir.Model, conditions: Sequence[ir.Value], runs: Sequence[Feeds], folder: Path
) -> dict[ir.Value, set[bool]]:
    """The values of each condition in all runs. model: what does not compute conditions is removed from it."""
    taken: dict[ir.Value, set[bool]] = {value: set() for value in conditions}
    for value in taken:
        if value.is_graph_input():
            taken[value] = {bool(np.asarray(feeds[str(value.name)]).item()) for feeds in runs}
        elif (tensor := value.const_value) is not None:
            taken[value] = {bool(tensor.numpy().item())}
    computed = [value for value, values in taken.items() if not values]
    if not computed:
        return taken
    model.graph.outputs.clear()
    model.graph.outputs.extend(computed)
    RemoveUnusedNodesPass()(model)
    read_by = {value.name for value in model.graph.inputs}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        write.save(model, scratch)
        session = sessions.open_session(Path(scratch) / write.MODEL_FILE)
        for feeds in runs:
            outputs = sessions.run(session, {name: array for name, array in feeds.items() if name in read_by})
            for value in computed:
                taken[value].add(bool(outputs[str(value.name)].item()))
    return taken
