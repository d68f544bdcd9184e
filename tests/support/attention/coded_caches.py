"""Attention to a cache of 8-bit codes: spelled out with QuantizeLinear and DequantizeLinear, or one operator."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

HEADS, GROUPS, WIDTH = 4, 2, 16
CODES = {"int8": TensorProto.INT8, "float8e4m3fn": TensorProto.FLOAT8E4M3FN, "uint8": TensorProto.UINT8}
STORED = {"int8": np.dtype(np.int8), "float8e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn)}
_SHAPES = {"tensor": (), "head": (GROUPS,), "element": (WIDTH,), "channel": (1, GROUPS, 1, WIDTH)}
_AXES = {"head": 1, "element": 3}


@dataclasses.dataclass(frozen=True)
class Cache:
    """codes: dtype of the cache. per: what has a scale of its own; "channel" for GroupQueryAttention only.

    mask: elements of it per query and key. wide: scales are float32. zero: zero point. slots: the cache has room.
    numbers: tokens are joined as numbers, which ONNX's Concat takes of float8 too, and become codes then.
    """

    codes: str = "int8"
    per: str = "tensor"
    tokens: int = 1
    mask: bool = False
    wide: bool = False
    zero: int = 0
    slots: bool = False
    numbers: bool = False
    heads: int = HEADS
    dtype: int = TensorProto.FLOAT16

    def scales(self, which: str) -> np.ndarray:
        drawn = np.random.default_rng(ord(which)).uniform(0.02, 0.04, _SHAPES[self.per])
        return drawn.astype(np.float32 if self.wide else helper.tensor_dtype_to_np_dtype(self.dtype))


def operator(batch: int | str = "batch", past: int | str = "past", codes: str = "int8", **attributes: object):
    """GroupQueryAttention of one token with float32 scales of each channel as inputs, and its lengths as nodes."""
    info, half = helper.make_tensor_value_info, TensorProto.FLOAT16
    per = str(attributes.get("k_quant_type", "PER_CHANNEL"))
    scales = [1] if per == "PER_TENSOR" else [1, GROUPS, 1, WIDTH]
    inputs = [info("q", half, [batch, 1, HEADS * WIDTH])]
    inputs += [info(x, half, [batch, 1, GROUPS * WIDTH]) for x in "kv"]
    inputs += [info(f"p{x}", CODES[codes], [batch, GROUPS, past, WIDTH]) for x in "kv"]
    inputs += [info(f"s{x}", TensorProto.FLOAT, scales) for x in "kv"]
    constants = [numpy_helper.from_array(np.int32(1), "one"), numpy_helper.from_array(np.array([0]), "first")]
    nodes = [
        helper.make_node("Shape", ["pk"], ["length"], start=-2, end=-1),
        helper.make_node("Squeeze", ["length", "first"], ["scalar"]),
        helper.make_node("Cast", ["scalar"], ["before"], to=TensorProto.INT32),
        helper.make_node("Add", ["before", "one"], ["total"]),
        helper.make_node("Range", ["before", "total", "one"], ["each"]),
        helper.make_node("Shape", ["pk"], ["batch"], start=-4, end=-3),
        helper.make_node("Expand", ["each", "batch"], ["lengths"]),
    ]
    settings = {"num_heads": HEADS, "kv_num_heads": GROUPS, "scale": 0.25, "kv_cache_bit_width": 8}
    settings |= {"k_quant_type": per, "v_quant_type": per, **attributes}
    operands = ["q", "k", "v", "pk", "pv", "lengths", "total", *[""] * 5, "sk", "sv"]
    nodes.append(
        helper.make_node("GroupQueryAttention", operands, ["y", "nk", "nv"], domain="com.microsoft", **settings)
    )
    outputs = [info("y", half, None), info("nk", CODES[codes], None), info("nv", CODES[codes], None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def spelled_out(cache: Cache, batch: int | str = "batch", past: int | str = "past") -> onnx.ModelProto:
    """The attention as an exporter writes it: products and a Softmax behind DequantizeLinear of the longer cache."""
    return _SpelledOut(cache, batch, past).model()


class _SpelledOut:
    def __init__(self, cache: Cache, batch: int | str, past: int | str) -> None:
        self.cache, self.batch, self.past = cache, batch, past
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, inputs: list[str], out: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [out], out, **attributes))
        return out

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def keys(self, x: str) -> str:
        """Keys or values (B, heads, T, H), of the cache and of the new tokens; the longer cache is n + x."""
        c, dims = self.cache, np.array([0, 0, GROUPS, WIDTH])
        new = self.op("Reshape", [x, self.constant(f"{x}.dims", dims)], f"{x}.heads")
        order = [1, 0, 2, 3] if c.slots else [0, 2, 1, 3]
        new = self.op("Transpose", [new], f"{x}.turned", perm=order)
        scale, axis = self.constant(f"{x}.scale", c.scales(x)), _AXES.get(c.per)
        zeros = np.full(max(c.scales(x).size, 1), c.zero)
        dims_of_zeros = [] if c.per == "tensor" else [zeros.size]
        self.constants.append(helper.make_tensor(f"{x}.zero", CODES[c.codes], dims_of_zeros, zeros))
        if c.wide:
            new = self.op("Cast", [new], f"{x}.wide", to=TensorProto.FLOAT)
        of_new = {} if axis is None else {"axis": 2 if c.slots and axis == 1 else axis}
        of_all = {} if axis is None else {"axis": axis}
        if c.numbers:
            past = self.op("DequantizeLinear", [f"p{x}", scale, f"{x}.zero"], f"{x}.past", **of_all)
            joined = self.op("Concat", [past, new], f"{x}.joined", axis=2)
            held = self.op("QuantizeLinear", [joined, scale, f"{x}.zero"], f"n{x}", **of_all)
        else:
            codes = self.op("QuantizeLinear", [new, scale, f"{x}.zero"], f"{x}.codes", **of_new)
        if c.slots:
            held = self.op("Transpose", [f"p{x}"], f"{x}.tokens", perm=[2, 0, 1, 3])
            held = self.op("ScatterND", [held, "slots", codes], f"{x}.written")
            held = self.op("Transpose", [held], f"n{x}", perm=[1, 2, 0, 3])
        elif not c.numbers:
            held = self.op("Concat", [f"p{x}", codes], f"n{x}", axis=2)
        numbers = self.op("DequantizeLinear", [held, scale, f"{x}.zero"], f"{x}.numbers", **of_all)
        if c.wide:
            numbers = self.op("Cast", [numbers], f"{x}.narrow", to=c.dtype)
        if c.heads == GROUPS:
            return numbers
        wide = self.op("Unsqueeze", [numbers, self.constant(f"{x}.two", np.array([2]))], f"{x}.five")
        times = self.constant(f"{x}.times", np.array([1, 1, c.heads // GROUPS, 1, 1]))
        wide = self.op("Expand", [wide, times], f"{x}.each")
        return self.op("Reshape", [wide, self.constant(f"{x}.all", np.array([0, c.heads, -1, WIDTH]))], f"{x}.repeated")

    def model(self) -> onnx.ModelProto:
        c, info = self.cache, helper.make_tensor_value_info
        q = self.op("Reshape", ["q", self.constant("q.dims", np.array([0, 0, c.heads, WIDTH]))], "q.heads")
        q = self.op("Transpose", [q], "q.turned", perm=[0, 2, 1, 3])
        keys, values = map(self.keys, "kv")
        turned = self.op("Transpose", [keys], "k.columns", perm=[0, 1, 3, 2])
        factor = self.constant("factor", np.array(0.25, helper.tensor_dtype_to_np_dtype(c.dtype)))
        scores = self.op("Mul", [self.op("MatMul", [q, turned], "products"), factor], "scores")
        if c.mask:
            scores = self.op("Add", [scores, "mask"], "masked")
        y = self.op("MatMul", [self.op("Softmax", [scores], "weights", axis=-1), values], "sums")
        y = self.op("Transpose", [y], "y.turned", perm=[0, 2, 1, 3])
        self.op("Reshape", [y, self.constant("y.dims", np.array([0, 0, c.heads * WIDTH]))], "y")
        grown = 0 if c.slots else c.tokens
        total = self.past + grown if isinstance(self.past, int) else f"{self.past} + {grown}" if grown else self.past
        inputs = [info("q", c.dtype, [self.batch, c.tokens, c.heads * WIDTH])]
        inputs += [info(x, c.dtype, [self.batch, c.tokens, GROUPS * WIDTH]) for x in "kv"]
        inputs += [info(f"p{x}", CODES[c.codes], [self.batch, GROUPS, self.past, WIDTH]) for x in "kv"]
        if c.mask:
            inputs.append(info("mask", c.dtype, [self.batch, 1, c.tokens, total]))
        if c.slots:
            inputs.append(info("slots", TensorProto.INT64, [c.tokens, 1]))
        outputs = [info("y", c.dtype, None), *(info(f"n{x}", CODES[c.codes], None) for x in "kv")]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def drawn(rng: np.random.Generator, cache: Cache, batch: int) -> dict[str, np.ndarray]:
    dtype = helper.tensor_dtype_to_np_dtype(cache.dtype)
    found = {"q": rng.standard_normal((batch, cache.tokens, cache.heads * WIDTH)).astype(dtype)}
    return found | {x: rng.standard_normal((batch, cache.tokens, GROUPS * WIDTH)).astype(dtype) for x in "kv"}


def run(session: ort.InferenceSession, given: dict[str, np.ndarray], codes: str) -> list[np.ndarray]:
    """Codes of float8 go in and out as ONNX Runtime's own values, which numpy has no dtype for."""
    kind = {"int8": TensorProto.INT8, "float8e4m3fn": TensorProto.FLOAT8E4M3FN}[codes]
    values = {
        name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
            value.view(np.uint8 if value.dtype.itemsize == 1 else value.dtype), kind
        )
        if value.dtype == STORED[codes]
        else ort.OrtValue.ortvalue_from_numpy(value)
        for name, value in given.items()
    }
    return [v.numpy() for v in session.run_with_ort_values(None, values)]
