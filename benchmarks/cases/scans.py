"""The scans that benchmarks/kernels/scan.py measures: as ONNX, as torch, and the bytes they must move."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import onnx
import torch

Shape = tuple[int, ...]
_TEXT = {"float32": "float", "float64": "double"}  # of onnx's text syntax, where it is not the dtype's name
_PAD = 1


def _total(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cumsum(x, axis, dtype=x.dtype)


def _nucleus(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.where(_total(x, axis) - x <= 0.9, x, 0.0)


def _positions(x: torch.Tensor, axis: int) -> torch.Tensor:
    mask = (x != _PAD).to(x.dtype)
    return _total(mask, axis) * mask + _PAD


def _decay(x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.exp(_total(x, axis) * 0.001)


def _backwards(x: torch.Tensor, axis: int) -> torch.Tensor:
    return _total(x.flip(axis), axis).flip(axis) - x


# kind: body over x and the constants axis and pad, and the same in torch
_KINDS: dict[str, tuple[str, Callable[[torch.Tensor, int], torch.Tensor]]] = {
    "cumsum": ("y = CumSum(x, axis)", _total),
    "nucleus": (
        "c = CumSum(x, axis) b = Sub(c, x) k = LessOrEqual(b, most) y = Where(k, x, none)", _nucleus,
    ),
    "positions": (
        "e = Equal(x, pad) n = Not(e) m = Cast<to = {element}>(n) c = CumSum(m, axis) p = Mul(c, m) y = Add(p, pad)",
        _positions,
    ),
    "decay": ("c = CumSum(x, axis) s = Mul(c, rate) y = Exp(s)", _decay),
    "backwards": ("y = CumSum<exclusive = 1, reverse = 1>(x, axis)", _backwards),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ScanCase:
    """One scan at one shape."""

    kind: str
    dtype: str
    shape: Shape
    axis: int = -1

    @property
    def name(self) -> str:
        axis = f"_axis{self.axis}" if self.axis != -1 else ""
        return f"{self.kind}_{self.dtype}_{'x'.join(map(str, self.shape))}{axis}"

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    def bytes(self) -> int:
        """What must be read and written."""
        return 2 * math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    def model(self) -> onnx.ModelProto:
        text = f"{_TEXT.get(self.dtype, self.dtype)}"
        dims = ",".join(map(str, self.shape))
        constants = [f"int64 axis = {{{self.axis}}}"]
        if self.kind == "positions":
            constants.append(f"{text} pad = {{{_PAD}}}")
        for name, value in {"nucleus": {"most": 0.9, "none": 0.0}, "decay": {"rate": 0.001}}.get(self.kind, {}).items():
            constants.append(f"{text} {name} = {{{value}}}")
        element = 7 if self.dtype == "int64" else 6
        body = _KINDS[self.kind][0].format(element=element)
        header = '<ir_version: 10, opset_import: ["" : 21]>'
        return onnx.parser.parse_model(
            f"{header} g ({text}[{dims}] x) => ({text}[{dims}] y) <{', '.join(constants)}> {{ {body} }}"
        )

    def inputs(self, seed: int, device: str) -> torch.Tensor:
        """Probabilities, ids of which many are the padding, or numbers around 0."""
        generator = torch.Generator(device).manual_seed(seed)
        given = {"generator": generator, "device": device}
        if not self.torch_dtype.is_floating_point:
            return torch.randint(0, 4, self.shape, dtype=self.torch_dtype, **given)
        drawn = torch.randn(self.shape, **given)
        return (drawn.softmax(self.axis) if self.kind == "nucleus" else drawn).to(self.torch_dtype)

    def function(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The same in torch, in the input's dtype."""
        return lambda x: _KINDS[self.kind][1](x, self.axis)

    def limits(self, x: torch.Tensor) -> tuple[float, float]:
        """What a result may differ from float64's by, relative and absolute: 32 roundings of sums, and the result's."""
        if not self.torch_dtype.is_floating_point:
            return 0.0, 0.0
        eps = torch.finfo(torch.float64 if self.dtype == "float64" else torch.float32).eps
        largest = float(x.double().abs().cumsum(self.axis).max()) if x.numel() else 0.0
        return torch.finfo(self.torch_dtype).eps, 32 * eps * max(largest, 1e-6)
