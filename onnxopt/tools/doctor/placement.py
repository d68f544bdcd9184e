"""Whether the library loads, and which device every node runs on."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxopt.artifact import layout
from onnxopt.artifact.summary import counted
from onnxopt.graph import read
from onnxopt.graph.fused_domain import holds_fused
from onnxopt.runtime import configuration as configurations
from onnxopt.runtime.configuration import Configuration, configuration_for
from onnxopt.runtime.sessions import CPU, CUDA, WITHOUT_KINDS, RunError
from onnxopt.tools.doctor.finding import Finding, Subject

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_RECORD = "session.record_ep_graph_assignment_info"
_SHOWN = 4
_SMALL = 256  # elements of what shape arithmetic handles


def library(subject: Subject) -> Iterator[Finding]:
    """Whether ONNX Runtime takes the library, and uses its kernels; then where all nodes run."""
    chosen = configuration_for(subject.folder)
    data = {**chosen.data, "session_config": {**chosen.data["session_config"], _RECORD: "1"}}
    path = subject.folder / layout.LIBRARY_PATH
    library_path = path.absolute() if path.is_file() else None
    try:
        session = configurations.open_session(subject.folder / layout.MODEL, library_path, data, subject.folder)
    except RunError as error:
        yield Finding(
            "library",
            "problem",
            f"ONNX Runtime refuses the artifact: {error}",
            "see docs/debugging.md; ONNXOPT_DISABLE=1 in the environment runs it without the kernels",
        )
        return
    if not hasattr(session, "get_provider_graph_assignment_info"):
        yield Finding("library", "ok", "the session starts; ONNX Runtime 1.24 and later also say where nodes run")
        return
    nodes = _assigned(session)
    if subject.manifest.kernels:
        yield from _kernels(subject, chosen, nodes)
    yield from _placement(subject, chosen, nodes)


def _assigned(session: InferenceSession) -> list[tuple[str, str, str, str]]:
    """(execution provider, name, domain, operator) of every node, as ORT assigned them."""
    return [
        (graph.ep_name, node.name, node.domain, node.op_type)
        for graph in session.get_provider_graph_assignment_info()
        for node in graph.get_nodes()
    ]


def _kernels(subject: Subject, chosen: Configuration, nodes: Sequence[tuple[str, str, str, str]]) -> Iterator[Finding]:
    """Which fused functions got their kernels."""
    calls = collections.Counter(op for _, _, domain, op in nodes if holds_fused(domain))
    # On the CPU, ORT's own kernels are left to run what they run faster.
    left_out = chosen.data["session_config"].get(WITHOUT_KINDS, "")
    expected = [k for k in subject.manifest.kernels if chosen.provider == CUDA or k.cpu]
    expected = [k for k in expected if k.kind not in left_out.split(",")]
    missing = [k.name for k in expected if not calls[k.name]]
    disabled = chosen.data["session_config"].get("onnxopt.disable") == "1"
    if disabled:
        yield Finding("library", "note", f"{chosen.path.name} leaves the kernels off, which tune measured to be faster")
    elif missing:
        yield Finding(
            "library",
            "problem",
            f"{len(missing)} of {len(expected)} fused functions run as their original nodes: {_some(missing)}",
            "unset ONNXOPT_DISABLE; else see the findings on kernels, and keep the files of lib/ together",
        )
    else:
        total = sum(calls[k.name] for k in expected)
        run = f"{counted(total, 'call')} of {counted(len(expected), 'function')}"
        without = f"; without kernels of {left_out}, which tune measured to be faster" if left_out else ""
        yield Finding("library", "ok", f"loads; {run} run as kernels{without}")


def _placement(
    subject: Subject, chosen: Configuration, nodes: Sequence[tuple[str, str, str, str]]
) -> Iterator[Finding]:
    """Where nodes run; on a GPU, which ones ORT left to the CPU without saying so."""
    counts = collections.Counter(ep for ep, *_ in nodes)
    text = ", ".join(f"{count} on {ep.removesuffix('ExecutionProvider')}" for ep, count in counts.most_common())
    if chosen.provider != CUDA:
        yield Finding("placement", "ok", f"nodes: {text}")
        return
    on_cpu = [(name, op) for ep, name, _, op in nodes if ep == CPU]
    heavy = [f"{name} ({op})" for name, op in heavy_nodes(read.load(subject.folder / layout.MODEL).model, on_cpu)]
    if heavy:
        yield Finding(
            "placement",
            "problem",
            f"nodes: {text}; ONNX Runtime has no CUDA kernel for {_some(heavy)}: their data goes to the host and back",
            "export these nodes in another way, or in a dtype that has a CUDA kernel; a verbose session logs why each "
            "was refused (SessionOptions.log_severity_level = 0)",
        )
    else:
        aside = f"; the {len(on_cpu)} on the CPU compute shapes, which is meant" if on_cpu else ""
        yield Finding("placement", "ok", f"nodes: {text}{aside}")


def heavy_nodes(model: ir.Model, on_cpu: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The nodes on the CPU, as (name, operator), that compute data, not shapes.

    Shape arithmetic gives integers or booleans of few elements. A node that is not in the model was added by ONNX
    Runtime; it computes shapes if some node of the same operator in the model does.
    """
    by_name = {node.name: node for node in model.graph.all_nodes()}
    shape_operators = {node.op_type for node in by_name.values() if _computes_shapes(node)}
    heavy = []
    for name, op in on_cpu:
        node = by_name.get(name)
        light = op in shape_operators if node is None else _computes_shapes(node)
        if not light and op != "Constant":
            heavy.append((name, op))
    return heavy


def _computes_shapes(node: ir.Node) -> bool:
    if node.op_type in ("Shape", "Size"):
        return True
    return bool(node.outputs) and all(_is_small_integer(v) for v in node.outputs)


def _is_small_integer(value: ir.Value) -> bool:
    if value.dtype is None or not (value.dtype.is_integer() or value.dtype == ir.DataType.BOOL):
        return False
    if value.shape is None:
        return False
    elements = 1
    for dim in value.shape:
        if not isinstance(dim, int):
            return len(value.shape) <= 1
        elements *= dim
    return elements <= _SMALL


def _some(names: Sequence[str]) -> str:
    others = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + others
