"""`onnxopt inspect`: counts of a model, as text or JSON."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from onnxopt.artifact.summary import placement_text, size_text
from onnxopt.graph.signature import tensor_text
from onnxopt.printable import one_line
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_json
from onnxopt.tools.inspect import ModelSummary, inspect


@click.command("inspect")
@click.argument("model", type=Path)
@options.json_option
def command(model: Path, as_json: bool) -> None:
    """Count the operators, inputs, outputs, parameters and functions of MODEL."""
    summary = inspect(model)
    if as_json:
        print_json(dataclasses.asdict(summary))
    else:
        click.echo(_text(summary))


def _text(summary: ModelSummary) -> str:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in summary.opsets.items())
    lines = [
        f"{summary.path}: {size_text(summary.bytes)}, {summary.producer or 'unknown producer'}",
        f"opsets: {opsets}; IR version {summary.ir_version}",
    ]
    for kind, tensors in (("input", summary.inputs), ("output", summary.outputs)):
        lines += [f"{kind}: {tensor_text(tensor)}" for tensor in tensors]
    lines.append(f"parameters: {summary.parameters:,} in {size_text(summary.parameter_bytes)}")
    lines.append(f"nodes: {summary.nodes}, {summary.elementwise} of them elementwise")
    lines += [f"{count:8} {op}" for op, count in summary.ops.items()]
    if summary.functions:
        lines.append(f"functions, of {summary.function_nodes} nodes: {', '.join(summary.functions)}")
    host, blocking = ([(one_line(n), reason) for n, reason in rows] for rows in (summary.host, summary.cuda_graph))
    return "\n".join([*map(one_line, lines), placement_text(host, blocking)])
