"""Inspect: count a model file's operators, inputs, outputs, parameters, functions, and nodes that stay on the host."""

from __future__ import annotations

import collections
import contextlib
import dataclasses

from onnx_ir.passes.common import TopologicalSortPass

from onnxopt.fusion.eligibility import is_elementwise
from onnxopt.graph import read, signature
from onnxopt.graph.placement.cuda_graphs import blocking_nodes, host_nodes
from onnxopt.graph.signature import Tensor
from onnxopt.paths import StrPath


@dataclasses.dataclass(frozen=True)
class ModelSummary:
    """What a model holds.

    ops: how often each operator occurs, subgraphs and functions included, most frequent first, "domain::Op" outside
    ONNX's own. elementwise: nodes whose operator a kernel could run. parameters, parameter_bytes: of initializers.
    bytes: of the file and its external data. nodes: of the graph, its subgraphs, and the bodies of its functions;
    function_nodes: those in the bodies, each once, however often it is called. host, cuda_graph: name and reason of the
    nodes that ONNX Runtime's CUDA provider runs on the CPU, and of those that prevent a CUDA graph
    (graph/placement/cuda_graphs.py).
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
    bodies = [node for function in model.functions.values() for node in function.all_nodes()]
    nodes = [*model.graph.all_nodes(), *bodies]
    ops = collections.Counter(n.op_type if n.domain in ("", "ai.onnx") else f"{n.domain}::{n.op_type}" for n in nodes)
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
        function_nodes=len(bodies),
        elementwise=sum(is_elementwise(n) for n in nodes),
        ops=dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
        functions=tuple(f"{domain}::{name}" for domain, name, _ in model.functions),
        parameters=sum(t.size for t in tensors),
        parameter_bytes=sum(t.nbytes for t in tensors),
        host=tuple(host_nodes(model)),
        cuda_graph=tuple(blocking_nodes(model)),
    )
