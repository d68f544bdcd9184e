"""Pools between the Transposes of the layout pass, and what they should give."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper

from cases.models import fused_model, graph, numpy_dtype, text_dtype
from cases.table import INF, NAN, Row, Table
from onnxopt.graph.layout.orders import to_channels_first, to_channels_last
from onnxopt.program.pool import DTYPES, OPERATIONS, Pool
from onnxopt.program.window import Depth, Window

_OP = {operation: op for op, operation in OPERATIONS.items()}


def attributes(pool: Pool) -> dict[str, Any]:
    """The attributes of the ONNX operator."""
    of, (top, left, bottom, right) = pool.window, pool.window.pads
    depths = () if of.depth is None else (of.depth,)
    named: dict[str, Any] = {
        "kernel_shape": (*(depth.kernel for depth in depths), *of.kernel),
        "strides": (*(depth.stride for depth in depths), *of.strides),
        "dilations": (*(depth.dilation for depth in depths), *of.dilations),
    }
    front, back = [depth.front for depth in depths], [depth.back for depth in depths]
    pads = (*front, top, left, *back, bottom, right)
    named |= {"auto_pad": of.auto_pad} if of.auto_pad != "NOTSET" else {"pads": pads}
    if pool.ceil_mode:
        named["ceil_mode"] = 1
    return named | ({"count_include_pad": 1} if pool.count_include_pad else {})


def nodes(pool: Pool, x: str = "x", y: str = "y", suffix: str = "") -> str:
    """The pool between Transposes, as text."""
    written = ", ".join(f"{k} = {_text(v)}" for k, v in attributes(pool).items())
    rank = 4 if pool.window.depth is None else 5
    first, last = list(to_channels_first(rank)), list(to_channels_last(rank))
    return (
        f"t{suffix} = Transpose<perm = {first}>({x})  p{suffix} = {_OP[pool.operation]}<{written}>(t{suffix})"
        f"  {y} = Transpose<perm = {last}>(p{suffix})"
    )


def model(pool: Pool, dims: str = "") -> ir.Model:
    """Of one pool: x to y."""
    dtype = text_dtype(pool.dtype)
    dims = dims or ("N, H, W, C" if pool.window.depth is None else "N, D, H, W, C")
    return graph(f"{dtype}[{dims}] x", f"{dtype}[] y", nodes(pool), opset=22)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def of(operation: str, dtype: str, kernel: tuple[int, int], **fields: Any) -> Pool:
    """fields: of Window and Pool."""
    window = {k: fields.pop(k) for k in ("strides", "dilations", "pads", "auto_pad", "depth") if k in fields}
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
    turned = np.ascontiguousarray(x.transpose(to_channels_first(x.ndim)))
    (y,) = session.run(None, {"x": turned if is_byte else turned.astype(np.float32)})
    y = y.transpose(to_channels_last(x.ndim))
    return y.astype(x.dtype) if pool.operation == "max" else y


@dataclasses.dataclass(frozen=True)
class Case:
    """x: [N, H, W, C] or [N, D, H, W, C], which the model does not state."""

    pool: Pool
    x: tuple[int, ...]

    @property
    def stored(self) -> str:
        """The dtype of the result."""
        return self.pool.dtype

    def sizes(self) -> tuple[int, ...]:
        """What a call states: batch, height, width and channels, and the depth of a volume, whose planes are images
        where the window sees one at a time."""
        depth = self.pool.window.depth
        if depth is not None and depth.is_pointwise:
            return (self.x[0] * self.x[1], *self.x[-3:])
        return (self.x[0], *self.x[-3:], *self.x[1:-3])

    def model(self) -> onnx.ModelProto:
        return ir.to_proto(model(self.pool))

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([seed, *self.x])
        dtype = numpy_dtype(self.pool.dtype)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            return {"x": rng.integers(info.min, info.max, self.x, dtype, endpoint=True)}
        return {"x": rng.standard_normal(self.x).astype(dtype)}

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """Not-a-number is its windows' max, as of ONNX Runtime's CUDA kernel; its CPU kernel depends on the order."""
        x = feeds["x"].astype(feeds["x"].dtype if feeds["x"].dtype.kind in "iu" else np.float32)
        y = expected(self.pool, np.nan_to_num(x, nan=0.0, posinf=INF, neginf=-INF) if x.dtype.kind == "f" else x)
        if self.pool.operation == "max" and np.isnan(x).any():
            y = np.where(expected(self.pool, np.isnan(x).astype(np.float32)) > 0, NAN, y)
        return y


def error(case: Case, _: str, found: np.ndarray, right: np.ndarray) -> float:
    """The largest error as a multiple of the limit; maxima must agree."""
    wide = found.astype(np.float64)
    if wide.shape != right.shape or not np.array_equal(np.isnan(wide), np.isnan(right)):
        return INF
    limit = {"float16": 2.0**-10, "bfloat16": 2.0**-8}.get(case.stored, 2.0**-22)
    off = np.where(wide == right, 0, np.abs(wide - right) / (limit * (1 + np.abs(right))))
    off = off[~np.isnan(right)]
    return float(off.max(initial=0.0)) * (INF if case.pool.operation == "max" and off.any() else 1)


def random_pools() -> list[Pool]:
    """Always the same ones, no two alike."""
    rng = np.random.default_rng(15)
    drawn: dict[Pool, None] = {}
    while len(drawn) < 120:
        operation = str(rng.choice(list(DTYPES)))
        dtype = str(rng.choice(DTYPES[operation]))
        most = 14 if rng.random() < 0.2 else 6
        kernel, strides = (tuple(map(int, rng.integers(1, top, 2))) for top in (most, 4))
        dilations = tuple(map(int, rng.integers(1, 4, 2))) if rng.random() < 0.3 else (1, 1)
        pads = tuple(int(rng.integers(0, kernel[k % 2])) for k in range(4)) if rng.random() < 0.7 else (0, 0, 0, 0)
        auto_pad = str(rng.choice(["NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
        depth = _random_depth(rng, padded=auto_pad == "NOTSET") if len(drawn) >= 80 else None
        pool = of(
            operation, dtype, kernel, strides=strides, dilations=tuple(d if k > 1 else 1 for d, k in
            zip(dilations, kernel, strict=True)), pads=pads if auto_pad == "NOTSET" else (0, 0, 0, 0),
            auto_pad=auto_pad, ceil_mode=bool(rng.integers(2)),
            count_include_pad=operation == "average" and bool(rng.integers(2)), depth=depth,
        )  # fmt: skip
        if not pool.reason():
            drawn[pool] = None
    return list(drawn)


def _random_depth(rng: np.random.Generator, *, padded: bool) -> Depth:
    kernel, stride = (int(rng.integers(1, 4)) for _ in range(2))
    front, back = (int(rng.integers(0, kernel)) if padded else 0 for _ in range(2))
    return Depth(kernel, stride, int(rng.integers(1, 3)) if kernel > 1 else 1, front, back)


def _random_cases() -> Iterator[Case]:
    """Several sizes of each."""
    rng = np.random.default_rng(0)
    for pool in random_pools():
        covered = [d * (side - 1) + 1 for d, side in zip(pool.window.dilations, pool.window.kernel, strict=True)]
        for _ in range(4):
            height, width = (int(c + rng.integers(0, 30)) for c in covered)
            channels, depth = int(rng.choice((1, 3, 16, 37, 40, 64))), pool.window.depth
            planes = () if depth is None else (int(depth.dilation * (depth.kernel - 1) + 1 + rng.integers(0, 5)),)
            yield Case(pool, (int(rng.integers(1, 4)), *planes, height, width, channels))


_FLOATS = (
    Case(of("max", "float32", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (2, 7, 9, 16)),
    Case(of("max", "float32", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (1, 8, 6, 37)),
    Case(of("max", "float32", (13, 13), pads=(6, 6, 6, 6)), (1, 6, 5, 16)),
    Case(of("max", "float32", (2, 19), pads=(0, 9, 0, 9)), (1, 4, 21, 1)),
    Case(of("max", "float32", (3, 2), dilations=(2, 3), pads=(2, 1, 1, 1)), (1, 7, 8, 37)),
    Case(of("max", "float32", (2, 1), dilations=(2, 1), pads=(1, 0, 1, 0)), (1, 1, 2, 4)),  # padding alone
    Case(of("max", "float32", (3, 3), strides=(2, 2), auto_pad="SAME_UPPER"), (1, 6, 7, 16)),
    Case(of("max", "float32", (4, 3), strides=(2, 1), auto_pad="SAME_LOWER"), (1, 7, 4, 16)),
    Case(of("max", "float32", (3, 3), strides=(2, 2), auto_pad="VALID"), (1, 8, 7, 16)),
    Case(of("max", "float32", (1, 1), strides=(3, 2)), (1, 7, 5, 1)),
    Case(of("max", "float32", (5, 5), strides=(3, 3), pads=(1, 1, 1, 1)), (1, 3, 4, 4)),  # larger than the input
    Case(of("average", "float32", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), (2, 7, 9, 16)),
    Case(of("average", "float32", (3, 3), pads=(1, 1, 1, 1), count_include_pad=True), (1, 5, 4, 37)),
    Case(of("average", "float32", (7, 7)), (2, 7, 7, 16)),
    Case(of("average", "float32", (2, 3), dilations=(2, 2), pads=(1, 2, 1, 1)), (1, 6, 7, 3)),
    Case(of("average", "float32", (2, 2), dilations=(2, 1), pads=(1, 1, 1, 1), count_include_pad=True), (1, 3, 3, 4)),
    Case(of("average", "float32", (2, 1), dilations=(2, 1), pads=(1, 0, 1, 0)), (1, 1, 2, 4)),
    Case(of("average", "float32", (2, 2), strides=(2, 2), auto_pad="SAME_LOWER"), (1, 5, 7, 16)),
)
_TWO = {"strides": (2, 2), "pads": (1, 1, 1, 1)}
_VOLUMES = (
    Case(of("max", "float32", (2, 2), strides=(2, 2), depth=Depth(2, 2)), (2, 4, 6, 8, 16)),
    Case(of("max", "float32", (3, 3), **_TWO, depth=Depth(3, 2, 1, 1, 1)), (2, 5, 7, 9, 37)),
    Case(of("max", "float16", (3, 3), pads=(1, 1, 1, 1), depth=Depth(3, 1, 1, 1, 1)), (1, 4, 5, 4, 64)),
    Case(of("max", "float32", (3, 3), **_TWO, depth=Depth(1, 2)), (2, 5, 7, 9, 16)),
    Case(of("max", "float32", (1, 1), depth=Depth(3, 1, 2, 2, 1)), (1, 6, 3, 4, 4)),
    Case(of("max", "float32", (3, 2), dilations=(2, 3), pads=(2, 1, 1, 1), depth=Depth(2, 1, 2)), (1, 5, 7, 8, 5)),
    Case(of("max", "float32", (3, 3), strides=(2, 2), auto_pad="SAME_UPPER", depth=Depth(3, 2)), (1, 6, 5, 7, 16)),
    Case(of("max", "float32", (2, 2), depth=Depth(2, 1, 3, 1, 1)), (1, 2, 4, 3, 4)),  # planes of padding alone
    Case(of("max", "float32", (3, 3), **_TWO, depth=Depth(3, 2, 1, 1, 1), ceil_mode=True), (1, 6, 8, 6, 4)),
    Case(of("max", "int8", (2, 2), strides=(2, 2), depth=Depth(2, 2)), (2, 5, 6, 7, 32)),
    Case(of("average", "float32", (3, 3), **_TWO, depth=Depth(3, 2, 1, 1, 1)), (2, 5, 7, 9, 16)),
    Case(of("average", "float32", (2, 3), pads=(1, 1, 1, 2), depth=Depth(2, 1, 1, 1, 0), count_include_pad=True),
         (1, 3, 5, 4, 37)),
    Case(of("average", "float32", (2, 2), dilations=(2, 1), depth=Depth(3, 1, 1, 1, 1)), (1, 3, 5, 4, 4)),
    Case(of("average", "bfloat16", (7, 7), depth=Depth(4)), (2, 4, 7, 7, 16)),
)  # fmt: skip
_FEWER_BITS = (
    Case(of("max", "bfloat16", (3, 3), strides=(2, 2), pads=(0, 1, 1, 0), ceil_mode=True), (1, 6, 9, 40)),
    Case(of("max", "bfloat16", (2, 2), strides=(2, 2)), (1, 5, 4, 3)),
    Case(of("max", "int8", (5, 5), pads=(2, 2, 2, 2)), (1, 5, 6, 16)),
    Case(of("max", "uint8", (3, 2), strides=(1, 2), pads=(1, 0, 1, 1)), (2, 4, 5, 48)),
    Case(of("max", "int8", (3, 3)), (1, 4, 5, 3)),
    Case(of("average", "bfloat16", (3, 3), strides=(2, 2), pads=(0, 0, 1, 1), ceil_mode=True), (1, 6, 8, 40)),
    Case(of("average", "float16", (3, 3), strides=(2, 2), pads=(0, 0, 1, 1), ceil_mode=True), (1, 6, 8, 40)),
)
_NAN = tuple(
    Case(of("max", dtype, (2, 1), dilations=dilations), (1, 7, 1, 8))
    for dtype in ("float32", "float16", "bfloat16")
    for dilations in ((1, 1), (2, 1))
)
DAMAGED = {
    "max_pool": of("max", "float16", (3, 2), strides=(2, 1), pads=(1, 1, 1, 0), ceil_mode=True),
    "average_pool": of("average", "float32", (3, 3), strides=(2, 2), auto_pad="SAME_LOWER"),
    "counted_pool": of("average", "float32", (2, 3), pads=(0, 1, 1, 2), count_include_pad=True),
}
_RANDOM = list(_random_cases())
TABLE = Table(
    "pool",
    (
        Row("float32", _FLOATS, ("w4d2a2", "w4d1a4", "w4d1a1", "w1d2a2", "w1d1a4", "w1d1a1")),
        Row("fewer bits", _FEWER_BITS, ("w8", "w16", "w1")),
        Row("volumes", _VOLUMES, ("w4d1a1", "w8d2a2")),
        Row("random volumes", tuple(_RANDOM[-160::13])),
        Row("more random", tuple(_RANDOM), exhaustive=True),
        Row("every tile of volumes", _VOLUMES[10:11], ("w4d1a1", "w4d2a1", "w4d1a2"), every=True),
        Row("every tile", _FLOATS[:1], ("w4d1a1", "w4d2a1", "w4d1a2"), every=True),
        Row("not a number", _NAN, changed=(("x", (0, 3, 0, 2), NAN), ("x", (0, 5, 0, 1), -INF))),
        Row(
            "images", (Case(DAMAGED["max_pool"], (2, 113, 111, 64)), Case(_FLOATS[0].pool, (70_000, 2, 3, 4))), gpu=True
        ),
        Row(
            "large volumes",
            (Case(_VOLUMES[2].pool, (2, 33, 47, 31, 64)), Case(_VOLUMES[0].pool, (1, 96, 96, 96, 32))),
            gpu=True,
        ),
    ),
    lambda case: fused_model(case.model()),
    error,
    damaged={name: (Case(pool, (2, 9, 10, 8)), Case(pool, (1, 3, 2, 3))) for name, pool in DAMAGED.items()},
)
