"""What consumers take the elements of a model's inputs for: indices, axes, sizes, divisors and the like.

Each input is followed to its consumers, through operators that keep its elements and into functions. A row of `_USES`
says what an operator takes an operand for. `verification/sampling/contents.py` draws elements that fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Literal

import onnx_ir as ir

from onnxopt.graph.additive_masks import is_additive_mask

Dims = tuple[int | str | None, ...]
Role = Literal[
    "index", "index_nd", "distinct_index", "distinct_index_nd", "axes", "squeeze_axes", "unsqueeze_axes", "shape",
    "broadcast_shape", "repeats", "range_start", "range_limit", "range_delta", "extents", "scales", "sizes", "starts",
    "ends", "steps", "pads", "count", "depth", "divisor", "split", "length", "trips", "true", "ratio", "positive",
    "shift", "number_text", "window", "frame", "affine_size", "image_shape", "block_shape", "zero", "false",
    "additive_mask", "condition",
]  # fmt: skip
# Operators whose result holds elements of their first operand.
_MAX_ELEMENTS = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose",
     "Unsqueeze"}
)  # fmt: skip
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")


@dataclasses.dataclass(frozen=True)
class Use:
    """One consumer of an input's elements.

    role: what it takes them for. data: the dims of the operand that the elements refer to (the table of indices, the
    tensor of axes); None where unknown or there is none. result: the dims of the consumer's result, None where unknown.
    axis: of `data`, where the role has one; may be negative. parts: for "split", the number of results.
    """

    role: Role
    data: Dims | None = None
    result: Dims | None = None
    axis: int = 0
    parts: int = 1

    @property
    def is_known(self) -> bool:
        """Whether the consumer's operands have dims here, so that this use says more than one without."""
        return self.data is not None


@dataclasses.dataclass(frozen=True)
class _Row:
    """data: the position of the operand that Use.data describes. axis: the attribute's default, None without one."""

    role: Role
    data: int | None = 0
    axis: int | None = None


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_LENGTHS: Mapping[int, _Row] = {4: _Row("length", 0)}
_USES: Mapping[str, Mapping[int, _Row]] = {
    "Gather": {1: _Row("index", 0, 0)},
    "GatherElements": {1: _Row("index", 0, 0)},
    "GatherND": {1: _Row("index_nd", 0, 0)},
    "ScatterElements": {1: _Row("distinct_index", 0, 0)},
    "Scatter": {1: _Row("distinct_index", 0, 0)},
    "ScatterND": {1: _Row("distinct_index_nd", 0, 0)},
    "TensorScatter": {2: _Row("zero")},
    "ArrayFeatureExtractor": {1: _Row("index", 0, -1)},
    "NegativeLogLikelihoodLoss": {1: _Row("index", 0, 1)},
    "SoftmaxCrossEntropyLoss": {1: _Row("index", 0, 1)},
    "MaxUnpool": {1: _Row("distinct_index", 0, -1)},
    "OneHot": {1: _Row("depth", None)},
    **{f"Reduce{name}": {1: _Row("axes")} for name in _REDUCTIONS},
    "CumSum": {1: _Row("axes")},
    "CumProd": {1: _Row("axes")},
    "Squeeze": {1: _Row("squeeze_axes")},
    "Unsqueeze": {1: _Row("unsqueeze_axes")},
    "Reshape": {1: _Row("shape")},
    "Expand": {1: _Row("broadcast_shape")},
    "Tile": {1: _Row("repeats")},
    "Range": {0: _Row("range_start", None), 1: _Row("range_limit", None), 2: _Row("range_delta", None)},
    "ConstantOfShape": {0: _Row("extents", None)},
    "Resize": {1: _Row("zero"), 2: _Row("scales"), 3: _Row("sizes")},
    "Upsample": {1: _Row("scales")},
    "Slice": {1: _Row("starts"), 2: _Row("ends"), 3: _Row("axes"), 4: _Row("steps")},
    "Pad": {1: _Row("pads"), 3: _Row("axes")},
    "TopK": {1: _Row("count", 0, -1)},
    "Split": {1: _Row("split", 0, 0)},
    "SplitToSequence": {1: _Row("split", 0, 0)},
    "CenterCropPad": {1: _Row("broadcast_shape")},
    "Div": {1: _Row("divisor", None)},
    "Mod": {1: _Row("divisor", None)},
    "BitShift": {1: _Row("shift", None)},
    "ReverseSequence": {1: _Row("length", 0)},
    "RNN": _LENGTHS,
    "LSTM": _LENGTHS,
    "GRU": _LENGTHS,
    "Attention": {6: _Row("length", 1)},
    "SequenceAt": {1: _Row("index", None)},
    "SequenceErase": {1: _Row("index", None)},
    "SequenceInsert": {2: _Row("index", None)},
    "If": {0: _Row("condition", None)},
    "Loop": {0: _Row("trips", None), 1: _Row("true", None)},
    "Dropout": {1: _Row("ratio", None), 2: _Row("false", None)},
    "NonMaxSuppression": {2: _Row("window", None), 3: _Row("ratio", None), 4: _Row("zero", None)},
    "QuantizeLinear": {1: _Row("positive", None)},
    "DequantizeLinear": {1: _Row("positive", None)},
    "QLinearConv": {1: _Row("positive", None), 4: _Row("positive", None), 6: _Row("positive", None)},
    "QLinearMatMul": {1: _Row("positive", None), 4: _Row("positive", None), 6: _Row("positive", None)},
    "BatchNormalization": {4: _Row("positive", None)},
    "HannWindow": {0: _Row("window", None)},
    "HammingWindow": {0: _Row("window", None)},
    "BlackmanWindow": {0: _Row("window", None)},
    "DFT": {1: _Row("window", None), 2: _Row("zero", None)},
    "STFT": {1: _Row("frame", None), 3: _Row("window", None)},
    "AffineGrid": {1: _Row("affine_size")},
    "Col2Im": {1: _Row("image_shape"), 2: _Row("block_shape")},
    "EmbedLayerNormalization": {0: _Row("index", 2, 0), 1: _Row("index", 4, 0)},
}


def uses_of_inputs(model: ir.Model) -> dict[str, tuple[Use, ...]]:
    """The uses of each graph input whose elements some consumer restricts, by the input's name."""
    uses = {value.name: tuple(dict.fromkeys(_uses(value, model))) for value in model.graph.inputs if value.name}
    return {name: input_uses for name, input_uses in uses.items() if input_uses}


def merged(first: Mapping[str, tuple[Use, ...]], second: Mapping[str, tuple[Use, ...]]) -> dict[str, tuple[Use, ...]]:
    """The uses that two equivalent models show, without those that say less than others of the same role.

    Less: no dims of the operand, or none of the result, where others have them. So what is drawn stays the same where
    the second model shows nothing new.
    """
    both = {name: (*first.get(name, ()), *second.get(name, ())) for name in {**first, **second}}
    return {name: _strictest(tuple(dict.fromkeys(uses))) for name, uses in both.items()}


def _strictest(uses: tuple[Use, ...]) -> tuple[Use, ...]:
    uses_known = {(use.role, use.axis) for use in uses if use.is_known}
    with_result = {dataclasses.replace(use, result=None) for use in uses if use.result is not None}
    return tuple(
        use for use in uses if (use.is_known or (use.role, use.axis) not in uses_known) and use not in with_result
    )


_INTEGER_ROLES = frozenset({"divisor"})  # a float may be divided by 0
_Actual = Mapping[ir.Value, ir.Value]  # inputs of functions: the operands of the call


def _uses(start: ir.Value, model: ir.Model) -> Iterator[Use]:
    pending: list[tuple[ir.Value, _Actual]] = [(start, {})]
    seen = {start}
    while pending:
        value, actual = pending.pop()
        for node, position in value.uses():
            following: list[tuple[ir.Value, _Actual]] = []
            function = model.functions.get(node.op_identifier())
            if function is not None:
                operands = {i: v for i, v in zip(function.inputs, node.inputs, strict=False) if v is not None}
                outer = {inner: actual.get(operand, operand) for inner, operand in operands.items()}
                following = [(function.inputs[position], outer)] if position < len(function.inputs) else []
                following += [(v, actual) for v in node.outputs] if _is_preserved_by(function) else []
            elif node.domain in _DOMAINS:
                if is_additive_mask(node, position):
                    yield Use("additive_mask")
                yield from _rows(node, position, actual)
                if _keeps(node, position):
                    following = [(v, actual) for v in node.outputs]
            pending += [(v, is_known) for v, is_known in following if v not in seen]
            seen.update(v for v, _ in following)


def _keeps(node: ir.Node, position: int) -> bool:
    """Whether a node's result holds elements of its operand at `position`."""
    if node.op_type == "Where":
        return position > 0
    return node.op_type in _MAX_ELEMENTS and (position == 0 or node.op_type == "Concat")


def _is_preserved_by(function: ir.Function) -> bool:
    return all(node.op_type in _MAX_ELEMENTS for node in function)


def _rows(node: ir.Node, position: int, actual: _Actual) -> Iterator[Use]:
    if node.op_type == "Cast" and node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.STRING:
        yield Use("number_text")
    row = _USES.get(node.op_type, {}).get(position)
    if row is None or (row.role in _INTEGER_ROLES and _is_float(node.inputs[position])):
        return
    axis = row.axis or 0
    attribute = node.attributes.get("batch_dims" if node.op_type == "GatherND" else "axis")
    if row.axis is not None and attribute is not None and not attribute.is_ref():
        axis = attribute.as_int()
    data = None if row.data is None or row.data >= len(node.inputs) else node.inputs[row.data]
    if row.role == "length":
        axis = _axis_of_lengths(node)
    result = _dims(node.outputs[0], actual)
    yield Use(row.role, _dims(data, actual), result, axis, len(node.outputs))


def _is_float(value: ir.Value | None) -> bool:
    """Whether an operand is known to be of floats; files need not declare what a Cast gives."""
    dtype, node = (None, None) if value is None else (value.dtype, value.producer())
    if dtype is None and node is not None and node.op_type == "Cast" and not node.attributes["to"].is_ref():
        dtype = ir.DataType(node.attributes["to"].as_int())
    return dtype is not None and dtype.is_floating_point()


def _axis_of_lengths(node: ir.Node) -> int:
    """The axis of operand 0 that the lengths of sequences are lengths of."""
    if node.op_type == "Attention":
        return -2
    attribute = node.attributes.get("time_axis" if node.op_type == "ReverseSequence" else "layout")
    if attribute is None or attribute.is_ref():
        return 0
    return attribute.as_int()


def _dims(value: ir.Value | None, actual: _Actual) -> Dims | None:
    if value is None:
        return None
    value = actual.get(value, value)
    if value.shape is None:
        return None if value.const_value is None else tuple(value.const_value.shape.numpy())
    return tuple(d if isinstance(d, int) else d.value for d in value.shape.dims)
