"""Copies of a model whose random operators have a fixed seed, so that two models that draw numbers can be compared.

ONNX Runtime seeds a random node without a `seed` by the node's position, which changes whenever nodes are added or
removed before it; with a seed, equal nodes draw equal numbers in both models in every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from onnxopt.graph.traits import RANDOM_OPS

_SEED = 7.0


def seeded(model: Path, copy: Path) -> Path:
    """Write `copy`, the model with every random operator seeded, and return it. External data is not copied."""
    proto = onnx.load(model, load_external_data=False)
    scopes = [proto.graph.node, *(f.node for f in proto.functions)]
    for node in (n for nodes in scopes for n in _all_nodes(nodes)):
        if node.op_type in RANDOM_OPS and node.domain in ("", "ai.onnx"):
            attributes = [a for a in node.attribute if a.name != "seed"]
            del node.attribute[:]
            seed = onnx.helper.make_attribute("seed", int(_SEED) if node.op_type == "Dropout" else _SEED)
            node.attribute.extend([*attributes, seed])
    onnx.save(proto, copy)
    return copy


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)
