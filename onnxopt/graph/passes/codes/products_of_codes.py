"""Products of 8-bit codes get operands in float16, which holds the codes exactly, for a kernel of GPUs to multiply.

    MatMul(DQ(x, s, z), DQ(W, t, u)) -> MatMul(DQ(Reshape(x, Shape(x16)), s, z), DQ(Cast(Transpose(W16)), t))

    x16 = Cast(DQ(x, 1, z))    the codes minus the zero point, written by the kernel that writes x
    W16 = W - u, transposed    a constant

As ONNX, both sides compute the same: Reshape changes nothing, and ONNX Runtime folds what is done to W16 while it
loads the model, so its CPU provider still finds its integer kernels. The kernel of the product (kinds/gemm/codes.py)
reads x16 and W16 alone and multiplies their product by s * t.

Cast to e4m3 and back is a DQ with a scale of 1: a scale of each row, computed at run time, is multiplied behind the
product. Codes of 8-bit floats are multiplied as Mul(Cast(x16), s), as no provider has kernels of such codes. Where both
are e4m3 and that is faster, the kernel reads the codes themselves:

    MatMul(DQ(x, s), DQ(W, t)) -> MatMul(Mul(Cast(x), s), Transpose(Mul(Cast(turned W), t)))

Scales of columns, and of several weights side by side, become a factor behind a product in float32:

    MatMul(a, DQ(W, t[n])) -> Mul(MatMul(a, DQ(W', max t)), t / max t)
    MatMul(a, DQ(V, s)), MatMul(a, DQ(W, t)) -> Split(Mul(MatMul(a, DQ([V' W'], max)), [s t] / max))

In a float16 graph, whose DequantizeLinear rounds weights to float16 too, they become part of the weight instead. There
is no integer kernel of ONNX Runtime for such a product, so numbers are x16 times the scale, and nobody reads the codes
of 8 bits:

    MatMul(DQ(x, s, z), DQ(W, t[n])) -> MatMul(Mul(Cast(x16), s), Mul(Cast(W16 * (t / max t)), max t))
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from onnxopt.costs.rewrite import numbers
from onnxopt.graph.codes import dtype_of, has_attributes, is_dequantize
from onnxopt.graph.match import constant
from onnxopt.graph.passes.codes.code_operands import FLOAT8, SUFFIX, Codes, Operands, Product
from onnxopt.graph.passes.codes.moved_codes import VIEWS, MoveCodesPass
from onnxopt.graph.passes.codes.unsigned_codes import UnsignedCodesPass
from onnxopt.graph.passes.new_nodes import NewNodes
from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.shapes import shapes as shape_inference
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.operators import table as operators

_OPSET = 13  # since when Q and DQ have an axis
_EIGHT_BITS = FLOAT8 | {ir.DataType.INT8, ir.DataType.UINT8}
_NUMBERS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})
_E4M3 = ir.DataType.FLOAT8E4M3FN
_ATTENTION = ("com.microsoft", "MultiHeadAttention")
_TAKE_SPLIT = {
    *operators.OPERATORS,
    ("", "Reshape"),
    ("", "Transpose"),
    _ATTENTION,
}  # for a Split costs less than products
_MULTIPLE = 16  # of a weight's sides, which cuBLASLt asks for
_MIN = 2.0**-14  # normal number of float16
_SMALLEST = numbers().min_float8_side
ROWS_AS_FLOATS = range(*numbers().rows_as_floats)


def notes(model: ir.Model) -> tuple[str, ...]:
    """What a user should know about the size of a model that the pass changed."""
    values = [v for v in model.graph.initializers.values() if str(v.name).endswith(SUFFIX)]
    size = sum(v.const_value.nbytes for v in values if v.const_value is not None)
    if size == 0:
        return ()
    return (
        f"weights of quantized products are stored as float16 for CUDA: {size / 1e6:.1f} MB instead of"
        f" {size / 2e6:.1f} MB of 8-bit codes; --arch none keeps the codes",
    )


class ProductsOfCodesPass(ir.passes.InPlacePass):
    """The pass. Nodes must be in topological order, and stay so.

    eight_bits: whether some GPU that is compiled for multiplies 8-bit floats.
    """

    def __init__(self, *, eight_bits: bool = True) -> None:
        super().__init__()
        self._eight_bits = eight_bits

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if model.opset_imports.get("", 0) < _OPSET or not any(map(_may_be_product, model.graph.all_nodes())):
            return ir.passes.PassResult(model, False)
        shifted = UnsignedCodesPass()(model).modified
        if shifted:
            UniqueNamesPass()(model)
            MoveCodesPass(laid_out=True)(model)
            RemoveUnusedNodesPass()(model)
        inferred = shape_inference.infer(model)
        graphs = [graph for graph in model.graphs() if isinstance(graph, ir.Graph)]
        count = sum(_Products(graph, inferred, self._eight_bits).rewrite() for graph in graphs)
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
        if not is_dequantize(producer) and not _widens(producer):
            return False
    return True


def _widens(node: ir.Node | None) -> bool:
    """Whether a node makes numbers of codes that a Cast made, whose scale a following node may multiply."""
    if node is None or node.op_type != "Cast" or node.domain != "":
        return False
    maker = None if node.inputs[0] is None else node.inputs[0].producer()
    return maker is not None and maker.op_type == "Cast" and maker.attributes.get_int("to", 0) == _E4M3


def _holds_steps(product: Product, largest: np.floating) -> bool:
    """Whether codes times scale / largest are none of float16's subnormal numbers, which are less exact."""
    codes, scales = product.b, np.abs(product.b.scale.astype(np.float32))
    return codes.is_constant and codes.dtype not in FLOAT8 and bool((scales >= _MIN * abs(largest)).all())


class _Products:
    """The products of one graph."""

    def __init__(self, graph: ir.Graph, known: Shapes, eight_bits: bool) -> None:
        self._graph, self._inferred, self._eight_bits = graph, known, eight_bits
        self._operands = Operands(graph)

    def rewrite(self) -> int:
        """Rewrite every product of codes. Returns how many there are."""
        groups: dict[object, list[Product]] = collections.defaultdict(list)
        for node in self._graph:
            product = self._product(node)
            if product is not None:
                groups[self._group(product)].append(product)
        for products in groups.values():
            if len(products) == 1 and products[0].b.scale.size == 1 and not self._adds_outside(products[0]):
                self._rewrite_one(products[0])
            else:
                self._rewrite_with_factor(products)
        self._operands.replace_readers()
        return sum(map(len, groups.values()))

    def _product(self, node: ir.Node) -> Product | None:
        """The product of a node, None where the node is none of codes that can be multiplied in 16 bits."""
        if node.op_type not in ("MatMul", "Gemm") or node.domain != "":
            return None
        a, b = (self._codes(v) for v in node.inputs[:2])
        if a is None or b is None or (a.is_constant and b.is_constant) or a.axis is not None:
            return None
        if any(len(self._inferred.dims(v) or ()) < 2 for v in node.inputs[:2] if v is not None):
            return None
        if self._inferred.ir_dtype(node.inputs[0]) != self._inferred.ir_dtype(node.inputs[1]):  # type: ignore[arg-type]
            return None
        is_matrix = b.is_constant and len(self._inferred.dims(b.value) or ()) == 2
        lies_turned = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", False))
        turned = is_matrix and not lies_turned
        if b.axis is not None:
            scales_c = len(node.inputs) > 2 and node.attributes.get_float("beta", 1.0) != 1.0
            if not is_matrix or b.axis != (1 if turned else 0) or scales_c:
                return None
        return Product(node, a, b, turned, self._eight_bits and is_matrix and self._pays(node, a, b))

    def _pays(self, node: ir.Node, a: Codes, b: Codes) -> bool:
        """Whether e4m3 codes of an activation and a matrix are multiplied as they are. b: the codes of a matrix."""
        dims, sides = self._inferred.dims(a.value), self._inferred.dims(b.value)
        if a.dtype != _E4M3 or b.dtype != _E4M3 or a.is_constant or dims is None or sides is None:
            return False
        scales_c = len(node.inputs) > 2 and node.attributes.get_float("beta", 1.0) != 1.0
        if (
            node.attributes.get_int("transA", 0)
            or scales_c
            or any(not isinstance(n, int) or n % _MULTIPLE for n in sides)
        ):
            return False
        rows = [d for d in dims[:-1] if isinstance(d, int)]
        if len(rows) == len(dims) - 1 and math.prod(rows) in ROWS_AS_FLOATS:
            return False
        return min(n for n in sides if isinstance(n, int)) >= _SMALLEST

    def _codes(self, value: ir.Value | None) -> Codes | None:
        node = None if value is None else value.producer()
        if node is not None and value is not None and _widens(node):
            codes, dtype = node.inputs[0], self._inferred.ir_dtype(value)
            if codes is None or dtype is None or dtype not in _NUMBERS:
                return None
            return Codes(codes, np.ones((), dtype.numpy()), np.zeros((), _E4M3.numpy()), None)
        if node is None or value is None or not is_dequantize(node) or has_attributes(node):
            return None
        codes, scale = node.inputs[0], constant(node.inputs[1])
        if codes is None or scale is None or self._inferred.ir_dtype(value) not in _NUMBERS:
            return None
        dtype = dtype_of(codes) if codes.const_value is not None else self._inferred.ir_dtype(codes)
        if dtype not in _EIGHT_BITS:
            return None
        zero = np.zeros((), dtype.numpy())
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            offset = constant(node.inputs[2])
            if offset is None or offset.size != scale.size or (dtype in FLOAT8 and offset.astype(np.float32).any()):
                return None
            zero = offset
        if codes.const_value is None and not self._is_here(codes):
            return None
        if scale.size == 1:
            return Codes(codes, scale.reshape(()), zero.reshape(()), None)
        rank = len(self._inferred.dims(codes) or ())
        return Codes(codes, scale, zero, node.attributes.get_int("axis", 1) % max(rank, 1))

    def _is_here(self, codes: ir.Value) -> bool:
        """Whether the codes are made in this graph, or are an input of it."""
        producer = codes.producer()
        return codes in self._graph.inputs if producer is None else producer.graph is self._graph

    def _group(self, product: Product) -> object:
        """What products have in common that one product takes the place of."""
        node, b = product.node, product.b
        readers = list(node.outputs[0].consumers())
        split = _TAKE_SPLIT if product.eight_bits else operators.OPERATORS
        takes_split = bool(readers) and all((r.domain, r.op_type) in split for r in readers)
        if not product.turned or node.op_type != "MatMul" or node.outputs[0].is_graph_output():
            return node
        if not takes_split:
            return node
        assert b.value.const_value is not None
        dtypes = b.value.const_value.dtype, self._inferred.ir_dtype(node.outputs[0])
        rows = b.value.const_value.shape.numpy()[0]
        return product.a.value, float(product.a.scale), int(product.a.zero), rows, dtypes, product.eight_bits

    def _bias_after(self, product: Product) -> tuple[ir.Node, np.ndarray] | None:
        """The Add of one constant a column that alone reads a product, and the constant."""
        result = product.node.outputs[0]
        readers = [use.node for use in result.uses()]
        if len(readers) != 1 or result.is_graph_output() or (readers[0].domain, readers[0].op_type) != ("", "Add"):
            return None
        others = [v for v in readers[0].inputs if v is not result]
        array = constant(others[0]) if len(others) == 1 else None
        fits = array is not None and array.shape == product.scales().shape
        return (readers[0], array) if fits and array is not None else None

    def _parts(
        self, new: NewNodes, value: ir.Value, numbers: ir.DataType | None, products: Sequence[Product]
    ) -> list[ir.Value]:
        """The columns of each product. Kernels of index operations take in Slices, and Splits into equal parts."""
        widths = np.array([p.scales().size for p in products], np.int64)
        if not products[0].eight_bits or (widths == widths[0]).all():
            axis = [ir.AttrInt64("axis", -1)]
            parts = new.add("Split", [value, new.constant(widths)], numbers, axis, len(products)).producer()
            return list(parts.outputs) if parts is not None else []
        bounds, last = np.concatenate([[0], np.cumsum(widths)]), new.constant(np.array([-1]))
        ends = [new.constant(bounds[k : k + 1]) for k in range(len(bounds))]
        return [new.add("Slice", [value, ends[k], ends[k + 1], last], numbers) for k in range(len(products))]

    def _adds_outside(self, product: Product) -> bool:
        """Whether a Gemm's C has to be added by a node of its own: cuBLASLt adds no float32 to products of 8 bits."""
        adds = len(product.node.inputs) > 2 and product.node.inputs[2] is not None
        return adds and product.eight_bits and self._inferred.ir_dtype(product.node.outputs[0]) == ir.DataType.FLOAT

    def _rewrite_one(self, product: Product) -> None:
        """A product with one scale for each operand."""
        new = NewNodes(self._graph, product.node)
        for position, (codes, turned) in enumerate(((product.a, False), (product.b, product.turned))):
            product.node.replace_input_with(position, self._operands.operand(new, codes, turned, product.eight_bits))

    def _rewrite_with_factor(self, products: Sequence[Product]) -> None:
        """A product whose columns have scales of their own, or several products of one value."""
        source, first = products[0], products[0].node  # in the order of the graph
        new = NewNodes(self._graph, first)
        numbers = self._inferred.ir_dtype(first.outputs[0])
        scales = np.concatenate([p.scales() for p in products])
        largest = scales[np.abs(scales).argmax()]
        folded = numbers == ir.DataType.FLOAT16 and all(_holds_steps(p, largest) for p in products)
        differ = bool((scales != largest).any()) and not folded
        stored = numbers if (source.eight_bits or folded) and not differ and numbers is not None else ir.DataType.FLOAT
        dtype = stored.numpy()
        scaled_a = dataclasses.replace(source.a, scale=source.a.scale.astype(dtype))
        a = self._operands.operand(new, scaled_a, False, source.eight_bits)
        if folded:
            b = self._operands.in_steps_of_one(new, products, largest.astype(dtype))
        elif len(products) > 1:
            b = self._operands.side_by_side(new, products, largest.astype(dtype))
        else:
            scale = np.full_like(source.b.scale, largest, dtype)
            scaled_b = dataclasses.replace(source.b, scale=scale)
            b = self._operands.operand(new, scaled_b, source.turned, source.eight_bits)
        attributes = [x for x in first.attributes.values() if x.name != "beta"]
        value = new.add(first.op_type, [a, b], stored, attributes)
        if differ:
            value = new.add("Mul", [value, new.constant(scales / largest)], ir.DataType.FLOAT)
        if numbers == ir.DataType.FLOAT16 and stored != numbers:
            value = new.add("Cast", [value], numbers, [ir.AttrInt64("to", int(numbers))])
        if len(first.inputs) > 2 and first.inputs[2] is not None:
            value = new.add("Add", [value, first.inputs[2]], numbers)
        results, replaced = [value], [p.node.outputs[0] for p in products]
        if len(products) > 1:
            biases = [self._bias_after(p) for p in products]
            if any(biases):  # in front of the parts, where the product's kernel takes it; zeros where there is none
                bias_dtype = next(bias[1].dtype for bias in biases if bias)
                pairs = list(zip(products, biases, strict=True))
                rows = [bias[1] if bias else np.zeros(p.scales().shape, bias_dtype) for p, bias in pairs]
                value = new.add("Add", [value, new.constant(np.concatenate(rows))], numbers)
                replaced = [bias[0].outputs[0] if bias else p.node.outputs[0] for p, bias in pairs]
            results = self._parts(new, value, numbers, products)
        for old, result in zip(replaced, results, strict=True):
            result.name, result.type, result.shape = old.name, old.type, old.shape
            old.replace_all_uses_with(result, replace_graph_outputs=True)
