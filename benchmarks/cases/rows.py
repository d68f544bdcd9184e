"""The rowwise functions that benchmarks/kernels/rows.py measures: as ONNX, as torch, and the bytes they must move."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import onnx
import torch
from onnx import TensorProto, helper

Shape = tuple[int, ...]
_ELEMENT = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float32": TensorProto.FLOAT}
_EPSILON = 1e-5
_GROUPS = 32


def _layer_norm(x, g, b):
    return (torch.nn.functional.layer_norm(x, x.shape[-1:], g, b, _EPSILON),)


def _rms(x, g):
    y = x.float() if x.dtype != torch.float64 else x
    return (g * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + _EPSILON)).to(x.dtype),)


def _softmax(x):
    return (torch.softmax(x, -1),)


def _masked(x, m):
    return (torch.softmax(x * 0.125 + m, -1),)


def _residual_layer_norm(x, r, g, b):
    s = x + r
    return (*_layer_norm(s, g, b), s)


def _residual_rms(x, r, g):
    s = x + r
    return (*_rms(s, g), s)


def _group_silu(x, g, b):
    return (torch.nn.functional.silu(torch.nn.functional.group_norm(x, _GROUPS, g.flatten(), b.flatten(), _EPSILON)),)


def _mean(x):
    return (x.mean((2, 3), keepdim=True),)


def _softmax_channels(x):
    return (torch.softmax(x, 1),)


def _silu_mean(x):
    y = torch.nn.functional.silu(x)
    return (y, y.mean((2, 3), keepdim=True))


def _body(kind: str) -> str:
    """The function as onnx text without types; DTYPE stands for the element type."""
    rms = "c = Cast<to=1>(@) p = Pow(c, two) m = ReduceMean(p, last) e = Add(m, eps) q = Sqrt(e) i = Reciprocal(q)"
    rms += " n = Mul(c, i) h = Cast<to=DTYPE>(n) y0 = Mul(h, g)"
    norm = "y0 = LayerNormalization<axis=-1, epsilon=1e-5>(@, g, b)"
    group = "r = Reshape(x, split) n = InstanceNormalization<epsilon=1e-5>(r, ones, zeros) k = Reshape(n, back)"
    group += " a = Mul(k, g) c = Add(a, b) s = Sigmoid(c) y0 = Mul(c, s)"
    body = {
        "layernorm": norm.replace("@", "x"),
        "rmsnorm": rms.replace("@", "x"),
        "softmax": "y0 = Softmax<axis=-1>(x)",
        "masked_softmax": "s = Mul(x, scale) t = Add(s, m) y0 = Softmax<axis=-1>(t)",
        "residual_layernorm": f"y1 = Add(x, r) {norm.replace('@', 'y1')}",
        "residual_rmsnorm": f"y1 = Add(x, r) {rms.replace('@', 'y1')}",
        "groupnorm_silu": group,
        "softmax_channels": "y0 = Softmax<axis=1>(x)",
        "mean_hw": "y0 = ReduceMean(x, spatial)",
        "silu_mean_hw": "s = Sigmoid(x) y0 = Mul(x, s) y1 = ReduceMean(y0, spatial)",
    }
    return body[kind]


_FUNCTIONS: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "layernorm": _layer_norm, "rmsnorm": _rms, "softmax": _softmax, "masked_softmax": _masked,
    "residual_layernorm": _residual_layer_norm, "residual_rmsnorm": _residual_rms, "groupnorm_silu": _group_silu,
    "mean_hw": _mean, "silu_mean_hw": _silu_mean,
    "softmax_channels": _softmax_channels,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RowCase:
    """One function at one shape. mask: shape of masked_softmax's mask, by default one for all rows."""

    kind: str
    dtype: str
    shape: Shape
    mask: Shape | None = None

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.dtype}-{'x'.join(map(str, self.shape))}"

    @property
    def length(self) -> int:
        """Elements of a row."""
        if self.kind == "groupnorm_silu":
            return math.prod(self.shape[1:]) // _GROUPS
        if self.kind == "softmax_channels":
            return self.shape[1]
        return math.prod(self.shape[2:]) if "mean" in self.kind else self.shape[-1]

    def input_shapes(self) -> dict[str, Shape]:
        shapes = {"x": self.shape}
        if self.kind.startswith("residual"):
            shapes["r"] = self.shape
        if self.kind == "masked_softmax":
            shapes["m"] = self.mask or (1,) * (len(self.shape) - 1) + self.shape[-1:]
        parameter = (self.shape[1], 1, 1) if self.kind == "groupnorm_silu" else self.shape[-1:]
        if "norm" in self.kind:
            shapes["g"] = parameter
        if "layernorm" in self.kind or self.kind == "groupnorm_silu":
            shapes["b"] = parameter
        return shapes

    def output_shapes(self) -> list[Shape]:
        reduced = (*self.shape[:2], 1, 1)
        if self.kind == "mean_hw":
            return [reduced]
        return (
            [self.shape] + [self.shape] * self.kind.startswith("residual") + [reduced] * (self.kind == "silu_mean_hw")
        )

    def bytes(self) -> int:
        """What must be read and written, each tensor once."""
        size = 4 if self.dtype == "float32" else 2
        return size * sum(math.prod(s) for s in (*self.input_shapes().values(), *self.output_shapes()))

    def model(self) -> onnx.ModelProto:
        element = _ELEMENT[self.dtype]
        body = _body(self.kind).replace("DTYPE", str(element))
        if self.dtype == "float32":
            body = body.replace("c = Cast<to=1>(x)", "c = Identity(x)").replace(
                "c = Cast<to=1>(y1)", "c = Identity(y1)"
            )
            body = body.replace("h = Cast<to=1>(n)", "h = Identity(n)")
        text = f'<ir_version: 9, opset_import: ["" : 20]> g (float x) => (float y0) {{ {body} }}'
        graph = onnx.parser.parse_model(text).graph
        del graph.input[:], graph.output[:]
        infos = [helper.make_tensor_value_info(k, element, s) for k, s in self.input_shapes().items()]
        graph.input.extend(infos)
        graph.output.extend(
            helper.make_tensor_value_info(f"y{k}", element, s) for k, s in enumerate(self.output_shapes())
        )
        read = {name for node in graph.node for name in node.input}
        graph.initializer.extend(c for c in self._constants(element) if c.name in read)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)

    def _constants(self, element: int) -> list[onnx.TensorProto]:
        def tensor(name: str, kind: int, dims: Shape, values: list[float]) -> onnx.TensorProto:
            return helper.make_tensor(name, kind, dims, values)

        batch = self.shape[0]
        return [
            tensor("two", TensorProto.FLOAT, (), [2.0]),
            tensor("eps", TensorProto.FLOAT, (), [_EPSILON]),
            tensor("scale", element, (), [0.125]),
            tensor("last", TensorProto.INT64, (1,), [-1]),
            tensor("spatial", TensorProto.INT64, (2,), [2, 3]),
            tensor("split", TensorProto.INT64, (3,), [batch, _GROUPS, -1]),
            tensor("back", TensorProto.INT64, (len(self.shape),), list(self.shape)),
            tensor("ones", element, (_GROUPS,), [1.0] * _GROUPS),
            tensor("zeros", element, (_GROUPS,), [0.0] * _GROUPS),
        ]

    def inputs(self, seed: int, device: str, mean: float = 0.0) -> dict[str, torch.Tensor]:
        """Seeded inputs. mean: added to x, to make variances hard to compute."""
        generator = torch.Generator(device).manual_seed(seed)
        dtype = getattr(torch, self.dtype)
        drawn = {}
        for name, shape in self.input_shapes().items():
            value = torch.randn(shape, generator=generator, device=device)
            if name == "m":
                value = torch.where(value > 1.5, -30.0, 0.0)
            if name == "x":
                value = value + mean
            drawn[name] = (value + 1 if name == "g" else value).to(dtype)
        return drawn

    def function(self, precise: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The function on torch tensors. precise: in float64."""
        f = _FUNCTIONS[self.kind]
        return (lambda *a: f(*(t.double() for t in a))) if precise else f


def tolerance(case: RowCase) -> float:
    """What an output may differ from float64 by, relative and absolute."""
    return {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5}[case.dtype]
