"""A model whose results change in their last place, to see how far right computations of it may lie apart.

Float inputs, and results of operators that round, are multiplied by random numbers between 1 and what two units in the
last place take from it, other ones in each run (Parker, "Monte Carlo Arithmetic", UCLA CSD-970002, 1997). So errors
grow through the model as rounding errors do, also where it is the algorithm that enlarges them. Integers stay.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import TopologicalSortPass

from onnxopt.errors import OnnxoptError
from onnxopt.graph import read, write
from onnxopt.graph.passes.inline import inline_functions
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes.infer import InferShapesPass

# Operators whose results hold elements of their operands, unchanged.
_EXACT = frozenset(
    {"Abs", "Cast", "Ceil", "Clip", "Compress", "Concat", "Constant", "ConstantOfShape", "DepthToSpace",
     "DequantizeLinear", "Dropout", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND",
     "GlobalMaxPool", "Identity", "If", "Loop", "Max", "MaxPool", "Min", "Neg", "OneHot", "Pad",
     "Range", "ReduceMax", "ReduceMin", "Relu", "Reshape", "ReverseSequence", "Round", "Scan",
     "ScatterElements", "ScatterND", "Sign", "Slice", "SpaceToDepth", "Split",
     "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where"}
)  # fmt: skip
# Two units in the last place of the smallest number of a binade; a unit for a correctly rounded result, one of ours.
_CHANGE = {ir.DataType.FLOAT: 2.0**-22, ir.DataType.DOUBLE: 2.0**-51, ir.DataType.FLOAT16: 2.0**-9,
           ir.DataType.BFLOAT16: 2.0**-6}  # fmt: skip
CHANGE_OF = {str(dtype.numpy()): change for dtype, change in _CHANGE.items()}
_DRAWS = 100_000  # seeds of one model
_SPREAD = 104_729  # between two seeds, since each run of a Dropout takes the next
_WITHOUT_RANDOM = 22  # opset from which on ONNX Runtime 1.31 has no kernel for RandomUniformLike, and one for Dropout


class NotChanged(OnnxoptError):
    """A model has no operator whose results can be changed, or cannot be written; the message says why."""


def change(model: Path, folder: Path, draw: int = 0, times: float = 1.0) -> Path:
    """Write the model, with results that change from run to run, into the empty `folder`; returns its path.

    A session of it gives the same results as another, run by run, but for another `draw`. times: of what changes.
    NotChanged where that fails.
    """
    source = read.load(model).model
    if reason := inline_functions(source):
        raise NotChanged(reason)
    TopologicalSortPass()(source)
    InferShapesPass()(source)
    nodes = list(source.graph.all_nodes())  # also in branches and bodies
    changed = [value for node in nodes for value in node.outputs if _is_rounded(node, value)]
    if not changed:
        raise NotChanged("no operator of it is known to round")
    inputs = [v for v in source.graph.inputs if v.name not in source.graph.initializers and v.dtype in _CHANGE]
    opset = source.opset_imports.get("", 1)
    for number, value in enumerate((*inputs, *changed)):
        producer = value.producer()
        graph = source.graph if producer is None or producer.graph is None else producer.graph
        _change(graph, value, opset, 1.0 + number + draw * _DRAWS, times)
    UniqueNamesPass()(source)
    try:
        write.save(source, folder)
    except (OSError, ValueError, TypeError) as error:
        raise NotChanged(read.first_line(error)) from error
    return folder / write.MODEL_FILE


def _is_rounded(node: ir.Node, value: ir.Value) -> bool:
    return node.op_type not in _EXACT and isinstance(value.type, ir.TensorType) and value.dtype in _CHANGE


def _change(graph: ir.Graph, value: ir.Value, opset: int, seed: float, times: float) -> None:
    """Multiply an input or a result, in float32 where it has 16 bits; consumers and graph outputs take the product."""
    producer, dtype = value.producer(), value.dtype
    assert dtype is not None
    is_narrow = dtype.bitwidth < ir.DataType.FLOAT.bitwidth
    wide = ir.DataType.FLOAT if is_narrow else dtype
    uses, is_output = tuple(value.uses()), value.is_graph_output() and producer is not None
    add = NewNodes(graph, graph[0]) if producer is None else NewNodes(graph, producer, producer)
    operand = add.add("Cast", [value], wide, [ir.AttrInt64("to", wide.value)]) if is_narrow else value
    factor = _factor(opset, add, operand, wide, seed, times * _CHANGE[dtype])
    # Integers are counts, masks and positions, which are exact.
    is_integer = add.add("Equal", [add.add("Round", [operand], wide), operand], ir.DataType.BOOL)
    result = add.add("Where", [is_integer, operand, add.add("Mul", [operand, factor], wide)], wide)
    if is_narrow:
        result = add.add("Cast", [result], dtype, [ir.AttrInt64("to", dtype.value)])
    result.type, result.shape, name = value.type, value.shape, value.name
    for use in uses:
        use.node.replace_input_with(use.idx, result)
    if is_output:
        outputs = [k for k, output in enumerate(graph.outputs) if output is value]
        for k in outputs:
            graph.outputs[k] = result
    if producer is not None:
        value.name, result.name = f"{name}_exact", name


def _factor(opset: int, add: NewNodes, operand: ir.Value, dtype: ir.DataType, seed: float, change: float) -> ir.Value:
    """Random factors of the operand's shape, between 1 and 1 - change. dtype: FLOAT or DOUBLE."""

    def constant(number: float) -> ir.Value:
        return add.constant(dtype.numpy().type(number))

    if opset >= _WITHOUT_RANDOM:
        whole = add.add("Shape", [operand], ir.DataType.INT64)
        ones = add.add("ConstantOfShape", [whole], dtype, [ir.AttrTensor("value", ir.tensor([1.0], dtype=dtype))])
        half = constant(0.5)
        # Of a constant, ONNX Runtime's optimizer would leave the Dropout out.
        size = add.add("Size", [operand], ir.DataType.INT64)
        true = add.add("GreaterOrEqual", [size, add.constant(np.array(0))], ir.DataType.BOOL)
        # Two draws of 0 or 2 are a number of 0, 1, 2 or 3.
        first, second = (
            add.add("Dropout", [ones, half, true], dtype, [ir.AttrInt64("seed", _SPREAD * (2 * round(seed) + bit))])
            for bit in (0, 1)
        )
        steps = add.add("Add", [first, add.add("Mul", [second, half], dtype)], dtype)
        return add.add("Sub", [constant(1.0), add.add("Mul", [steps, constant(change / 3)], dtype)], dtype)
    random = [ir.AttrFloat32("low", 1.0 - change), ir.AttrFloat32("high", 1.0), ir.AttrFloat32("seed", seed)]
    if dtype == ir.DataType.DOUBLE:  # whose factors a float32 attribute cannot hold
        random[:2] = [ir.AttrFloat32("low", -change), ir.AttrFloat32("high", 0.0)]
    factor = add.add("RandomUniformLike", [operand], dtype, random)
    return add.add("Add", [factor, constant(1.0)], dtype) if dtype == ir.DataType.DOUBLE else factor
