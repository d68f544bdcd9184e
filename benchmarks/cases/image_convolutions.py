"""The convolutions of images that kernels.image_convolutions measures: as ONNX, as torch, and their bytes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.nn import functional

_OPSET = 22
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
_ELEMENTS = {"f16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16, "f32": onnx.TensorProto.FLOAT}


@dataclasses.dataclass(frozen=True)
class ImageCase:
    """A convolution with bias of x [batch, channels, height, width] to NHWC. behind: "none", "relu" or "silu"."""

    x_shape: tuple[int, int, int, int]
    filters: int
    kernel: int
    stride: int
    pad: int
    behind: str = "none"
    dtype: str = "f16"

    @property
    def name(self) -> str:
        of = "x".join(map(str, self.x_shape))
        return f"{self.dtype}_{of}_to{self.filters}_k{self.kernel}s{self.stride}_{self.behind}"

    @property
    def channels(self) -> int:
        return self.x_shape[1]

    @property
    def torch_dtype(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    @property
    def y_shape(self) -> tuple[int, ...]:
        n, _, *sides = self.x_shape
        return n, *((side + 2 * self.pad - self.kernel) // self.stride + 1 for side in sides), self.filters

    def bytes(self) -> int:
        """What must be read and written: x and y."""
        return (math.prod(self.x_shape) + math.prod(self.y_shape)) * self.torch_dtype.itemsize

    def constants(self) -> dict[str, np.ndarray]:
        """w [K, R, S, C] and bias in float32, rounded to the case's dtype."""
        rng = np.random.default_rng(self.kernel + self.filters)
        shape = (self.filters, self.kernel, self.kernel, self.channels)
        made = {"w": rng.standard_normal(shape) / self.kernel, "bias": rng.standard_normal(self.filters)}
        return {k: torch.from_numpy(v).to(self.torch_dtype).float().numpy() for k, v in made.items()}

    def model(self) -> onnx.ModelProto:
        """In the form that the layout pass writes: three channels of 16 bits get a fourth one."""
        make, element = helper.make_node, _ELEMENTS[self.dtype]
        appended = int(self.channels == 3 and self.dtype != "f32")
        constants = self.constants()
        constants["w"] = np.pad(constants["w"], [(0, 0)] * 3 + [(0, appended)])
        image = "padded" if appended else "t_nhwc"
        result = "y" if self.behind == "none" else "v"
        nodes = [
            make("Transpose", ["t"], ["t_nhwc"], perm=[0, 2, 3, 1]),
            *([make("Pad", ["t_nhwc", "amounts"], ["padded"])] if appended else []),
            make("Transpose", [image], ["x_nchw"], perm=[0, 3, 1, 2]),
            make("Transpose", ["w"], ["w_kcrs"], perm=[0, 3, 1, 2]),
            make(
                "Conv", ["x_nchw", "w_kcrs", "bias"], ["v_nchw"], kernel_shape=[self.kernel] * 2,
                strides=[self.stride] * 2, pads=[self.pad] * 4,
            ),
            make("Transpose", ["v_nchw"], [result], perm=[0, 2, 3, 1]),
            *([make("Relu", ["v"], ["y"])] if self.behind == "relu" else []),
            *([make("Sigmoid", ["v"], ["s"]), make("Mul", ["v", "s"], ["y"])] if self.behind == "silu" else []),
        ]  # fmt: skip
        stored = [helper.make_tensor(k, element, v.shape, v.ravel().tolist()) for k, v in constants.items()]
        if appended:
            stored.append(numpy_helper.from_array(np.array([0] * 7 + [1], np.int64), "amounts"))
        info = helper.make_tensor_value_info
        infos = [info("t", element, self.x_shape), info("y", element, self.y_shape)]
        graph = helper.make_graph(nodes, self.name, infos[:1], infos[1:], stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)

    def weight(self, **to: Any) -> torch.Tensor:
        """[K, C, R, S]"""
        return torch.from_numpy(self.constants()["w"]).permute(0, 3, 1, 2).to(**to)

    def expected(self, t: torch.Tensor, _residual: None) -> torch.Tensor:
        """The result in float64, [N, Ho, Wo, K], of inputs in the case's dtype."""
        exact = {"dtype": torch.float64, "device": t.device}
        bias = torch.from_numpy(self.constants()["bias"]).to(**exact)
        v = functional.conv2d(t.double(), self.weight(**exact), bias, self.stride, self.pad).permute(0, 2, 3, 1)
        return {"none": lambda: v, "relu": v.relu, "silu": lambda: functional.silu(v)}[self.behind]()

    def limits(self, exact: bool = False) -> tuple[float, float]:
        """Relative and absolute error that a result may have. exact: of float32 without TF32."""
        if self.dtype == "f32":
            return (1e-5, 2e-5) if exact else (1e-3, 1.2e-2)
        eps = torch.finfo(self.torch_dtype).eps
        return 0.75 * eps, 0.5 * eps + 1e-5

    @property
    def is_swept(self) -> bool:
        """Whether other tiles are measured too."""
        if self.dtype == "f32":
            return self.kernel == 7 or self.filters == 32
        return self.dtype == "f16" and self.filters != 48 and (self.behind != "none" or self.kernel != 3)


CASES = (
    ImageCase((32, 3, 224, 224), 64, 7, 2, 3, "relu"),  # ResNet
    ImageCase((8, 3, 640, 640), 32, 3, 2, 1, "silu"),  # a detector
    ImageCase((8, 3, 640, 640), 48, 3, 2, 1, "silu"),
    ImageCase((32, 3, 224, 224), 32, 3, 2, 1, "silu"),  # EfficientNet
    ImageCase((16, 3, 224, 224), 96, 4, 4, 0),  # ConvNeXt
    ImageCase((1, 3, 224, 224), 64, 7, 2, 3, "relu"),
    ImageCase((4, 4, 32, 32), 320, 3, 1, 1),  # UNet
    ImageCase((8, 1, 80, 3000), 64, 3, 2, 1, "relu"),  # audio
    ImageCase((32, 3, 224, 224), 64, 7, 2, 3, "relu", "bf16"),
    ImageCase((8, 3, 640, 640), 32, 3, 2, 1),
    ImageCase((32, 3, 224, 224), 64, 7, 2, 3, "relu", "f32"),
    ImageCase((1, 3, 224, 224), 64, 7, 2, 3, "relu", "f32"),
    ImageCase((8, 3, 640, 640), 32, 3, 2, 1, "silu", "f32"),
    ImageCase((32, 3, 224, 224), 32, 3, 2, 1, "silu", "f32"),
    ImageCase((16, 3, 224, 224), 96, 4, 4, 0, "none", "f32"),
    ImageCase((4, 4, 32, 32), 320, 3, 1, 1, "none", "f32"),
    ImageCase((8, 1, 80, 3000), 64, 3, 2, 1, "relu", "f32"),
    ImageCase((1, 3, 224, 224), 64, 11, 4, 2, "relu", "f32"),
)
