"""What an artifact uses of operators that ONNX Runtime alone defines, compared with the release that runs it.

ONNX versions its operators: a model names its opset, and a release reads it or refuses. Operators of com.microsoft have
version 1 in every release, and inputs and attributes have come and changed places. A release where one that an artifact
uses is another one would compute something else. What an operator computes of the same inputs is not seen here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
import pydantic

from onnxopt.graph import fused_domain

_VERSIONED = ("", "ai.onnx", "ai.onnx.ml")


class OperatorSchema(pydantic.BaseModel):
    """The parts of an operator's schema that nodes use. since: its version. attributes: types of those that are set.

    inputs, outputs: the formal parameters up to the last one that is used, each with its type and option.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    domain: str
    name: str
    since: int
    attributes: dict[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.domain}.{self.name}"


def used(model: ir.Model) -> tuple[OperatorSchema, ...]:
    """What the nodes of a model use, as the installed ONNX Runtime has it. Operators that it lacks are left out."""
    nodes: dict[tuple[str, str], list[ir.Node]] = {}
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node in graph.all_nodes():
            if node.domain not in _VERSIONED and not fused_domain.holds_fused(node.domain):
                nodes.setdefault((node.domain, node.op_type), []).append(node)
    schemas = [(_installed().get(key), nodes[key]) for key in sorted(nodes)]
    return tuple(_part(schema, its_nodes) for schema, its_nodes in schemas if schema is not None)


def differences(recorded: Sequence[OperatorSchema]) -> list[str]:
    """What the installed ONNX Runtime has otherwise, an operator each, for messages; none where all is the same."""
    return [f"{schema} {what}" for schema in recorded if (what := next(_differences(schema), None)) is not None]


def _differences(recorded: OperatorSchema) -> Iterator[str]:
    schema = _installed().get((recorded.domain, recorded.name))
    if schema is None:
        yield "is not there"
        return
    if schema.since_version != recorded.since:
        yield f"has version {schema.since_version}, not {recorded.since}"
    for name, kind in recorded.attributes.items():
        now = _attribute(schema, name)
        if now != kind:
            yield f"has attribute {name} of type {now}, not {kind}" if now else f"has no attribute {name}"
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in recorded.attributes:
            yield f"needs attribute {name}"
    for role, formals, expected in (
        ("input", schema.inputs, recorded.inputs), ("output", schema.outputs, recorded.outputs)
    ):  # fmt: skip
        parameters = [_formal(formal) for formal in formals]
        for k, parameter in enumerate(expected):
            if k >= len(parameters):
                yield f"has {len(parameters)} {role}s, not {len(expected)}"
            elif parameters[k] != parameter:
                yield f"has {role} {k} `{parameters[k]}`, not `{parameter}`"
        if any(formal.option.name == "Single" for formal in list(formals)[len(expected) :]):
            yield f"needs {role} {len(expected)} `{parameters[len(expected)]}`"


def _part(schema: Any, nodes: Sequence[ir.Node]) -> OperatorSchema:
    names = sorted({name for node in nodes for name in node.attributes})
    return OperatorSchema(
        domain=schema.domain,
        name=schema.name,
        since=schema.since_version,
        attributes={name: kind for name in names if (kind := _attribute(schema, name))},
        inputs=_formals(schema.inputs, [_last(node.inputs) for node in nodes]),
        outputs=_formals(schema.outputs, [len(node.outputs) for node in nodes]),
    )


def _formals(formals: Sequence[Any], counts: Sequence[int]) -> tuple[str, ...]:
    return tuple(_formal(formal) for formal in list(formals)[: max(counts)])


def _last(values: Sequence[ir.Value | None]) -> int:
    return max((k + 1 for k, value in enumerate(values) if value is not None), default=0)


def _formal(formal: Any) -> str:
    option = {"Single": "", "Optional": ", optional", "Variadic": ", any number"}[formal.option.name]
    return f"{formal.name}: {formal.typeStr}{option}"


def _attribute(schema: Any, name: str) -> str | None:
    attribute = schema.attributes.get(name)
    return None if attribute is None else str(attribute.type.name).lower()


@functools.cache
def _installed() -> dict[tuple[str, str], Any]:
    """The newest schema of every operator of the installed ONNX Runtime, by domain and name."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    every = sorted(state.get_all_operator_schema(), key=lambda schema: schema.since_version)
    return {(schema.domain, schema.name): schema for schema in every}
