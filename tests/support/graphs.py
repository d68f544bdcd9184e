"""Tiny graphs as onnx text, and programs spelled as expressions, for the tests of fusing and lowering."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing
import onnx_ir as ir
import onnxruntime as ort
from hypothesis import strategies as st

from cases.models import graph as graph
from onnxopt.program.cuda_text.statements import literal
from onnxopt.program.pointwise import Program


def hold(model: ir.Model, arrays: Mapping[str, np.ndarray], dtype: np.typing.DTypeLike) -> None:
    """Make initializers of the inputs with these names, in place; of those that nothing reads, nothing."""
    for held in [v for v in model.graph.inputs if v.name in arrays]:
        model.graph.inputs.remove(held)
        if held.uses():
            held.const_value = ir.Tensor(arrays[str(held.name)].astype(dtype), name=held.name)
            model.graph.register_initializer(held)


def node(model: ir.Model, name: str) -> ir.Node:
    """The node of this name, in whatever graph of the model."""
    return next(n for owner in model.graphs() for n in owner if n.name == name)


def value(model: ir.Model, name: str) -> ir.Value:
    """The value of this name: an input, an initializer, or a node's output."""
    found = [v for owner in model.graphs() for v in (*owner.inputs, *owner.initializers.values()) if v.name == name]
    return found[0] if found else node(model, name).outputs[0]


def spelled(program: Program) -> list[str]:
    """Each result of a program as one nested expression, such as "add(x0, 2.0f)"."""
    names = [f"x{k}" for k in range(len(program.inputs))]
    for i in program.code:
        if i.op == "const":
            names.append(literal(i))
            continue
        function = i.op + (f"<{i.dtype}>" if i.op == "cast" else f"<{i.storage}>" if i.op == "narrow" else "")
        names.append(f"{function}({', '.join(names[a] for a in i.args)})")
    return [names[r] for r in program.results]


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs from ONNX Runtime on the CPU, without the custom-op library and without graph optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"]).run(None, feeds)


# No operator in one of these widens a value's shape beyond [2, 4]; the last three are not elementwise.
_UNARY = ("Tanh", "Neg", "Erf", "Abs", "Sigmoid", "Softmax", "CumSum", "ReduceMean")
_BINARY = ("Add", "Mul", "Max", "Less")
RANDOM_INPUTS = {"p": (2, 4), "q": (4,), "r": (2, 1), "s": (1, 1)}


@st.composite
def random_bodies(draw: st.DrawFn) -> tuple[str, str]:
    """Bodies of random graphs over RANDOM_INPUTS, and their outputs: everything unread and some of the rest."""
    count = draw(st.integers(2, 14))
    known, read, lines = list(RANDOM_INPUTS), set(), []
    for k in range(count):
        op = draw(st.sampled_from(_UNARY + _BINARY + _BINARY))  # twice, so that paths meet often
        recent = known[-6:] if draw(st.booleans()) else known
        operands = [draw(st.sampled_from(recent)) for _ in range(2 if op in _BINARY else 1)]
        read.update(operands)
        call = f"CumSum({operands[0]}, axis)" if op == "CumSum" else f"{op}({', '.join(operands)})"
        if op == "Less":
            lines.append(f"b{k} = {call}")
            call = f"Where(b{k}, {operands[0]}, {operands[1]})"
        lines.append(f"v{k} = {call}")
        known.append(f"v{k}")
    outputs = [v for v in known[len(RANDOM_INPUTS) :] if v not in read or draw(st.integers(0, 4)) == 0]
    return " ".join(lines), ", ".join(f"float[] {v}" for v in outputs)


def random_model(body: str, outputs: str) -> ir.Model:
    """The model of what `random_bodies` draws."""
    inputs = ", ".join(f"float[{', '.join(map(str, dims))}] {name}" for name, dims in RANDOM_INPUTS.items())
    return graph(inputs, outputs, body, constants="int64 axis = {-1}")
