"""Converts a model to the opset that the operator table is written for, or leaves it alone and says why."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import LiftSubgraphInitializersToMainGraphPass
from onnxscript.version_converter import convert_version

from onnxopt.errors import first_line
from onnxopt.graph.passes.lean import adopt, lean_proto
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.passes.same_operators import missing_dtypes, same_node
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes.infer import infer

TARGET = 20
READABLE = 22  # newest opset that ORT 1.21 reads
_ONNXSCRIPT_FIRST = 18  # onnxscript converts from here on, onnx's C++ converter what is older
_RESIZE_MODES = 11  # from here on Resize says how it maps coordinates
_ALONG_ONE_AXIS = 13  # from here on; before, Softmax took all dims from its axis on for one
_SOFTMAXES = ("Softmax", "LogSoftmax", "Hardmax")
_SCAN_WITHOUT_BATCH = 9  # before, each element of a batch was scanned by itself; onnx's converter ignores that
_OutputType = tuple[str, str | None, int | None, int | None]  # name, kind, element type, rank
_FALLBACKS = (18, 17, 16, 15, 13)  # opsets to try where TARGET cannot be reached; the operator table begins at 13


def convert_opset(model: ir.Model, target: int = TARGET, lowest: int = TARGET) -> str | None:
    """Bring `model`, whose functions are inlined, to opset `target`. Returns a note for the user, or None.

    Older models are converted, and keep a lower opset where the converters fail or give an invalid model. Newer models
    are lowered to `lowest` where all their operators mean the same there and take their dtypes: ONNX Runtime 1.31 has
    no CUDA kernels for some operators of opset 22, among them MaxPool and InstanceNormalization. Else they are lowered
    to 22, which ORT 1.21 reads. Others stay.
    """
    version = model.opset_imports.get("")
    if version is None:
        return None
    if version > lowest:
        return _lower(model, version, lowest)
    if version >= target:
        return None
    if model.functions:
        return f"opset {version} kept: the model still has model-local functions"
    reason = None
    for candidate in (target, *(v for v in _FALLBACKS if version < v < target)):
        problem = _convert(model, version, candidate)
        if problem is None:
            reached = f"opset {version} converted to {candidate}"
            return reached if reason is None else f"{reached}, not {target}: {reason}"
        reason = reason or problem
    return f"opset {version} kept: {reason}"


def _convert(model: ir.Model, version: int, target: int) -> str | None:
    """Convert in place. Returns None, or why `model` is as it was."""
    before = model.clone()
    try:
        if version < _SCAN_WITHOUT_BATCH and any(
            n.op_type == "Scan" and n.domain == "" for n in model.graph.all_nodes()
        ):
            raise ValueError(f"Scan with a batch dim has no equal from opset {_SCAN_WITHOUT_BATCH} on")
        wanted = _interface_types(model)
        if version < _ONNXSCRIPT_FIRST:
            LiftSubgraphInitializersToMainGraphPass()(model)
            UniqueNamesPass()(model)
            if version < _RESIZE_MODES:
                sampling = _sampling(model)
                _convert_with_onnx(model, _RESIZE_MODES)
                _set_sampling(model, sampling)
            _convert_with_onnx(model, min(target, _ONNXSCRIPT_FIRST))
        if target > model.opset_imports[""]:
            convert_version(model, target, fallback=False)
        types = _interface_types(model)
        converted = lean_proto(model)
        contradictions = [(a, b) for a, b in zip(wanted, types, strict=True) if _differ(a, b)]
        for value in (*converted.graph.input, *converted.graph.output):  # the checker insists, runtimes do not
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.shape.SetInParent()
        onnx.checker.check_model(converted)
        if contradictions:
            raise ValueError("output {} would become {}".format(*contradictions[0]))
    except Exception as error:  # noqa: BLE001 - of onnx, onnx_ir and onnxscript, which share no class
        model.graph = before.graph
        return first_line(error)
    return None


def _convert_with_onnx(model: ir.Model, target: int) -> None:
    infer(model).write()  # what follows from contents too, which onnx would propagate for tensors of any size
    if model.opset_imports[""] < _ALONG_ONE_AXIS <= target:
        _state_rows(model)
    inferred = onnx.shape_inference.infer_shapes(lean_proto(model))
    adopt(model, onnx.version_converter.convert_version(inferred, target))


def _state_rows(model: ir.Model) -> None:
    """Let each Softmax of an opset below 13 be along the last dim, where its rank is known, and Hardmax of two dims.

    onnx's converter adds views where it does not know the rank, and none to Hardmax.
    """
    for node in [n for n in model.graph.all_nodes() if n.op_type in _SOFTMAXES and n.domain == ""]:
        x, axis = node.inputs[0], node.attributes.get_int("axis", 1)
        if axis == -1 or (x is not None and x.shape is not None and axis == len(x.shape) - 1):
            node.attributes["axis"] = ir.AttrInt64("axis", -1)
        elif node.op_type == "Hardmax" and isinstance(node.graph, ir.Graph):
            new, (y,) = NewNodes(node.graph, node), node.outputs
            flat = new.add("Flatten", [x], y.dtype, [ir.AttrInt64("axis", axis)])
            rows = new.add("Hardmax", [flat], y.dtype, [ir.AttrInt64("axis", -1)])
            whole = new.add("Reshape", [rows, new.add("Shape", [x], ir.DataType.INT64)], y.dtype)
            y.replace_all_uses_with(whole, replace_graph_outputs=True)
            whole.name, y.name = y.name, None
            node.graph.remove(node, safe=True)
    UniqueNamesPass()(model)


def _sampling(model: ir.Model) -> list[str]:
    """Rounding of each Upsample and Resize of an opset below 11: ORT rounds down, or up where the tensor shrinks."""
    rounding = []
    for node in model.graph.all_nodes():
        if node.domain == "" and node.op_type == "Upsample":
            rounding.append("floor")
        elif node.domain == "" and node.op_type == "Resize":
            scales = node.inputs[1].const_value if node.inputs[1] is not None else None
            if scales is None:
                raise ValueError("no later opset has a Resize with computed scales that rounds alike")
            shrinks = {bool(scale < 1) for scale in scales.numpy().flat if scale != 1}
            if len(shrinks) > 1 and node.attributes.get_string("mode", "nearest") == "nearest":
                raise ValueError("no later opset has a Resize that grows and shrinks and rounds alike")
            rounding.append("ceil" if True in shrinks else "floor")
    return rounding


def _set_sampling(model: ir.Model, rounding: list[str]) -> None:
    """Set attributes that say what Resize meant before opset 11; the defaults that onnx's converter leaves do not."""
    resizes = [node for node in model.graph.all_nodes() if node.domain == "" and node.op_type == "Resize"]
    for node, nearest_mode in zip(resizes, rounding, strict=True):
        node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
        if node.attributes.get_string("mode", "nearest") == "nearest":
            node.attributes.add(ir.AttrString("nearest_mode", nearest_mode))


def _interface_types(model: ir.Model) -> list[_OutputType]:
    """What each output is by inference; raises where an operator's inputs do not fit it."""
    knowledge, proto = infer(model), lean_proto(model)
    for value in (v for node in model.graph.all_nodes() for v in node.outputs):
        if any(isinstance(dim, int) and dim < 0 for dim in knowledge.dims(value) or ()):
            raise ValueError(f"`{value.name}` has a size below 0")  # at which onnx can end the process
    for output in proto.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=False)
    types = []
    for output, value in zip(inferred.graph.output, model.graph.outputs, strict=True):
        tensor, dims = output.type.tensor_type, knowledge.dims(value)
        rank = len(tensor.shape.dim) if tensor.HasField("shape") else None if dims is None else len(dims)
        types.append((output.name, output.type.WhichOneof("value"), tensor.elem_type or None, rank))
    return types


def _differ(a: _OutputType, b: _OutputType) -> bool:
    """Whether two outputs differ in something that is known of both."""
    return any(dtype != other and None not in (dtype, other) for dtype, other in zip(a, b, strict=True))


def _lower(model: ir.Model, version: int, lowest: int) -> str | None:
    """Lower to the oldest of two opsets that has the model's operators and dtypes. Returns a note, or None."""
    reason = None
    for target in (lowest, READABLE):
        if target >= version:
            break
        reason = why_not_lower(model, version, target)
        if reason is None:
            model.opset_imports[""] = target
            return f"opset {version} lowered to {target}, in which all operators mean the same"
    return f"opset {version} kept: {reason}" if version > READABLE else None


def why_not_lower(model: ir.Model, version: int, target: int) -> str | None:
    """Why a model of opset `version` does not mean the same in the older opset `target`; None where it does."""
    nodes = [node for node in model.graph.all_nodes() if node.domain in ("", "ai.onnx")]
    for node in nodes:
        if not same_node(node, target, version):
            return f"opset {target} has no {node.op_type} of the same meaning"
    for value in _values(model):
        if value.dtype is not None and value.dtype > ir.DataType.INT4:
            return f"opset {target} has no dtype {value.dtype.name.lower()}"
    dtype = infer(model).dtype
    for node in nodes:
        if dtypes := missing_dtypes(node, target, version, dtype):
            return f"opset {target} has no {node.op_type} of {', '.join(dtypes)}"
    return None


def _values(model: ir.Model) -> list[ir.Value]:
    graphs = list(model.graphs())
    values = [value for graph in graphs for value in (*graph.inputs, *graph.initializers.values())]
    return values + [value for graph in graphs for node in graph for value in node.outputs]
