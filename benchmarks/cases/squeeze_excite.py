"""The blocks that benchmarks/kernels/squeeze_excite.py measures: as ONNX in NHWC, as torch, and their bytes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

_OPSET = 22


@dataclasses.dataclass(frozen=True)
class Block:
    """A depthwise convolution with bias and SiLU, the factors of its result, the result by its factors, and a 1x1
    convolution of that. Input [batch, side, side, channels], "same" padding, float16.

    depthwise: where False, the block begins with the mean of its input. count: of this block in EfficientNet-B0.
    """

    batch: int
    side: int
    channels: int
    hidden: int
    projected: int
    kernel: int = 3
    stride: int = 1
    depthwise: bool = True
    count: int = 0

    @property
    def name(self) -> str:
        window = f"k{self.kernel}s{self.stride}" if self.depthwise else "mean"
        return f"{window}_{self.batch}x{self.side}x{self.channels}_by_{self.hidden}_to_{self.projected}"

    @property
    def x_shape(self) -> tuple[int, ...]:
        return self.batch, self.side, self.side, self.channels

    @property
    def map_shape(self) -> tuple[int, ...]:
        side = (self.side - 1) // self.stride + 1
        return self.batch, side, side, self.channels

    @property
    def y_shape(self) -> tuple[int, ...]:
        return *self.map_shape[:3], self.projected

    def bytes(self) -> int:
        """What must be read and written: x, the map twice, y."""
        return 2 * (math.prod(self.x_shape) + 2 * math.prod(self.map_shape) + math.prod(self.y_shape))

    def constants(self) -> dict[str, np.ndarray]:
        """In float16."""
        rng = np.random.default_rng([self.channels, self.hidden, self.projected])

        def drawn(scale: float, *dims: int) -> np.ndarray:
            return (rng.standard_normal(dims, np.float32) * scale).astype(np.float16)

        c, h, k = self.channels, self.hidden, self.projected
        return {
            "w": drawn(1 / self.kernel, self.kernel, self.kernel, 1, c), "b": drawn(1.0, c),
            "w1": drawn(3 / math.sqrt(c), h, c), "b1": drawn(1.0, h),
            "w2": drawn(1 / math.sqrt(h), c, h), "b2": drawn(1.0, c),
            "w3": drawn(1 / math.sqrt(c), k, c), "b3": drawn(1.0, k),
        }  # fmt: skip

    def model(self) -> onnx.ModelProto:
        """In the form that the layout pass writes."""
        made = helper.make_node
        window = {"group": self.channels, "pads": [self.kernel // 2] * 4, "strides": [self.stride] * 2}
        nodes = [made("Identity", ["t"], ["v"])]
        if self.depthwise:
            nodes = [
                made("Transpose", ["w"], ["w_krs"], perm=[3, 2, 0, 1]),
                made("Transpose", ["t"], ["t_nchw"], perm=[0, 3, 1, 2]),
                made("Conv", ["t_nchw", "w_krs", "b"], ["c_nchw"], kernel_shape=[self.kernel] * 2, **window),
                made("Transpose", ["c_nchw"], ["c"], perm=[0, 2, 3, 1]),
                *_silu("c", "v"),
            ]
        nodes += [made("ReduceMean", ["v", "axes"], ["m"], keepdims=1), *self._product("m", "1", "p"), *_silu("p", "q")]
        nodes += [*self._product("q", "2", "r"), made("Sigmoid", ["r"], ["f"]), made("Mul", ["v", "f"], ["s"])]
        nodes += self._product("s", "3", "y")
        if not self.depthwise:
            nodes = nodes[1:]
            for node in nodes:
                node.input[:] = ["t" if name == "v" else name for name in node.input]
        used = {name for node in nodes for name in node.input}
        constants = [numpy_helper.from_array(a, k) for k, a in self.constants().items() if k in used]
        constants.append(numpy_helper.from_array(np.array([1, 2]), "axes"))
        for k, (rows, columns) in {"1": (self.hidden, self.channels), "2": (self.channels, self.hidden),
                                   "3": (self.projected, self.channels)}.items():  # fmt: skip
            constants.append(numpy_helper.from_array(np.array([rows, columns, 1, 1]), f"s{k}"))
        half = onnx.TensorProto.FLOAT16
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            nodes, self.name, [info("t", half, self.x_shape)], [info("y", half, self.y_shape)], constants
        )
        for number, node in enumerate(graph.node):
            node.name = f"node{number}"
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)

    def _product(self, x: str, k: str, y: str) -> list[onnx.NodeProto]:
        made = helper.make_node
        return [
            made("Reshape", [f"w{k}", f"s{k}"], [f"w{k}_4"]),
            made("Transpose", [x], [f"{x}_nchw{k}"], perm=[0, 3, 1, 2]),
            made("Conv", [f"{x}_nchw{k}", f"w{k}_4", f"b{k}"], [f"{y}_nchw"]),
            made("Transpose", [f"{y}_nchw"], [y], perm=[0, 2, 3, 1]),
        ]

    def expected(self, t: torch.Tensor) -> torch.Tensor:
        """The result in float64, [N, Ho, Wo, projected]; the map is rounded to float16, as all runs store it."""
        of = {k: torch.from_numpy(v).to(t.device).double() for k, v in self.constants().items()}
        v = t.double()
        if self.depthwise:
            x, w = v.permute(0, 3, 1, 2), of["w"].permute(3, 2, 0, 1)
            c = functional.conv2d(x, w, of["b"], self.stride, self.kernel // 2, 1, self.channels)
            v = functional.silu(c).permute(0, 2, 3, 1).half().double()
        q = functional.silu(functional.linear(v.mean((1, 2)), of["w1"], of["b1"]))
        f = functional.linear(q, of["w2"], of["b2"]).sigmoid()
        return functional.linear(v * f[:, None, None, :], of["w3"], of["b3"])


def _silu(x: str, y: str) -> list[onnx.NodeProto]:
    return [helper.make_node("Sigmoid", [x], [f"{y}_s"]), helper.make_node("Mul", [x, f"{y}_s"], [y])]


_B0 = (  # side, channels, hidden, projected, kernel, stride, count
    (112, 32, 8, 16, 3, 1, 1), (112, 96, 4, 24, 3, 2, 1), (56, 144, 6, 24, 3, 1, 1), (56, 144, 6, 40, 5, 2, 1),
    (28, 240, 10, 40, 5, 1, 1), (28, 240, 10, 80, 3, 2, 1), (14, 480, 20, 80, 3, 1, 2), (14, 480, 20, 112, 5, 1, 1),
    (14, 672, 28, 112, 5, 1, 2), (14, 672, 28, 192, 5, 2, 1), (7, 1152, 48, 192, 5, 1, 3), (7, 1152, 48, 320, 3, 1, 1),
)  # fmt: skip
BLOCKS = (
    *(Block(32, *row[:6], count=row[6]) for row in _B0),
    # one image, and many; the largest weights that a region takes; no depthwise convolution in front
    Block(1, 56, 144, 6, 24), Block(1, 7, 1152, 48, 192, 5), Block(1, 160, 32, 8, 16), Block(256, 14, 480, 20, 80),
    Block(256, 7, 1152, 48, 192, 5), Block(32, 7, 2048, 64, 256, 5), Block(32, 14, 888, 84, 888, depthwise=False),
    Block(32, 28, 336, 36, 336, depthwise=False),
)  # fmt: skip
