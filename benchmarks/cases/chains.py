"""Chains of elementwise operators as rows of data. Each gives an ONNX model, a torch function and inputs.

A chain starts from the input "x" and applies its steps to the running value. A step is (op, *operands). An operand is
one of: the name of a side input; a number, which is a constant of the running dtype; "@k", the result of step k
(counted from 1; "@0" is x); or ".", the running value where it is not the first operand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

Operand = str | float
Step = tuple[Any, ...]

ONNX_DTYPES = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}
_OPSET = 20
_IR_VERSION = 9  # what the oldest ONNX Runtime of the compatibility tests reads; 10 would do

TORCH_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "Abs": torch.abs,
    "Add": torch.add,
    "Clip": torch.clamp,
    "Cos": torch.cos,
    "Div": lambda a, b: torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Gelu": torch.nn.functional.gelu,
    "HardSwish": torch.nn.functional.hardswish,
    "LeakyRelu": lambda a: torch.nn.functional.leaky_relu(a, 0.01),
    "Max": lambda a, b: torch.maximum(a, torch.as_tensor(b, dtype=a.dtype, device=a.device)),
    "Min": lambda a, b: torch.minimum(a, torch.as_tensor(b, dtype=a.dtype, device=a.device)),
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Softplus": torch.nn.functional.softplus,
    "Sqrt": torch.sqrt,
    "Sub": torch.sub,
    "Tanh": torch.tanh,
    "Where": lambda c, a, b: torch.where(
        c,
        torch.as_tensor(a, dtype=_other(a, b), device=c.device),
        torch.as_tensor(b, dtype=_other(a, b), device=c.device),
    ),
}


def _other(a: Any, b: Any) -> torch.dtype:
    return a.dtype if isinstance(a, torch.Tensor) else b.dtype


@dataclasses.dataclass(frozen=True)
class Chain:
    """A chain of elementwise ops.

    sides: name -> shape of each side input, of the chain's dtype, or (shape, dtype). outputs: results of steps besides
    the last that are outputs too, as "@k". kind: how the side inputs broadcast, for the table.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    steps: tuple[Step, ...]
    sides: dict[str, Any] = dataclasses.field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    def input_specs(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Name -> (shape, dtype) of every input, "x" first."""
        specs = {"x": (self.shape, self.dtype)}
        for name, side in self.sides.items():
            specs[name] = side if side and isinstance(side[-1], str) else (side, self.dtype)
        return specs

    def output_dtypes(self) -> list[str]:
        """Dtype of every output: the chain's, until a Cast."""
        dtypes = [self.dtype]
        for op, *operands in self.steps:
            dtypes.append(operands[0] if op == "Cast" else dtypes[-1])
        return [dtypes[int(o[1:])] for o in self.outputs] + [dtypes[-1]]

    def minimal_bytes(self) -> int:
        """Bytes that any implementation moves: every input read once, every output written once."""
        sizes = [math.prod(shape) * size_of(dtype) for shape, dtype in self.input_specs().values()]
        return sum(sizes) + sum(math.prod(self.shape) * size_of(d) for d in self.output_dtypes())

    def model(self) -> onnx.ModelProto:
        """The chain as an ONNX model of opset 20 with static shapes, one node a step; outputs "y0", "y1" ..."""
        nodes, constants, value, values, dtype = [], [], "x", ["x"], self.dtype
        for k, (op, *operands) in enumerate(self.steps, start=1):
            result = f"v{k}"
            if op == "Cast":
                dtype = operands[0]
                nodes.append(helper.make_node("Cast", [value], [result], name=f"n{k}", to=ONNX_DTYPES[dtype]))
            else:
                names = []
                for operand in operands if "." in operands else (".", *operands):
                    if isinstance(operand, str):
                        names.append(value if operand == "." else self._named(operand, values))
                    else:
                        names.append(f"c{len(constants)}")
                        constants.append(helper.make_tensor(names[-1], ONNX_DTYPES[dtype], [], [operand]))
                nodes.append(helper.make_node(op, names, [result], name=f"n{k}"))
            value = result
            values.append(result)
        return self._finished(nodes, constants, [*(self._named(o, values) for o in self.outputs), value])

    def _finished(self, nodes: list[Any], constants: list[Any], results: list[str]) -> onnx.ModelProto:
        renamed = {result: f"y{k}" for k, result in enumerate(results)}
        for node in nodes:
            node.input[:] = [renamed.get(i, i) for i in node.input]
            node.output[:] = [renamed.get(o, o) for o in node.output]
        inputs = [helper.make_tensor_value_info(n, ONNX_DTYPES[d], s) for n, (s, d) in self.input_specs().items()]
        outputs = [
            helper.make_tensor_value_info(f"y{k}", ONNX_DTYPES[d], self.shape)
            for k, d in enumerate(self.output_dtypes())
        ]
        graph = helper.make_graph(nodes, self.name, inputs, outputs, constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        onnx.checker.check_model(model)
        return model

    def _named(self, operand: str, values: list[str]) -> str:
        return values[int(operand[1:])] if operand.startswith("@") else operand

    def function(self, *, precise: bool = False) -> Callable[..., tuple[torch.Tensor, ...]]:
        """The same chain over torch tensors, inputs in the order of input_specs; precise computes in float64."""
        names = list(self.input_specs())

        def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if precise:
                tensors = tuple(t.double() if t.is_floating_point() else t for t in tensors)
            given = dict(zip(names, tensors, strict=True))
            values = [given["x"]]
            for op, *operands in self.steps:
                if op == "Cast":
                    values.append(values[-1] if precise else values[-1].to(getattr(torch, operands[0])))
                    continue
                args: list[Any] = []
                for operand in operands if "." in operands else (".", *operands):
                    if not isinstance(operand, str):
                        args.append(operand)
                    elif operand == ".":
                        args.append(values[-1])
                    else:
                        args.append(values[int(operand[1:])] if operand.startswith("@") else given[operand])
                values.append(TORCH_OPS[op](*args))
            return (*(values[int(o[1:])] for o in self.outputs), values[-1])

        return run

    def inputs(self, seed: int = 0, device: str = "cpu") -> dict[str, torch.Tensor]:
        """Seeded inputs: uniform in [-2, 2) for floats (finite through every op here), small integers, coin flips."""
        generator = torch.Generator(device).manual_seed(seed)
        tensors = {}
        for name, (shape, dtype) in self.input_specs().items():
            if dtype == "bool":
                tensors[name] = torch.rand(shape, generator=generator, device=device) < 0.5
            elif dtype.startswith("int"):
                tensors[name] = torch.randint(-100, 100, shape, generator=generator, device=device).to(
                    getattr(torch, dtype)
                )
            else:
                value = torch.rand(shape, generator=generator, device=device) * 4 - 2
                tensors[name] = value.to(getattr(torch, dtype))
        return tensors


def size_of(dtype: str) -> int:
    """Bytes an element."""
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def tolerance(chain: Chain) -> float:
    """Relative and absolute limit against the float64 reference: one rounding to the storage dtype a step, and two."""
    narrowest = max((d for d in (chain.dtype, *chain.output_dtypes()) if "float" in d), key=_epsilon, default="")
    return (len(chain.steps) + 2) * _epsilon(narrowest) if narrowest else 0.0


def _epsilon(dtype: str) -> float:
    return float(torch.finfo(getattr(torch, dtype)).eps)
