"""Products of 8-bit codes get operands in float16, which holds the codes exactly, for a kernel of GPUs to multiply.

    MatMul(DQ(x, s, z), DQ(W, t, u)) -> MatMul(DQ(Reshape(x, Shape(x16)), s, z), DQ(Cast(Transpose(W16)), t))

    x16 = Cast(DQ(x, 1, z))    the codes minus the zero point, written by the kernel that writes x
    W16 = W - u, transposed    a constant

As ONNX, both sides compute the same: Reshape changes nothing, and ONNX Runtime folds what is done to W16 while it
loads the model, so its CPU provider still finds its integer kernels. The kernel of the product (kinds/gemm/codes.py)
reads x16 and W16 alone and multiplies their product by s * t.

Codes of 8-bit floats are multiplied as Mul(Cast(x16), s), as no provider has kernels of such codes.

Scales of columns, and of several weights side by side, become a factor behind a product in float32:

    MatMul(a, DQ(W, t[n])) -> Mul(MatMul(a, DQ(W', max t)), t / max t)
    MatMul(a, DQ(V, s)), MatMul(a, DQ(W, t)) -> Split(Mul(MatMul(a, DQ([V' W'], max)), [s t] / max))
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxopt.graph.codes import constant, dtype_of, has_attributes, is_dequantize
from onnxopt.graph.passes.moved_codes import VIEWS, MoveCodesPass
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.passes.unsigned_codes import UnsignedCodesPass
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program import operators

_SUFFIX = "_16_bits"
_OPSET = 13  # since when Q and DQ have an axis
_FLOAT8 = frozenset({ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2})
_EIGHT_BITS = _FLOAT8 | {ir.DataType.INT8, ir.DataType.UINT8}
_NUMBERS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
_INT8 = np.iinfo(np.int8)


def notes(model: ir.Model) -> tuple[str, ...]:
    """What a user should know about the size of a model that the pass changed."""
    values = [v for v in model.graph.initializers.values() if str(v.name).endswith(_SUFFIX)]
    size = sum(v.const_value.nbytes for v in values if v.const_value is not None)
    if size == 0:
        return ()
    return (
        f"weights of quantized products are stored as float16 for CUDA: {size / 1e6:.1f} MB instead of"
        f" {size / 2e6:.1f} MB of 8-bit codes; --arch none keeps the codes",
    )


class ProductsOfCodesPass(ir.passes.InPlacePass):
    """The pass. Nodes must be in topological order, and stay so."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if model.opset_imports.get("", 0) < _OPSET or not any(map(_may_be_product, model.graph.all_nodes())):
            return ir.passes.PassResult(model, False)
        shifted = UnsignedCodesPass()(model).modified
        if shifted:
            UniqueNamesPass()(model)
            MoveCodesPass()(model)
            RemoveUnusedNodesPass()(model)
        known = shape_inference.infer(model)
        graphs = [graph for graph in model.graphs() if isinstance(graph, ir.Graph)]
        count = sum(_Products(graph, known).rewrite() for graph in graphs)
        if shifted or count:
            RemoveUnusedNodesPass()(model)
            UniqueNamesPass()(model)
        return ir.passes.PassResult(model, shifted or count > 0)


def _may_be_product(node: ir.Node) -> bool:
    """Whether both operands come from DQ, or would if codes were moved."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain != "":
        return False
    for value in node.inputs[:2]:
        producer = None if value is None else value.producer()
        while producer is not None and producer.op_type in VIEWS and producer.inputs[0] is not None:
            producer = producer.inputs[0].producer()
        if not is_dequantize(producer):
            return False
    return True


@dataclasses.dataclass(frozen=True)
class _Codes:
    """Codes behind a DQ. scale, zero: one number, or one for each position of `axis`; zero of the codes' dtype."""

    value: ir.Value
    scale: np.ndarray
    zero: np.ndarray
    axis: int | None

    @property
    def dtype(self) -> ir.DataType:
        return ir.DataType.from_numpy(self.zero.dtype)

    @property
    def is_constant(self) -> bool:
        return self.value.const_value is not None and not self.value.is_graph_input()

    def centered(self) -> np.ndarray:
        """The constant codes minus their zero points: int16, or float16."""
        codes = constant(self.value)
        assert codes is not None
        if self.dtype in _FLOAT8:
            return codes.astype(np.float16)
        zero = self.zero.astype(np.int16)
        if self.axis is not None:
            zero = zero.reshape([-1 if k == self.axis else 1 for k in range(codes.ndim)])
        centered: np.ndarray = codes.astype(np.int16) - zero
        return centered

    def fits_int8(self) -> bool:
        """Whether the constant codes minus their zero points are int8 again."""
        if self.dtype == ir.DataType.INT8 and not self.zero.any():
            return True
        if self.dtype in _FLOAT8:
            return False
        centered = self.centered()
        return bool(centered.min(initial=0) >= _INT8.min and centered.max(initial=0) <= _INT8.max)


@dataclasses.dataclass(frozen=True)
class _Product:
    """A MatMul or Gemm of codes. turned: the weight is a matrix whose columns are the product's, [K, N]."""

    node: ir.Node
    a: _Codes
    b: _Codes
    turned: bool

    def scales(self) -> np.ndarray:
        """The scales of the weight, one for each column, float32 [N]."""
        return self._of_columns(self.b.scale.astype(np.float32))

    def zeros(self) -> np.ndarray:
        """The zero points of the weight, one for each column, [N]."""
        return self._of_columns(self.b.zero)

    def _of_columns(self, array: np.ndarray) -> np.ndarray:
        tensor = self.b.value.const_value
        assert tensor is not None
        columns = tensor.shape.numpy()[1 if self.turned else 0]
        whole: np.ndarray = np.broadcast_to(array.reshape(-1), (columns,))
        return whole


class _Products:
    """The products of one graph."""

    def __init__(self, graph: ir.Graph, known: Shapes) -> None:
        self._graph, self._known = graph, known
        self._sixteen: dict[tuple[ir.Value, int], ir.Value] = {}
        self._weights: dict[tuple[object, ...], ir.Value] = {}

    def rewrite(self) -> int:
        """Rewrite every product of codes. Returns how many there are."""
        groups: dict[object, list[_Product]] = collections.defaultdict(list)
        for node in self._graph:
            product = self._product(node)
            if product is not None:
                groups[self._group(product)].append(product)
        for products in groups.values():
            if len(products) == 1 and products[0].b.scale.size == 1:
                self._rewrite_one(products[0])
            else:
                self._rewrite_with_factor(products)
        return sum(map(len, groups.values()))

    def _product(self, node: ir.Node) -> _Product | None:
        """The product of a node, None where the node is none of codes that can be multiplied in 16 bits."""
        if node.op_type not in ("MatMul", "Gemm") or node.domain != "":
            return None
        a, b = (self._codes(v) for v in node.inputs[:2])
        if a is None or b is None or (a.is_constant and b.is_constant) or a.axis is not None:
            return None
        if any(len(self._known.dims(v) or ()) < 2 for v in node.inputs[:2] if v is not None):
            return None
        if self._known.ir_dtype(node.inputs[0]) != self._known.ir_dtype(node.inputs[1]):  # type: ignore[arg-type]
            return None
        is_matrix = b.is_constant and len(self._known.dims(b.value) or ()) == 2
        lies_turned = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", False))
        turned = is_matrix and not lies_turned
        if b.axis is not None:
            scales_c = len(node.inputs) > 2 and node.attributes.get_float("beta", 1.0) != 1.0
            if not is_matrix or b.axis != (1 if turned else 0) or scales_c:
                return None
        return _Product(node, a, b, turned)

    def _codes(self, value: ir.Value | None) -> _Codes | None:
        node = None if value is None else value.producer()
        if node is None or value is None or not is_dequantize(node) or has_attributes(node):
            return None
        codes, scale = node.inputs[0], constant(node.inputs[1])
        if codes is None or scale is None or self._known.ir_dtype(value) not in _NUMBERS:
            return None
        dtype = dtype_of(codes) if codes.const_value is not None else self._known.ir_dtype(codes)
        if dtype not in _EIGHT_BITS:
            return None
        zero = np.zeros((), dtype.numpy())
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            given = constant(node.inputs[2])
            if given is None or given.size != scale.size or (dtype in _FLOAT8 and given.astype(np.float32).any()):
                return None
            zero = given
        if codes.const_value is None and not self._is_here(codes):
            return None
        if scale.size == 1:
            return _Codes(codes, scale.reshape(()), zero.reshape(()), None)
        rank = len(self._known.dims(codes) or ())
        return _Codes(codes, scale, zero, node.attributes.get_int("axis", 1) % max(rank, 1))

    def _is_here(self, codes: ir.Value) -> bool:
        """Whether the codes are made in this graph, or are an input of it."""
        producer = codes.producer()
        return codes in self._graph.inputs if producer is None else producer.graph is self._graph

    def _group(self, product: _Product) -> object:
        """What products have in common that one product takes the place of."""
        node, b = product.node, product.b
        readers = list(node.outputs[0].consumers())
        takes_split = bool(readers) and all((r.domain, r.op_type) in operators.OPERATORS for r in readers)
        if not product.turned or node.op_type != "MatMul" or node.outputs[0].is_graph_output():
            return node
        if not takes_split:
            return node
        assert b.value.const_value is not None
        dtypes = b.value.const_value.dtype, self._known.ir_dtype(node.outputs[0])
        rows = b.value.const_value.shape.numpy()[0]
        return product.a.value, float(product.a.scale), int(product.a.zero), rows, dtypes

    def _rewrite_one(self, product: _Product) -> None:
        """A product with one scale for each operand."""
        new = NewNodes(self._graph, product.node)
        for position, (codes, turned) in enumerate(((product.a, False), (product.b, product.turned))):
            product.node.replace_input_with(position, self._operand(new, codes, turned))

    def _rewrite_with_factor(self, products: Sequence[_Product]) -> None:
        """A product whose columns have scales of their own, or several products of one value."""
        source, first = products[0], products[0].node  # in the order of the graph
        new = NewNodes(self._graph, first)
        numbers = self._known.ir_dtype(first.outputs[0])
        scales = np.concatenate([p.scales() for p in products])
        largest = scales[np.abs(scales).argmax()]
        a = self._operand(new, dataclasses.replace(source.a, scale=source.a.scale.astype(np.float32)), False)
        if len(products) > 1:
            b = self._side_by_side(new, products, largest)
        else:
            scale = np.full_like(source.b.scale, largest, np.float32)
            b = self._operand(new, dataclasses.replace(source.b, scale=scale), source.turned)
        attributes = [x for x in first.attributes.values() if x.name != "beta"]
        value = new.add(first.op_type, [a, b], ir.DataType.FLOAT, attributes)
        if (scales != largest).any():
            value = new.add("Mul", [value, new.constant(scales / largest)], ir.DataType.FLOAT)
        if numbers == ir.DataType.FLOAT16:
            value = new.add("Cast", [value], numbers, [ir.AttrInt64("to", int(numbers))])
        if len(first.inputs) > 2 and first.inputs[2] is not None:
            value = new.add("Add", [value, first.inputs[2]], numbers)
        results = [value]
        if len(products) > 1:
            widths = np.array([p.scales().size for p in products], np.int64)
            axis = [ir.AttrInt64("axis", -1)]
            parts = new.add("Split", [value, new.constant(widths)], numbers, axis, len(products)).producer()
            results = list(parts.outputs) if parts is not None else []
        for product, result in zip(products, results, strict=True):
            old = product.node.outputs[0]
            result.name, result.type, result.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(result, replace_graph_outputs=True)

    def _operand(self, new: NewNodes, codes: _Codes, turned: bool) -> ir.Value:
        """The numbers of codes, by way of their 16-bit form."""
        if codes.dtype in _FLOAT8:
            value = self._weight(new, [codes], turned) if codes.is_constant else self._in_sixteen_bits(codes)
            return self._scaled(new, value, codes.scale, turned and codes.is_constant)
        if not codes.is_constant:
            scale, zero = new.constant(codes.scale), new.constant(codes.zero)
            shape = new.add("Shape", [self._in_sixteen_bits(codes)], ir.DataType.INT64)
            same = new.add("Reshape", [codes.value, shape], codes.dtype)
            return new.add("DequantizeLinear", [same, scale, zero], dtype_of(scale))
        value = self._weight(new, [codes], turned)
        if codes.fits_int8():
            return self._numbers(new, value, codes, None, turned, ir.DataType.INT8)
        return self._numbers(new, value, codes, codes.zero, turned, codes.dtype)

    def _numbers(
        self, new: NewNodes, value: ir.Value, codes: _Codes, zero: np.ndarray | None, turned: bool, dtype: ir.DataType
    ) -> ir.Value:
        """The numbers of a constant in 16 bits. zero: what is added to get the codes of `dtype`."""
        axis = [] if codes.axis is None else [ir.AttrInt64("axis", codes.axis)]
        if turned:
            value = new.add("Transpose", [value], ir.DataType.FLOAT16, [ir.AttrInt64s("perm", [1, 0])])
        operands = [new.constant(codes.scale)]
        if zero is not None:
            along = [-1 if k == codes.axis else 1 for k in range(2)] if codes.axis is not None else []
            value = new.add("Cast", [value], ir.DataType.INT32, [ir.AttrInt64("to", int(ir.DataType.INT32))])
            value = new.add("Add", [value, new.constant(zero.astype(np.int32).reshape(along))], ir.DataType.INT32)
            operands.append(new.constant(zero))
        value = new.add("Cast", [value], dtype, [ir.AttrInt64("to", int(dtype))])
        return new.add("DequantizeLinear", [value, *operands], dtype_of(operands[0]), axis)

    def _side_by_side(self, new: NewNodes, products: Sequence[_Product], scale: np.ndarray) -> ir.Value:
        """The weights of several products as one, all with one scale."""
        weights = [p.b for p in products]
        value = self._weight(new, weights, True)
        if weights[0].dtype in _FLOAT8:
            return self._scaled(new, value, scale, True)
        joined = dataclasses.replace(weights[0], scale=np.array(scale, np.float32), axis=None)
        if all(w.fits_int8() for w in weights):
            return self._numbers(new, value, joined, None, True, ir.DataType.INT8)
        zeros = np.concatenate([p.zeros() for p in products])
        joined = dataclasses.replace(joined, scale=np.full(zeros.shape, scale, np.float32), axis=1)
        return self._numbers(new, value, joined, zeros, True, weights[0].dtype)

    def _scaled(self, new: NewNodes, value: ir.Value, scale: np.ndarray, turned: bool) -> ir.Value:
        """The numbers of 8-bit floats, in the dtype of `scale`. They may have one scale for the whole tensor only."""
        float32, dtype = ir.DataType.FLOAT, ir.DataType.from_numpy(scale.dtype)
        if turned:
            value = new.add("Transpose", [value], ir.DataType.FLOAT16, [ir.AttrInt64s("perm", [1, 0])])
        value = new.add("Cast", [value], float32, [ir.AttrInt64("to", int(float32))])
        one = new.constant(scale.astype(np.float32).flat[0])
        value = new.add("Mul", [value, one], float32)
        return value if dtype == float32 else new.add("Cast", [value], dtype, [ir.AttrInt64("to", int(dtype))])

    def _weight(self, new: NewNodes, weights: Sequence[_Codes], turned: bool) -> ir.Value:
        """Constants in 16 bits, as they lie or turned; several of them side by side."""
        shapes = [w.value.const_value.shape.numpy() for w in weights if w.value.const_value is not None]
        dims = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        key = (*((w.value, w.zero.tobytes(), w.axis) for w in weights), turned)

        def evaluate() -> np.ndarray:
            codes = np.concatenate([w.centered() for w in weights], axis=-1)
            return np.ascontiguousarray(codes.T if turned else codes).astype(np.float16)

        if key not in self._weights:
            shape = dims[::-1] if turned else dims
            name = "+".join(str(w.value.name) for w in weights) + _SUFFIX
            self._weights[key] = new.lazy(name, evaluate, ir.DataType.FLOAT16, shape)
        return self._weights[key]

    def _in_sixteen_bits(self, codes: _Codes) -> ir.Value:
        """The codes minus their zero point as float16, computed once behind what makes the codes."""
        key = codes.value, int(codes.zero)
        if key not in self._sixteen:
            producer = codes.value.producer()
            new = NewNodes(self._graph, next(iter(self._graph)) if producer is None else producer, behind=producer)
            exact, sixteen = codes.value, ir.DataType.FLOAT16
            if codes.dtype not in _FLOAT8:
                operands = [codes.value, new.constant(np.float32(1)), new.constant(codes.zero)]
                exact = new.add("DequantizeLinear", operands, ir.DataType.FLOAT)
            self._sixteen[key] = new.add("Cast", [exact], sixteen, [ir.AttrInt64("to", int(sixteen))])
        return self._sixteen[key]
