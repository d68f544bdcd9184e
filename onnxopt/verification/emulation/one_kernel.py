"""A model of one call of a fused function, so that its kernel can be run alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from onnxopt.graph import read
from onnxopt.graph import traits as model_traits
from onnxopt.graph.fused_domain import holds_fused
from onnxopt.graph.signature import Sizes, Tensor
from onnxopt.graph.traits import Traits
from onnxopt.program.dtypes import to_ir
from onnxopt.runtime.sessions import CPU
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.emulation.shape_text import ShapeText
from onnxopt.verification.reference import NotRunnable, Reference
from onnxopt.verification.sampling import samples
from onnxopt.verification.sampling.user_data import UserData

_MAX_ELEMENTS = 1 << 21  # of a tensor
_CASES = 4
_INSISTED = (8, 64, 512, 1)  # sizes of all dims, for where the usual ones fail


def calls(model: ir.Model) -> dict[str, ir.Node]:
    """The calls of fused functions, by the node's name."""
    return {node.name: node for node in model.graph.all_nodes() if holds_fused(node.domain) and node.name}


def write(model: ir.Model, call: ir.Node, shapes: Sequence[ShapeText], path: Path) -> None:
    """Write a model that does what one call of a fused function does.

    Operands that are weights of the model keep their values, the others are inputs x0, x1, .... Outputs are named after
    the function. shapes: of the call's inputs then outputs.
    """
    function = model.functions[call.op_identifier()]
    inputs, initializers, operands = list[ir.Value](), list[ir.Value](), list[ir.Value]()
    for k, value in enumerate(call.inputs):
        tensor, described = _weight(value), shapes[k]
        if tensor is not None:
            operands.append(ir.Value(name=f"x{k}", const_value=tensor))
            initializers.append(operands[-1])
            continue
        dims = None if described.dims is None else [int(d) if d.isdigit() else None for d in described.dims]
        shape = None if dims is None else ir.Shape(dims)
        operands.append(ir.Value(name=f"x{k}", type=ir.TensorType(to_ir(described.dtype)), shape=shape))
        inputs.append(operands[-1])
    node = ir.Node(call.domain, call.op_type, operands, num_outputs=len(call.outputs), name=call.op_type)
    for k, output in enumerate(node.outputs):
        output.name = call.op_type if len(node.outputs) == 1 else f"{call.op_type}.{k}"
        output.type = ir.TensorType(to_ir(shapes[len(call.inputs) + k].dtype))
    imports = {**function.opset_imports, **model.opset_imports}
    graph = ir.Graph(
        inputs, node.outputs, nodes=[node], initializers=initializers, opset_imports=imports, name=call.op_type
    )
    ir.save(ir.Model(graph, ir_version=model.ir_version, functions=[function]), path)


def reference(path: Path, shapes: Sequence[ShapeText], folder: Path) -> Reference:
    """What the function's body computes at a sample of sizes, of a model that `write` wrote.

    NotRunnable where ONNX Runtime accepts none of the sizes that are tried, or all are too large.
    """
    traits = model_traits.of(read.load(path).model)
    by_input = {tensor.name: shapes[int(tensor.name[1:])] for tensor in traits.inputs}
    outputs = shapes[-len(traits.outputs) :]
    accepted, problem = list[UserData](), f"a tensor of it has more than {_MAX_ELEMENTS} elements"
    for number, (sizes, tensors) in enumerate(_sizes(by_input, outputs)):
        if len(accepted) == _CASES or (accepted and number >= _CASES):
            break
        sample = UserData(f"sample {number}", samples.draw(tensors, {}, number, traits.uses), sizes)
        try:
            _reference(path, traits, folder, [sample])
            accepted.append(sample)
        except NotRunnable as error:
            problem = str(error)
    if not accepted:
        raise NotRunnable(problem)
    return _reference(path, traits, folder, accepted)


def _reference(path: Path, traits: Traits, folder: Path, data: Sequence[UserData]) -> Reference:
    return Reference(ModelFile(path, traits), CPU, Coverage(data=data), folder=folder)


def _sizes(by_input: dict[str, ShapeText], outputs: Sequence[ShapeText]) -> Iterator[tuple[Sizes, list[Tensor]]]:
    """Sizes of the symbols, and the inputs at these; those with too large or with empty tensors are left out."""
    names = tuple(dict.fromkeys(symbol for text in by_input.values() for symbol in text.symbols))
    plain = [_plain(name, text) for name, text in by_input.items()]
    usual = samples.usual_sizes([*plain, *(Tensor(f"size of {name}", "int64", (name,)) for name in names)])
    for sizes in (*usual, *(dict.fromkeys(names, size) for size in _INSISTED if names)):
        try:
            tensors = [text.at(name, sizes) for name, text in by_input.items()]
        except ValueError:
            continue
        largest = max(_elements(tensor) for tensor in (*tensors, *_static_tensors(outputs, sizes)))
        if largest <= _MAX_ELEMENTS and all(map(_elements, tensors)):
            yield sizes, tensors


def _static_tensors(outputs: Sequence[ShapeText], sizes: Sizes) -> Iterator[Tensor]:
    """The outputs whose shapes depend on nothing but the inputs' sizes."""
    for text in outputs:
        with contextlib.suppress(ValueError, KeyError):
            yield text.at("", sizes)


def _elements(tensor: Tensor) -> int:
    return math.prod(d for d in tensor.dims or () if isinstance(d, int))


def _plain(name: str, text: ShapeText) -> Tensor:
    """An input in which expressions over symbols are 1."""
    dims = tuple(d if d in text.symbols else int(d) if d.isdigit() else 1 for d in text.dims or ())
    return Tensor(name, text.dtype, dims)


def _weight(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an operand that is a weight, in memory: the model's own file lies elsewhere."""
    if value is None or not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return None
    return ir.Tensor(value.const_value.numpy(), dtype=value.const_value.dtype)
