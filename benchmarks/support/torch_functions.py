"""An ONNX graph of elementwise and index operators as a torch function, for Inductor to compile the same region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

F = torch.nn.functional
Attributes = dict[str, Any]
_TORCH_DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip


def _div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _clip(x: torch.Tensor, low: Any = None, high: Any = None) -> torch.Tensor:
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


ELEMENTWISE: dict[str, Callable[..., torch.Tensor]] = {
    "Abs": torch.abs, "Add": torch.add, "And": torch.logical_and, "Cos": torch.cos, "Div": _div, "Equal": torch.eq,
    "Erf": torch.erf, "Exp": torch.exp, "Greater": torch.gt, "IsNaN": torch.isnan, "Less": torch.lt, "Log": torch.log,
    "LessOrEqual": torch.le, "GreaterOrEqual": torch.ge, "Max": torch.maximum, "Min": torch.minimum, "Mul": torch.mul,
    "Neg": torch.neg, "Not": torch.logical_not, "Or": torch.logical_or, "Reciprocal": torch.reciprocal,
    "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Sin": torch.sin, "Softplus": F.softplus, "Sqrt": torch.sqrt,
    "Sub": torch.sub, "Tanh": torch.tanh, "Where": torch.where, "Clip": _clip, "HardSwish": F.hardswish,
    "Pow": lambda a, b: torch.pow(a, b.to(a.dtype)), "Identity": lambda a: a,
}  # fmt: skip


def _slice(x: torch.Tensor, parameters: list[Any]) -> torch.Tensor:
    starts, ends, axes, steps = (*parameters, None, None)[:4]
    for k, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = int(axes[k]) if axes is not None else k
        size = x.shape[axis]
        begin, stop, step = slice(int(start), int(end), int(steps[k]) if steps is not None else 1).indices(size)
        if step > 0:
            x = x[(slice(None),) * (axis % x.dim()) + (slice(begin, stop, step),)]
        else:
            x = x.index_select(axis, torch.arange(begin, stop, step, device=x.device))
    return x


def _pad(x: torch.Tensor, attributes: Attributes, parameters: list[Any]) -> torch.Tensor:
    pads, fill, axes = (*parameters, None, None)[:3]
    which = range(x.dim()) if axes is None else [int(a) % x.dim() for a in axes]
    widths = [0] * (2 * x.dim())
    for k, axis in enumerate(which):
        at = 2 * (x.dim() - 1 - axis)
        widths[at], widths[at + 1] = int(pads[k]), int(pads[k + len(which)])
    return F.pad(x, widths, value=0.0 if fill is None else float(fill))


def _index(op: str, x: torch.Tensor, a: Attributes, p: list[Any], shape: list[int]) -> torch.Tensor:
    """An index operator with its parameters; shape: of its result."""
    match op:
        case "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze":
            return x.reshape(shape)
        case "Transpose":
            return x.permute(tuple(a.get("perm", range(x.dim())[::-1])))
        case "Expand":
            return x.expand(shape)
        case "Tile":
            return x.repeat(tuple(int(n) for n in p[0]))
        case "Slice":
            return _slice(x, p)
        case "Pad":
            return _pad(x, a, p)
        case "Gather":
            indices, axis = p[0], int(a.get("axis", 0))
            if isinstance(indices, int):
                return x.select(axis, indices)
            return x.index_select(axis, torch.tensor([i % x.shape[axis] for i in indices], device=x.device))
        case "DepthToSpace" | "SpaceToDepth":
            return _blocks(op, x, int(a["blocksize"]), a.get("mode", b"DCR"))
    raise NotImplementedError(op)


def _blocks(op: str, x: torch.Tensor, size: int, mode: Any) -> torch.Tensor:
    batch, channels, height, width = x.shape
    if op == "SpaceToDepth":
        x = x.reshape(batch, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
        return x.reshape(batch, channels * size * size, height // size, width // size)
    depth = channels // size**2
    if mode in (b"DCR", "DCR"):
        x = x.reshape(batch, size, size, depth, height, width).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(batch, depth, size, size, height, width).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(batch, depth, height * size, width * size)


def function(model: onnx.ModelProto, device: str, *, precise: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The model's graph over torch tensors, inputs in its order; precise computes floats in float64."""
    constants = {t.name: numpy_helper.to_array(t).tolist() for t in model.graph.initializer}
    held = {name: _tensor(t, device, precise) for t in model.graph.initializer for name in [t.name]}
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in onnx.shape_inference.infer_shapes(
        model, data_prop=True).graph.value_info}  # fmt: skip
    shapes |= {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.output}
    nodes = [
        (n.op_type, list(n.input), list(n.output), {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute})
        for n in model.graph.node
    ]
    inputs, outputs = [v.name for v in model.graph.input], [v.name for v in model.graph.output]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = dict(held)
        for name, tensor in zip(inputs, tensors, strict=True):
            values[name] = tensor.double() if precise and tensor.is_floating_point() else tensor
        for op, operands, results, attributes in nodes:
            arguments = [values.get(o) for o in operands]
            found: Any
            if op == "Cast":
                target = _TORCH_DTYPES[attributes["to"]]
                keep = precise and target.is_floating_point
                found = arguments[0].double() if keep else arguments[0].to(target)  # type: ignore[union-attr]
            elif op == "Gelu":
                kind = attributes.get("approximate", b"none")
                found = F.gelu(arguments[0], approximate="tanh" if kind == b"tanh" else "none")
            elif op == "LeakyRelu":
                found = F.leaky_relu(arguments[0], attributes.get("alpha", 0.01))
            elif op == "HardSigmoid":
                found = torch.clamp(arguments[0] * attributes.get("alpha", 0.2) + attributes.get("beta", 0.5), 0, 1)
            elif op == "Concat":
                found = torch.cat(arguments, attributes["axis"])
            elif op == "Split":
                sizes = [shapes[r][attributes.get("axis", 0)] for r in results]
                values.update(zip(results, arguments[0].split(sizes, attributes.get("axis", 0)), strict=True))
                continue
            elif op in ELEMENTWISE:
                found = ELEMENTWISE[op](*(a for a in arguments if a is not None))
            else:
                parameters = [constants.get(o) for o in operands[1:]]
                found = _index(op, arguments[0], attributes, parameters, shapes.get(results[0], []))
            values[results[0]] = found
        return tuple(values[name].contiguous() for name in outputs)

    return run


def _tensor(tensor: onnx.TensorProto, device: str, precise: bool) -> torch.Tensor:
    if tensor.data_type == onnx.TensorProto.BFLOAT16:
        value = torch.tensor(numpy_helper.to_array(tensor).astype(np.float32)).bfloat16()
    else:
        value = torch.tensor(numpy_helper.to_array(tensor))
    value = value.to(device)
    return value.double() if precise and value.is_floating_point() else value
