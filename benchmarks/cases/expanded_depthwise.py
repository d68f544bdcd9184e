"""The 1x1 and depthwise convolutions that kernels.expanded_depthwise measures: as ONNX, as torch, and their bytes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

_OPSET = 22
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
_ELEMENTS = {"f16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}


@dataclasses.dataclass(frozen=True)
class ExpandedCase:
    """A 1x1 convolution of [batch, side, side, narrow] to `wide` channels, an activation, a depthwise convolution with
    "same" padding, and the activation again; both convolutions have a bias. activation: silu, relu or hardswish."""

    batch: int
    side: int
    narrow: int
    wide: int
    kernel: int
    stride: int
    activation: str = "silu"
    dtype: str = "f16"

    @property
    def name(self) -> str:
        window = f"{self.dtype}_k{self.kernel}s{self.stride}"
        return f"{window}_{self.batch}x{self.side}x{self.narrow}_to_{self.wide}_{self.activation}"

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    @property
    def x_shape(self) -> tuple[int, ...]:
        return self.batch, self.side, self.side, self.narrow

    @property
    def y_shape(self) -> tuple[int, ...]:
        side = (self.side - 1) // self.stride + 1
        return self.batch, side, side, self.wide

    @property
    def behind(self) -> str:
        """What the buffers of benchmarks/kernels/depthwise.py go by: no residual."""
        return self.activation

    def bytes(self) -> int:
        """What must be read and written: x and y."""
        return 2 * (math.prod(self.x_shape) + math.prod(self.y_shape))

    def constants(self) -> dict[str, np.ndarray]:
        """In float32, rounded to the case's dtype."""
        rng = np.random.default_rng([self.narrow, self.wide, self.kernel])
        made = {
            "w1": rng.standard_normal((self.wide, self.narrow)) / math.sqrt(self.narrow),
            "b1": rng.standard_normal(self.wide),
            "w2": rng.standard_normal((self.kernel, self.kernel, 1, self.wide)) / self.kernel,
            "b2": rng.standard_normal(self.wide),
        }
        return {k: torch.from_numpy(v).to(self.torch_dtype).float().numpy() for k, v in made.items()}

    def model(self) -> onnx.ModelProto:
        """In the form that the layout pass writes."""
        make, element = helper.make_node, _ELEMENTS[self.dtype]
        window = {"kernel_shape": [self.kernel] * 2, "strides": [self.stride] * 2, "pads": [self.kernel // 2] * 4}
        nodes = [
            make("Reshape", ["w1", "dims"], ["w1_4"]),
            make("Transpose", ["t"], ["t_nchw"], perm=[0, 3, 1, 2]),
            make("Conv", ["t_nchw", "w1_4", "b1"], ["e_nchw"]),
            make("Transpose", ["e_nchw"], ["e"], perm=[0, 2, 3, 1]),
            *self._activated("e", "f"),
            make("Transpose", ["w2"], ["w2_krs"], perm=[3, 2, 0, 1]),
            make("Transpose", ["f"], ["f_nchw"], perm=[0, 3, 1, 2]),
            make("Conv", ["f_nchw", "w2_krs", "b2"], ["v_nchw"], group=self.wide, **window),
            make("Transpose", ["v_nchw"], ["v"], perm=[0, 2, 3, 1]),
            *self._activated("v", "y"),
        ]
        for number, node in enumerate(nodes):
            node.name = f"node{number}"
        stored = [helper.make_tensor(k, element, v.shape, v.ravel().tolist()) for k, v in self.constants().items()]
        stored.append(numpy_helper.from_array(np.array([self.wide, self.narrow, 1, 1]), "dims"))
        info = helper.make_tensor_value_info
        infos = [info("t", element, self.x_shape), info("y", element, self.y_shape)]
        graph = helper.make_graph(nodes, self.name, infos[:1], infos[1:], stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)

    def _activated(self, x: str, y: str) -> list[onnx.NodeProto]:
        make = helper.make_node
        if self.activation == "silu":
            return [make("Sigmoid", [x], [f"{y}_s"]), make("Mul", [x, f"{y}_s"], [y])]
        return [make({"relu": "Relu", "hardswish": "HardSwish"}[self.activation], [x], [y])]

    def expected(self, t: torch.Tensor, _residual: None) -> torch.Tensor:
        """The result in float64, [N, Ho, Wo, wide]; what lies between is rounded as the graph stores it."""
        of = {k: torch.from_numpy(v).to(t.device).double() for k, v in self.constants().items()}
        apply = {"silu": functional.silu, "relu": functional.relu, "hardswish": functional.hardswish}[self.activation]
        wide = functional.linear(t.double(), of["w1"], of["b1"]).to(self.torch_dtype).double()
        wide = apply(wide).to(self.torch_dtype).double().permute(0, 3, 1, 2)
        weight = of["w2"].permute(3, 2, 0, 1)
        v = functional.conv2d(wide, weight, of["b2"], self.stride, self.kernel // 2, 1, self.wide)
        return apply(v.permute(0, 2, 3, 1))

    @property
    def is_swept(self) -> bool:
        """Whether other tiles are measured too."""
        return self.dtype == "f16" and self.batch == 32

    def limits(self) -> tuple[float, float]:
        """Relative and absolute error that a result may have: a wide element may be rounded the other way, and what
        is between the sum and a SiLU is rounded in some kernels and not in others."""
        eps = torch.finfo(self.torch_dtype).eps
        return 1.25 * eps, 5 * eps


CASES = (
    ExpandedCase(32, 112, 16, 96, 3, 2), ExpandedCase(32, 56, 24, 144, 3, 1), ExpandedCase(32, 56, 24, 144, 5, 2),
    ExpandedCase(32, 28, 40, 240, 5, 1), ExpandedCase(32, 28, 40, 240, 3, 2), ExpandedCase(32, 14, 80, 480, 3, 1),
    ExpandedCase(32, 14, 80, 480, 5, 1), ExpandedCase(16, 56, 24, 72, 3, 1, "relu"),
    ExpandedCase(16, 112, 16, 64, 3, 2, "relu"), ExpandedCase(16, 28, 40, 120, 5, 1, "relu"),
    ExpandedCase(16, 14, 80, 184, 3, 1, "hardswish"), ExpandedCase(16, 28, 32, 192, 3, 1, "relu"),
    ExpandedCase(16, 14, 64, 384, 3, 1, "relu"), ExpandedCase(1, 112, 16, 96, 3, 2), ExpandedCase(1, 56, 24, 144, 3, 1),
    ExpandedCase(8, 75, 24, 88, 3, 1), ExpandedCase(32, 56, 24, 144, 3, 1, "silu", "bf16"),
)  # fmt: skip
