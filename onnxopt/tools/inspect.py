"""Inspect: count a model file's operators, inputs, outputs, parameters, functions, and nodes that stay on the host."""

from __future__ import annotations

import contextlib
import dataclasses

from onnx_ir.passes.common import TopologicalSortPass

from onnxopt.fusion import work
from onnxopt.fusion.eligibility import is_elementwise
from onnxopt.graph import read, signature
from onnxopt.graph.placement.cuda_graphs import blocking_nodes, host_nodes
from onnxopt.graph.signature import Tensor
from onnxopt.paths import StrPath


@dataclasses.dataclass(frozen=True)
class ModelSummary:
    """What a model holds.

    nodes, ops: counted as everywhere (fusion/work.py): a call of a fused function is one node. function_nodes: those
    in the bodies of all functions, each once, however often it is called. elementwise: nodes whose operator a kernel
    could run. parameters, parameter_bytes: of initializers. bytes: of the file and its external data. host, cuda_graph:
    name and reason of the nodes that ONNX Runtime's CUDA provider runs on the CPU, and of those that prevent a CUDA
    graph (graph/placement/cuda_graphs.py).
    """

    path: str
    bytes: int
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    nodes: int
    function_nodes: int
    elementwise: int
    ops: dict[str, int]
    functions: tuple[str, ...]
    parameters: int
    parameter_bytes: int
    host: tuple[tuple[str, str], ...]
    cuda_graph: tuple[tuple[str, str], ...]


def inspect(path: StrPath) -> ModelSummary:
    """Read and count a model. ModelError where it cannot be read."""
    source = read.load(path)
    model = source.model
    with read.quiet(), contextlib.suppress(ValueError):  # a cycle, which optimize reports
        TopologicalSortPass()(model)
    nodes = work.nodes(model)
    tensors = [v.const_value for g in model.graphs() for v in g.initializers.values() if v.const_value is not None]
    return ModelSummary(
        path=str(path),
        bytes=source.bytes,
        producer=f"{model.producer_name or ''} {model.producer_version or ''}".strip(),
        ir_version=model.ir_version,
        opsets=dict(sorted(model.opset_imports.items())),
        inputs=signature.inputs_of(model),
        outputs=signature.outputs_of(model),
        nodes=len(nodes),
        function_nodes=sum(1 for function in model.functions.values() for _ in function.all_nodes()),
        elementwise=sum(is_elementwise(n) for n in nodes),
        ops=work.operators(nodes),
        functions=tuple(f"{domain}::{name}" for domain, name, _ in model.functions),
        parameters=sum(t.size for t in tensors),
        parameter_bytes=sum(t.nbytes for t in tensors),
        host=tuple(host_nodes(model)),
        cuda_graph=tuple(blocking_nodes(model)),
    )
