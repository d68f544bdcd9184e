"""The depthwise convolutions that kernels.depthwise measures: as ONNX in NHWC, as torch, and their bytes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

_OPSET = 22
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
_ELEMENTS = {"f16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16, "f32": onnx.TensorProto.FLOAT}
# name -> nodes from v to y, and nodes from t to x. c: one element a channel; r: of the result's shape
_BEHIND = {
    "none": "y = Identity(v)",
    "silu": "s = Sigmoid(v)  y = Mul(v, s)",
    "relu6": "y = Clip(v, zero, six)",
    "silu_residual": "s = Sigmoid(v)  m = Mul(v, s)  y = Add(m, r)",
    "gelu": "y = Gelu(v)",
}
_FRONT = {
    "": "",
    "relu6": "b = Add(t, c)  x = Clip(b, zero, six)",
    "silu": "b = Add(t, c)  f = Sigmoid(b)  x = Mul(b, f)",
}


@dataclasses.dataclass(frozen=True)
class DepthwiseCase:
    """A convolution with bias of [batch, side, side, channels], "same" padding, and what stands in front and behind."""

    dtype: str
    kernel: int
    stride: int
    batch: int
    side: int
    channels: int
    behind: str = "silu"
    front: str = ""
    dilation: int = 1

    @property
    def name(self) -> str:
        dilation = f"d{self.dilation}" * (self.dilation > 1)
        of = f"{self.dtype}_k{self.kernel}s{self.stride}{dilation}_{self.batch}x{self.side}x{self.channels}"
        return f"{of}_{self.behind}" + (f"_behind_{self.front}" if self.front else "")

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    @property
    def pad(self) -> int:
        return (self.kernel - 1) * self.dilation // 2

    @property
    def x_shape(self) -> tuple[int, ...]:
        return self.batch, self.side, self.side, self.channels

    @property
    def y_shape(self) -> tuple[int, ...]:
        out = (self.side + 2 * self.pad - (self.kernel - 1) * self.dilation - 1) // self.stride + 1
        return self.batch, out, out, self.channels

    def bytes(self) -> int:
        """What must be read and written: x, the residual, y."""
        outputs = math.prod(self.y_shape) * (2 if self.behind == "silu_residual" else 1)
        return (math.prod(self.x_shape) + outputs) * self.torch_dtype.itemsize

    def constants(self) -> dict[str, np.ndarray]:
        """In float32, rounded to the case's dtype."""
        rng = np.random.default_rng(self.kernel + self.channels)
        made = {
            "w": rng.standard_normal((self.kernel, self.kernel, 1, self.channels)) / self.kernel,
            "bias": rng.standard_normal(self.channels),
            "c": rng.standard_normal(self.channels),
        }
        rounded = {k: torch.from_numpy(v).to(self.torch_dtype).float().numpy() for k, v in made.items()}
        return rounded | {"zero": np.float32(0), "six": np.float32(6)}  # type: ignore[dict-item]

    def model(self) -> onnx.ModelProto:
        """In the form that the layout pass writes."""
        element = _ELEMENTS[self.dtype]
        pads = [self.pad] * 4
        nodes = [
            *_nodes(_FRONT[self.front]),
            helper.make_node("Transpose", ["x" if self.front else "t"], ["x_nchw"], perm=[0, 3, 1, 2]),
            helper.make_node("Transpose", ["w"], ["w_krs"], perm=[3, 2, 0, 1]),
            helper.make_node(
                "Conv", ["x_nchw", "w_krs", "bias"], ["v_nchw"], group=self.channels, pads=pads,
                strides=[self.stride] * 2, dilations=[self.dilation] * 2, kernel_shape=[self.kernel] * 2,
            ),
            helper.make_node("Transpose", ["v_nchw"], ["y" if self.behind == "none" else "v"], perm=[0, 2, 3, 1]),
            *(_nodes(_BEHIND[self.behind]) if self.behind != "none" else []),
        ]  # fmt: skip
        used = {name for node in nodes for name in node.input}
        constants = [
            helper.make_tensor(k, element, v.shape, v.ravel().tolist()) if self.dtype == "bf16"
            else numpy_helper.from_array(v.astype(np.float16 if self.dtype == "f16" else np.float32), k)
            for k, v in self.constants().items() if k in used
        ]  # fmt: skip
        info = helper.make_tensor_value_info
        inputs = [info("t", element, self.x_shape)]
        if "r" in used:
            inputs.append(info("r", element, self.y_shape))
        graph = helper.make_graph(nodes, self.name, inputs, [info("y", element, self.y_shape)], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)

    def expected(self, t: torch.Tensor, r: torch.Tensor | None) -> torch.Tensor:
        """The result in float64, [N, Ho, Wo, C], of inputs in the case's dtype."""
        constants = {k: torch.as_tensor(v, dtype=torch.float64, device=t.device) for k, v in self.constants().items()}
        x = t.double()
        if self.front:
            x = x + constants["c"]
            x = x.clamp(0, 6) if self.front == "relu6" else functional.silu(x)
            x = x.to(self.torch_dtype).double()
        v = functional.conv2d(
            x.permute(0, 3, 1, 2), constants["w"].permute(3, 2, 0, 1), constants["bias"], self.stride, self.pad,
            self.dilation, self.channels,
        ).permute(0, 2, 3, 1)  # fmt: skip
        if self.behind.startswith("silu"):
            v = functional.silu(v)
        elif self.behind == "relu6":
            v = v.clamp(0, 6)
        elif self.behind == "gelu":
            v = functional.gelu(v)
        return v if r is None else v + r.double()

    def limits(self) -> tuple[float, float]:
        """Relative and absolute error that a result may have."""
        eps = torch.finfo(self.torch_dtype).eps
        rounds = self.front or self.behind == "silu_residual"  # also what the graph stores in between
        return (1.25 * eps, 3 * eps + 1e-5) if rounds else (0.75 * eps, 0.5 * eps + 1e-5)


def _nodes(text: str) -> list[onnx.NodeProto]:
    made = []
    for line in (part for part in text.split("  ") if part):
        result, call = line.split(" = ")
        op, operands = call.rstrip(")").split("(")
        made.append(helper.make_node(op, operands.split(", "), [result]))
    return made


def _case(dtype: str, kernel: int, stride: int, batch: int, side: int, channels: int, **more: str) -> DepthwiseCase:
    return DepthwiseCase(dtype, kernel, stride, batch, side, channels, **more)


_LAYERS = (
    ("f16", 3, 1, 1, 56, 144), ("f16", 3, 1, 32, 7, 1152), ("f16", 3, 1, 32, 14, 480), ("f16", 3, 1, 32, 56, 144),
    ("f16", 3, 1, 32, 112, 32), ("f16", 3, 1, 64, 14, 384), ("f16", 3, 1, 64, 14, 576), ("f16", 3, 1, 64, 28, 144),
    ("f16", 3, 1, 64, 28, 192), ("f16", 3, 1, 64, 56, 144), ("f16", 3, 1, 64, 112, 32), ("f16", 3, 1, 8, 80, 128),
    ("f16", 3, 1, 8, 40, 256), ("f16", 3, 2, 32, 28, 240), ("f16", 3, 2, 32, 112, 96), ("f16", 3, 2, 64, 112, 96),
    ("f16", 5, 1, 32, 7, 1152), ("f16", 5, 1, 32, 14, 480), ("f16", 5, 1, 32, 14, 672), ("f16", 5, 1, 32, 28, 240),
    ("f16", 5, 1, 128, 28, 240), ("f16", 5, 2, 32, 14, 672), ("f16", 5, 2, 32, 56, 144), ("f16", 7, 1, 16, 7, 768),
    ("f16", 7, 1, 16, 14, 384), ("f16", 7, 1, 16, 28, 192), ("f16", 7, 1, 16, 56, 96), ("f16", 9, 1, 16, 28, 192),
    ("f16", 3, 1, 32, 56, 37), ("bf16", 3, 1, 64, 56, 144), ("bf16", 5, 1, 32, 28, 240), ("bf16", 7, 1, 16, 56, 96),
    ("f32", 3, 1, 32, 14, 480), ("f32", 3, 1, 32, 56, 144), ("f32", 3, 1, 32, 112, 32), ("f32", 3, 2, 32, 112, 96),
    ("f32", 5, 1, 32, 14, 672), ("f32", 5, 1, 32, 28, 240), ("f32", 5, 2, 32, 56, 144), ("f32", 7, 1, 16, 7, 768),
    ("f32", 7, 1, 16, 14, 384), ("f32", 7, 1, 16, 28, 192), ("f32", 7, 1, 16, 56, 96), ("f32", 11, 1, 16, 28, 96),
)  # fmt: skip
_FRONTED = (
    ("f16", 3, 1, 32, 112, 32), ("f16", 3, 1, 64, 56, 144), ("f16", 3, 1, 64, 14, 384), ("f16", 3, 2, 32, 112, 96),
    ("f16", 5, 1, 32, 28, 240), ("f16", 5, 2, 32, 56, 144), ("f16", 7, 1, 16, 28, 192), ("f32", 3, 1, 32, 56, 144),
)  # fmt: skip
_RESIDUAL = (("f16", 3, 1, 64, 56, 144), ("f16", 3, 1, 64, 112, 32), ("f16", 7, 1, 16, 28, 192))
CASES = (
    *(_case(*layer) for layer in _LAYERS),
    *(_case(*layer, front=front) for layer in _FRONTED for front in ("relu6", "silu")),
    *(_case(*layer, behind="silu_residual") for layer in _RESIDUAL),
    *(_case("f16", 3, 1, 64, 112, 32, behind=behind) for behind in ("none", "relu6", "gelu")),
    *(_case("f16", 7, 1, 16, side, c, behind="none") for side, c in ((56, 96), (28, 192), (14, 384), (7, 768))),
    DepthwiseCase("f16", 3, 1, 8, 64, 96, dilation=2),
)
