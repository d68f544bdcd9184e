"""The table of spellings: each one puts equivalent nodes in a node's place, or a copy in a value's.

A spelling gets a Builder that inserts before the node, and the node. It returns what its outputs become, or None where
it does not apply. Results are equal in exact arithmetic; rounding may differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from tests.fuzz.respell.building import Builder

Respell = Callable[[Builder, ir.Node], "ir.Value | Sequence[ir.Value] | None"]
ANY = ""  # the operator of spellings that put a copy in the place of any node's first output


class Spelling(NamedTuple):
    name: str
    op_type: str
    respell: Respell


SPELLINGS: list[Spelling] = []


def spells(*op_types: str) -> Callable[[Respell], Respell]:
    """Adds a function to the table, for nodes of these operators."""

    def add(respell: Respell) -> Respell:
        SPELLINGS.extend(Spelling(respell.__name__, op_type, respell) for op_type in op_types)
        return respell

    return add


class Site(NamedTuple):
    spelling: Spelling
    node: ir.Node


def sites(model: ir.Model) -> Iterator[Site]:
    """Every place where a spelling may apply."""
    for node in model.graph:
        for spelling in SPELLINGS:
            if spelling.op_type in (ANY, node.op_type) and node.domain == "":
                yield Site(spelling, node)


def apply(site: Site, rng: random.Random) -> bool:
    """Respell in place. Whether the spelling applied; what it left unused is removed by the caller."""
    node = site.node
    assert node.graph is not None
    made = site.spelling.respell(Builder(node.graph, rng, node), node)
    if made is None:
        return False
    results = [made] if isinstance(made, ir.Value) else list(made)
    for old, new in zip(node.outputs, results, strict=True):
        new.shape, new.type = new.shape or old.shape, new.type or old.type
        name = old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name, new.name = None, name
    node.graph.remove(node, safe=True)
    return True


def axis_of(node: ir.Node, default: int) -> int:
    """The axis that a node states, counted from the front."""
    axis, rank = node.attributes.get_int("axis", default), rank_of(node.inputs[0])
    return axis % rank


def rank_of(value: ir.Value | None) -> int:
    assert value is not None and value.shape is not None
    return len(value.shape)


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant."""
    return None if value is None else ir.convenience.get_const_tensor(value)


def ints_of(value: ir.Value | None) -> list[int] | None:
    """The elements of a constant."""
    tensor = constant_of(value)
    return None if tensor is None else tensor.numpy().ravel().tolist()


def number_of(value: ir.Value | None) -> float | None:
    """The element of a constant float of one element."""
    tensor = constant_of(value)
    if tensor is None or tensor.size != 1 or not tensor.dtype.is_floating_point():
        return None
    return float(tensor.numpy().item())


def is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype is not None and value.dtype.is_floating_point()
