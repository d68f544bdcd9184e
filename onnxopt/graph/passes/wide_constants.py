"""Constants that 16-bit floats compute, folded in float32 and rounded once.

onnx's evaluator computes float16 as numpy does: a sum of float16 loses most of its digits, and every step rounds.
Weight norms and standardized weights are such chains, and ONNX Runtime's kernels compute them in float32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

STORED = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_ROUND = frozenset({"Cast", "CastLike"})  # where the graph asks for it


class WideConstants:
    """Folds the nodes of a graph that have 16-bit floats as operands and result.

    should_fold: whether to evaluate a node, all of whose inputs are constants.
    """

    def __init__(self, should_fold: Callable[[ir.Node], bool]) -> None:
        self._should_fold = should_fold
        self._exact: dict[ir.Value, np.ndarray] = {}  # what folded constants were before they were rounded

    def __call__(self, model: ir.Model) -> bool:
        """Fold in place; whether anything changed."""
        return sum(self._fold(node, model) for node in list(model.graph)) > 0

    def _fold(self, node: ir.Node, model: ir.Model) -> bool:
        operands = [value for value in node.inputs if value is not None]
        output = node.outputs[0]
        is_wide = output.dtype in STORED and any(value.dtype in STORED for value in operands)
        nested = any(attribute.type in _GRAPHS for attribute in node.attributes.values())
        if not is_wide or nested or node.op_type in _ROUND or output.is_graph_output():
            return False
        if any(value.const_value is None or value.is_graph_input() for value in operands) or not self._should_fold(
            node
        ):
            return False
        array = _evaluate(node, {value: self._operand(value) for value in operands}, model.opset_imports.get("", 1))
        if array is None:
            return False
        assert output.dtype is not None
        tensor = ir.tensor(array.astype(output.dtype.numpy()), dtype=output.dtype, name=output.name)
        constant = ir.Value(name=output.name, shape=ir.Shape(array.shape), type=output.type, const_value=tensor)
        self._exact[constant] = array
        output.replace_all_uses_with(constant)
        output.name = None
        model.graph.remove(node, safe=True)
        model.graph.register_initializer(constant)
        return True

    def _operand(self, value: ir.Value) -> np.ndarray:
        if value in self._exact:
            return self._exact[value]
        assert value.const_value is not None
        array = value.const_value.numpy()
        return array.astype(np.float32) if value.dtype in STORED else array


def _evaluate(node: ir.Node, operands: dict[ir.Value, np.ndarray], opset: int) -> np.ndarray | None:
    """The result in float32; None where onnx's evaluator has none."""
    names = {value: f"x{number}" for number, value in enumerate(operands)}
    proto = ir.serde.serialize_node(node)
    proto.input[:] = ["" if value is None else names[value] for value in node.inputs]
    proto.output[:] = ["y"]
    infos = [
        onnx.helper.make_tensor_value_info(names[value], onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for value, array in operands.items()
    ]
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([proto], "constant", infos, [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        (value_array,) = ReferenceEvaluator(model).run(None, {names[value]: array for value, array in operands.items()})
    except Exception:  # noqa: BLE001 - whatever the evaluator raises, the node stays for the runtime
        return None
    return value_array if isinstance(value_array, np.ndarray) and value_array.dtype == np.float32 else None
