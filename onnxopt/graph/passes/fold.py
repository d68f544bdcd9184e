"""Constant folding with a bound on the growth of the model and on the bytes of weights that are read."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence, Set

import numpy as np
import onnx_ir as ir
from onnxscript.optimizer import fold_constants_ir

from onnxopt.graph.match import is_constant
from onnxopt.graph.passes.wide_constants import STORED, WideConstants

_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_COMPACT = frozenset({"ConstantOfShape", "DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"})
_NOT_CONSTANT = _RANDOM | _COMPACT - {"ConstantOfShape"}
_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_COPIES = _VIEWS | {"ConstantOfShape", "Expand", "Tile"}  # of elements that are stored already
_MOVES = _VIEWS | {"Concat", "Gather"}  # of elements to other places
_DATA_DEPENDENT = frozenset({"Compress", "NonZero", "Unique"})  # output no larger than rank times the input
_CONTRACTIONS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})  # too slow in numpy where large
_PRODUCTS = frozenset({"Gemm", "MatMul"})  # which WideConstants leaves to BLAS, in float32
_CONTRACTED = 1 << 17  # bytes
_FAST = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})  # dtypes that numpy leaves to BLAS
_NODE_BYTES = 48  # that removing a node saves at least; its output keeps its name as an initializer
_READ_LIMIT = 1 << 30  # bytes of constants that all foldings together may read and write, to bound their time
_PASSES = 32  # over its constants, by which a group that replaces them is as fast as reading the model
_FEW = 64  # elements
_COMPUTED = 1 << 18  # bytes; masks of windows, which attention needs as constants, may be this and 4 allowances larger
_WEIGHT = 1 << 15  # bytes; floats of more are no part of what computes a mask
_HIDDEN = "onnxopt.not_folded"  # a domain that onnxscript knows nothing of


class Fold:
    """onnxscript's constant folding of the nodes that are worth it; what 16-bit floats compute is folded in float32.

    allowance: bytes by which all foldings together may make the model larger; computed ones may add _COMPUTED.
    """

    def __init__(self, allowance: int) -> None:
        self._allowance, self._computed = allowance, _COMPUTED + 4 * allowance
        self._constant = frozenset[ir.Node]()  # nodes that depend on constants alone
        self._replacing = frozenset[ir.Node]()  # nodes whose groups store no more than they free
        self._readable = _READ_LIMIT

    def __call__(self, model: ir.Model) -> bool:
        """Fold in place; whether anything changed. Growth and bytes read add up over all calls."""
        with np.errstate(all="ignore"), _hidden(model):  # dividing constants by 0 is the model's business
            self._constant = _constant_nodes(model)
            self._replacing = self._affordable(_replacing(model))
            split = self._split(model)
            wide = WideConstants(functools.partial(self._should_fold, wide=True))(model)
            result = fold_constants_ir(
                model,
                onnx_shape_inference=False,  # SimplifyShapesPass has inferred them
                input_size_limit=0,  # _should_fold decides
                output_size_limit=1 << 62,
                should_fold=self._should_fold,
            )
        return split or wide or result.modified

    def _split(self, model: ir.Model) -> bool:
        """Replace a Split of a constant by its parts, which onnxscript leaves as it has several outputs."""
        changed = False
        for graph in list(model.graphs()):
            for node in [n for n in graph if n.op_type == "Split" and n.domain == ""]:
                parts = _parts(node)
                data = node.inputs[0]
                if parts is None or data is None:
                    continue
                growth = 0 if _only_read_by(data, node) else data.const_value.nbytes  # type: ignore[union-attr]
                if growth > self._allowance:
                    continue
                self._allowance -= growth
                for output, tensor in zip(node.outputs, parts, strict=True):
                    shape, kind = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)
                    value = ir.Value(name=output.name, shape=shape, type=kind, const_value=tensor)
                    output.name = None
                    graph.register_initializer(value)
                    output.replace_all_uses_with(value)
                graph.remove(node, safe=True)
                changed = True
        return changed

    def _should_fold(self, node: ir.Node, wide: bool = False) -> bool:
        """Whether to evaluate `node`, all of whose inputs are constants. wide: in float32, whatever their dtype."""
        inputs = {value for value in node.inputs if value is not None and value.const_value is not None}
        tensors = [value.const_value for value in inputs if value.const_value is not None]
        copies = node.op_type in _COPIES and not self._only_constants_read(node.outputs[0])
        if node.op_type in _NOT_CONSTANT or (copies and node.op_type == "ConstantOfShape"):
            return False
        if node.domain != "" or len(node.outputs) != 1:
            return False
        if ir.DataType.STRING in (node.outputs[0].dtype, *(tensor.dtype for tensor in tensors)):
            return False
        written = _output_bytes(node, tensors)
        if written is None:
            return False
        read = sum(tensor.nbytes for tensor in tensors)
        freed = sum(v.const_value.nbytes for v in inputs if v.const_value is not None and _only_read_by(v, node))
        growth = written - freed - _NODE_BYTES
        if _is_slow(node, read, {tensor.dtype for tensor in tensors}, wide):
            return False  # runtimes fold these at load
        computed = min(max(growth, 0), self._computed) if node in self._constant and not copies else 0
        if node in self._replacing:
            return True
        if read + written > self._readable:
            return False
        if growth - computed > self._allowance:
            return False
        self._computed -= computed
        self._allowance -= growth - computed
        self._readable -= read + written
        return True

    def _affordable(self, groups: Iterable[frozenset[ir.Node]]) -> frozenset[ir.Node]:
        """The members of the groups that may be read and written in all, as a part of a group would store more."""
        members = set[ir.Node]()
        for group in groups:
            sizes = [_bytes(v) for n in group for v in (*n.inputs, *n.outputs) if v is not None]
            if None in sizes:
                continue
            moved = sum(size for size in sizes if size is not None)
            if moved > _PASSES * sum(tensor.nbytes for tensor in _constants_of(group)):
                if moved > self._readable:
                    continue
                self._readable -= moved
            members |= group
        return frozenset(members)

    def _only_constants_read(self, value: ir.Value) -> bool:
        readers = value.consumers()
        return bool(readers) and not value.is_graph_output() and self._constant.issuperset(readers)


def _constant_nodes(model: ir.Model) -> frozenset[ir.Node]:
    """Nodes of the main graph that depend on constants alone, none of them a weight, and may be folded."""
    constant = set[ir.Node]()
    for node in model.graph:
        operands = [v for v in node.inputs if v is not None]
        if not operands or not _is_foldable(node):
            continue
        if all(v.producer() in constant or _is_small(v) for v in operands):
            constant.add(node)
    return frozenset(constant)


def _replacing(model: ir.Model) -> Iterator[frozenset[ir.Node]]:
    """Groups of nodes that compute with constants, whose results are no larger than the constants only they read.

    Exporters write the gates of an LSTM in ONNX's order so, a Slice for each gate and a Concat of these, and weights
    that are standardized, normalized or sums with those of an adapter. A group that only takes a constant apart stays:
    a kernel reads the parts where they are stored.
    """
    groups: dict[ir.Value, set[ir.Node]] = {}  # by each weight and each result of a member
    combined = set[ir.Value]()  # results of elements that a Concat joined, or that were computed
    for node in model.graph:
        operands = [v for v in node.inputs if v is not None]
        sizes, dtypes = [_bytes(v) for v in operands], {v.dtype for v in operands}
        if not operands or None in sizes or not _is_foldable(node):
            continue
        if _is_slow(node, sum(s for s in sizes if s is not None), dtypes, wide=dtypes <= STORED):
            continue
        if not all(v in groups or (is_constant(v) and v.const_value is not None) for v in operands):
            continue
        if node.op_type not in _MOVES - {"Concat"} or not combined.isdisjoint(operands):
            combined |= set(node.outputs)
        weights = [v for v in operands if v in groups or not _is_small(v)]
        members = set().union({node}, *(groups[v] for v in weights if v in groups))
        results = [v for member in members for v in (*member.inputs, *member.outputs) if v in groups]
        groups |= dict.fromkeys([*weights, *results, *node.outputs], members)
    distinct = {id(members): members for members in groups.values()}
    return (frozenset(members) for members in distinct.values() if _stores_no_more(members, combined))


def _is_foldable(node: ir.Node) -> bool:
    """Whether a node may be folded where its operands are constants."""
    bodies = any(attribute.type in _BODIES for attribute in node.attributes.values())
    return node.domain == "" and len(node.outputs) == 1 and node.op_type not in _NOT_CONSTANT and not bodies


def _is_slow(node: ir.Node, read: int, dtypes: Set[ir.DataType | None], wide: bool) -> bool:
    """Whether numpy evaluates a contraction of so many bytes slowly. wide: products of 16 bits are of float32 there."""
    fast = dtypes <= _FAST or (wide and node.op_type in _PRODUCTS)
    return node.op_type in _CONTRACTIONS and read > _CONTRACTED and not fast


def _stores_no_more(members: set[ir.Node], combined: set[ir.Value]) -> bool:
    """Whether what other nodes read of these is all combined, and no larger than the constants that only these read."""
    results = [v for n in members for v in n.outputs]
    outside = [v for v in results if v.is_graph_output() or not members.issuperset(v.consumers())]
    written = [_output_bytes(n, []) for n in members if n.outputs[0] in outside]
    freed = sum(tensor.nbytes for tensor in _constants_of(members, alone=True))
    return combined.issuperset(outside) and None not in written and sum(w for w in written if w is not None) <= freed


def _constants_of(members: Collection[ir.Node], *, alone: bool = False) -> list[ir.TensorProtocol]:
    """Those that the nodes read. alone: that no other node reads."""
    read = {v for n in members for v in n.inputs if v is not None and v.const_value is not None and is_constant(v)}
    return [
        v.const_value for v in read if v.const_value is not None and (not alone or set(v.consumers()) <= set(members))
    ]


def _is_small(value: ir.Value) -> bool:
    tensor = value.const_value if is_constant(value) else None
    return tensor is not None and (tensor.dtype.is_integer() or tensor.nbytes <= _WEIGHT)


@contextlib.contextmanager
def _hidden(model: ir.Model) -> Iterator[None]:
    """Hide each SplitToSequence whose `split` is computed: onnxscript takes it for a constant, and fails."""
    hidden = [
        node
        for node in model.graph.all_nodes()
        if node.op_type == "SplitToSequence" and node.domain == "" and _is_computed(node.inputs[1:2])
    ]
    for node in hidden:
        node.domain = _HIDDEN
    try:
        yield
    finally:
        for node in hidden:
            node.domain = ""


def _is_computed(values: Sequence[ir.Value | None]) -> bool:
    return any(value is not None and value.const_value is None for value in values)


def _parts(node: ir.Node) -> list[ir.Tensor] | None:
    """The parts of a Split of a constant; None where it is none, or is left to runtimes."""
    data, sizes = (*node.inputs, None)[:2]
    tensor = None if data is None or data.is_graph_input() else data.const_value
    if tensor is None or tensor.dtype == ir.DataType.STRING or any(v.is_graph_output() for v in node.outputs):
        return None
    axis, dims = node.attributes.get_int("axis", 0) or 0, tensor.shape.numpy()
    if "split" in node.attributes or not -len(dims) <= axis < len(dims):
        return None  # an old opset, or an axis that is none
    longest = -(-dims[axis] // len(node.outputs))
    lengths = [longest] * (len(node.outputs) - 1)
    lengths.append(dims[axis] - sum(lengths))
    if sizes is not None:
        if sizes.const_value is None or sizes.is_graph_input():
            return None
        lengths = sizes.const_value.numpy().tolist()
    if len(lengths) != len(node.outputs) or sum(lengths) != dims[axis] or min(lengths) < 2:
        return None  # parts of one are the weights of single experts, which a kernel reads where they lie
    ends = np.cumsum(lengths)[:-1]
    return [ir.Tensor(part, dtype=tensor.dtype) for part in np.split(tensor.numpy(), ends, axis=axis)]


def _only_read_by(value: ir.Value, node: ir.Node) -> bool:
    return all(user is node for user in value.consumers()) and not value.is_graph_output()


def _bytes(value: ir.Value) -> int | None:
    """None where the size is not known, and of strings."""
    if value.dtype in (None, ir.DataType.STRING) or value.shape is None or not value.shape.is_static():
        return None
    return math.ceil(math.prod(value.shape.numpy()) * value.dtype.bitwidth / 8)


def _output_bytes(node: ir.Node, inputs: list[ir.TensorProtocol]) -> int | None:
    """An upper bound of the bytes of a node's output, None where none is known."""
    if (size := _bytes(node.outputs[0])) is not None:
        return size
    if node.op_type in _DATA_DEPENDENT and sum(tensor.size for tensor in inputs) <= _FEW:
        return _FEW * 8 * 8
    return None
