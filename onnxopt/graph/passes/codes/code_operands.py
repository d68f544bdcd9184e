"""Operands of products of 8-bit codes: what is known of the codes, and the nodes from their stored form to numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxopt.graph.codes import dtype_of, is_dequantize, is_plain, scalar
from onnxopt.graph.match import constant
from onnxopt.graph.passes.new_nodes import NewNodes

SUFFIX = "_16_bits"
FLOAT8 = frozenset({ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2})
_SUFFIX_8 = "_8_bits"
_INT8 = np.iinfo(np.int8)


@dataclasses.dataclass(frozen=True)
class Codes:
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

    def centered(self, step: np.ndarray | None = None) -> np.ndarray:
        """The constant codes minus their zero points: int16, or float16; times scale / step where a step is given."""
        codes = constant(self.value)
        assert codes is not None
        if self.dtype in FLOAT8:
            return codes.astype(np.float16)
        centered: np.ndarray = codes.astype(np.int16) - self._along_axis(self.zero.astype(np.int16), codes.ndim)
        if step is None:
            return centered
        factor = self._along_axis(self.scale.astype(np.float32) / np.float32(step), codes.ndim)
        return (centered * factor).astype(np.float16)

    def _along_axis(self, array: np.ndarray, rank: int) -> np.ndarray:
        """One number, or one for each position of the axis, to be broadcast to the codes."""
        return array if self.axis is None else array.reshape([-1 if k == self.axis else 1 for k in range(rank)])

    def fits_int8(self) -> bool:
        """Whether the constant codes minus their zero points are int8 again."""
        if self.dtype == ir.DataType.INT8 and not self.zero.any():
            return True
        if self.dtype in FLOAT8:
            return False
        centered = self.centered()
        return bool(centered.min(initial=0) >= _INT8.min and centered.max(initial=0) <= _INT8.max)


@dataclasses.dataclass(frozen=True)
class Product:
    """A MatMul or Gemm of codes.

    turned: the weight is a matrix whose columns are the product's, [K, N]. eight_bits: the codes are multiplied as they
    are.
    """

    node: ir.Node
    a: Codes
    b: Codes
    turned: bool
    eight_bits: bool = False

    def scales(self) -> np.ndarray:
        """The scales of the weight, one for each column, float32 [N]."""
        return self._by_columns(self.b.scale.astype(np.float32))

    def zeros(self) -> np.ndarray:
        """The zero points of the weight, one for each column, [N]."""
        return self._by_columns(self.b.zero)

    def _by_columns(self, array: np.ndarray) -> np.ndarray:
        tensor = self.b.value.const_value
        assert tensor is not None
        columns = tensor.shape.numpy()[1 if self.turned else 0]
        whole: np.ndarray = np.broadcast_to(array.reshape(-1), (columns,))
        return whole


class Operands:
    """Builds the operands of the products of one graph; what several products read, once."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._sixteen: dict[tuple[ir.Value, int], ir.Value] = {}
        self._weights: dict[tuple[object, ...], ir.Value] = {}

    def operand(self, new: NewNodes, codes: Codes, turned: bool, eight_bits: bool) -> ir.Value:
        """The numbers of codes, by way of their 16-bit form, or of the codes themselves."""
        if codes.dtype in FLOAT8:
            if codes.is_constant:
                value = self._weight(new, [codes], turned, eight_bits)
            elif eight_bits:
                value = codes.value
                value.type = ir.TensorType(codes.dtype)  # which the graph may leave to be inferred
            else:
                value = self._in_sixteen_bits(codes)
            return self._scaled(new, value, codes.scale, turned and codes.is_constant)
        if codes.scale.dtype == np.float16:
            constants = codes.is_constant
            value = self._weight(new, [codes], turned, False) if constants else self._in_sixteen_bits(codes)
            return self._scaled(new, value, codes.scale, turned and constants)
        if not codes.is_constant:
            scale, zero = new.constant(codes.scale), new.constant(codes.zero)
            shape = new.add("Shape", [self._in_sixteen_bits(codes)], ir.DataType.INT64)
            same = new.add("Reshape", [codes.value, shape], codes.dtype)
            return new.add("DequantizeLinear", [same, scale, zero], dtype_of(scale))
        value = self._weight(new, [codes], turned, False)
        if codes.fits_int8():
            return self._numbers(new, value, codes, None, turned, ir.DataType.INT8)
        return self._numbers(new, value, codes, codes.zero, turned, codes.dtype)

    def _numbers(
        self, new: NewNodes, value: ir.Value, codes: Codes, zero: np.ndarray | None, turned: bool, dtype: ir.DataType
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

    def side_by_side(self, new: NewNodes, products: Sequence[Product], scale: np.ndarray) -> ir.Value:
        """The weights of several products as one, all with one scale."""
        weights = [p.b for p in products]
        value = self._weight(new, weights, True, products[0].eight_bits)
        if weights[0].dtype in FLOAT8:
            return self._scaled(new, value, scale, True)
        concatenated = dataclasses.replace(weights[0], scale=np.array(scale, np.float32), axis=None)
        if all(w.fits_int8() for w in weights):
            return self._numbers(new, value, concatenated, None, True, ir.DataType.INT8)
        zeros = np.concatenate([p.zeros() for p in products])
        concatenated = dataclasses.replace(concatenated, scale=np.full(zeros.shape, scale, np.float32), axis=1)
        return self._numbers(new, value, concatenated, zeros, True, weights[0].dtype)

    def in_steps_of_one(self, new: NewNodes, products: Sequence[Product], scale: np.ndarray) -> ir.Value:
        """The weights of products side by side as float16 numbers, in steps of one scale."""
        value = self._weight(new, [p.b for p in products], products[0].turned, False, scale)
        return self._scaled(new, value, scale, products[0].turned)

    def replace_readers(self) -> None:
        """Let readers of codes of a float16 graph read their 16-bit form, where that leaves no reader of the codes."""
        for (value, zero), sixteen in self._sixteen.items():
            readers = [use.node for use in value.uses()]
            others = [r for r in readers if r is not _maker(sixteen)]
            if value.is_graph_output() or not all(_reads_float16(r, zero) for r in others):
                continue
            for reader in others:
                old = reader.outputs[0]
                numbers = NewNodes(self._graph, reader).add("Mul", [sixteen, reader.inputs[1]], ir.DataType.FLOAT16)
                numbers.name, numbers.type, numbers.shape = old.name, old.type, old.shape
                old.replace_all_uses_with(numbers, replace_graph_outputs=True)

    def _scaled(self, new: NewNodes, value: ir.Value, scale: np.ndarray, turned: bool) -> ir.Value:
        """The numbers of 8-bit floats, in the dtype of `scale`. They may have one scale for the whole tensor only."""
        float32, dtype = ir.DataType.FLOAT, ir.DataType.from_numpy(scale.dtype)
        value = new.add("Cast", [value], float32, [ir.AttrInt64("to", int(float32))])
        if turned:  # not of codes, which not every provider turns
            value = new.add("Transpose", [value], float32, [ir.AttrInt64s("perm", [1, 0])])
        one = new.constant(scale.astype(np.float32).flat[0])
        value = new.add("Mul", [value, one], float32)
        return value if dtype == float32 else new.add("Cast", [value], dtype, [ir.AttrInt64("to", int(dtype))])

    def _weight(
        self,
        new: NewNodes,
        weights: Sequence[Codes],
        turned: bool,
        eight_bits: bool,
        step: np.ndarray | None = None,
    ) -> ir.Value:
        """Constants in 16 bits or as they are, as they lie or turned; several of them side by side.

        step: what the numbers are multiples of; None for codes.
        """
        if eight_bits and not turned:
            return weights[0].value
        dtype = weights[0].dtype if eight_bits else ir.DataType.FLOAT16
        shapes = [w.value.const_value.shape.numpy() for w in weights if w.value.const_value is not None]
        dims = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        key_of_step = None if step is None else (float(step), *(w.scale.tobytes() for w in weights))
        key = (*((w.value, w.zero.tobytes(), w.axis) for w in weights), turned, eight_bits, key_of_step)

        def evaluate() -> np.ndarray:
            parts = [constant(w.value) if eight_bits else w.centered(step) for w in weights]
            codes = np.concatenate([p for p in parts if p is not None], axis=-1)
            return np.ascontiguousarray(codes.T if turned else codes).astype(dtype.numpy())

        if key not in self._weights:
            shape = dims[::-1] if turned else dims
            name = "+".join(str(w.value.name) for w in weights) + (_SUFFIX_8 if eight_bits else SUFFIX)
            self._weights[key] = new.lazy(name, evaluate, dtype, shape)
        return self._weights[key]

    def _in_sixteen_bits(self, codes: Codes) -> ir.Value:
        """The codes minus their zero point as float16, computed once behind what makes the codes."""
        key = codes.value, int(codes.zero)
        if key not in self._sixteen:
            producer = codes.value.producer()
            new = NewNodes(self._graph, next(iter(self._graph)) if producer is None else producer, after=producer)
            exact, sixteen = codes.value, ir.DataType.FLOAT16
            if codes.dtype not in FLOAT8:
                operands = [codes.value, new.constant(np.float32(1)), new.constant(codes.zero)]
                exact = new.add("DequantizeLinear", operands, ir.DataType.FLOAT)
            self._sixteen[key] = new.add("Cast", [exact], sixteen, [ir.AttrInt64("to", int(sixteen))])
        return self._sixteen[key]


def _maker(sixteen: ir.Value) -> ir.Node | None:
    """The DQ of scale 1 in front of the Cast to 16 bits."""
    cast = sixteen.producer()
    return None if cast is None or cast.inputs[0] is None else cast.inputs[0].producer()


def _reads_float16(node: ir.Node, zero: int) -> bool:
    """Whether a node is a DQ to float16 of codes with this zero point, and of one scale."""
    if not is_dequantize(node) or not is_plain(node) or dtype_of(node.inputs[1]) != ir.DataType.FLOAT16:
        return False
    point = scalar(node.inputs[2]) if len(node.inputs) > 2 else None
    return (0 if point is None else int(point.reshape(()))) == zero
