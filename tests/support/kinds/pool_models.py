"""Pools between the Transposes of the layout pass, and what they should give."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper

from onnxopt.program.pool import OPERATIONS, Pool
from onnxopt.program.window import Window
from tests.support.graphs import graph

TEXT = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16", "int8": "int8", "uint8": "uint8"}
_OP = {operation: op for op, operation in OPERATIONS.items()}


def attributes(pool: Pool) -> dict[str, Any]:
    """The attributes of the ONNX operator."""
    of = pool.window
    named: dict[str, Any] = {"kernel_shape": of.kernel, "strides": of.strides, "dilations": of.dilations}
    named |= {"auto_pad": of.auto_pad} if of.auto_pad != "NOTSET" else {"pads": of.pads}
    if pool.ceil_mode:
        named["ceil_mode"] = 1
    return named | ({"count_include_pad": 1} if pool.count_include_pad else {})


def nodes(pool: Pool, x: str = "x", y: str = "y", suffix: str = "") -> str:
    """The pool between Transposes, as text."""
    written = ", ".join(f"{k} = {_text(v)}" for k, v in attributes(pool).items())
    return (
        f"t{suffix} = Transpose<perm = [0, 3, 1, 2]>({x})  p{suffix} = {_OP[pool.operation]}<{written}>(t{suffix})"
        f"  {y} = Transpose<perm = [0, 2, 3, 1]>(p{suffix})"
    )


def model(pool: Pool, dims: str = "N, H, W, C") -> ir.Model:
    """Of one pool: x to y."""
    dtype = TEXT[pool.dtype]
    return graph(f"{dtype}[{dims}] x", f"{dtype}[] y", nodes(pool), opset=22)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def of(operation: str, dtype: str, kernel: tuple[int, int], **fields: Any) -> Pool:
    """fields: of Window and Pool."""
    window = {k: fields.pop(k) for k in ("strides", "dilations", "pads", "auto_pad") if k in fields}
    return Pool((dtype,), (dtype,), operation, Window(kernel, **window), **fields)


def expected(pool: Pool, x: np.ndarray) -> np.ndarray:
    """What ONNX Runtime's CPU kernel gives, in x's dtype for a max and in float32 for an average. x has no NaN."""
    is_byte = x.dtype.itemsize == 1
    kind = getattr(TensorProto, str(x.dtype).upper()) if is_byte else TensorProto.FLOAT
    node = helper.make_node(_OP[pool.operation], ["x"], ["y"], **attributes(pool))
    infos = [helper.make_tensor_value_info(n, kind, None) for n in "xy"]
    made = helper.make_model(
        helper.make_graph([node], "pool", infos[:1], infos[1:]), opset_imports=[helper.make_opsetid("", 22)],
        ir_version=10,
    )  # fmt: skip
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    turned = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    (y,) = session.run(None, {"x": turned if is_byte else turned.astype(np.float32)})
    y = y.transpose(0, 2, 3, 1)
    return y.astype(x.dtype) if pool.operation == "max" else y


def numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
