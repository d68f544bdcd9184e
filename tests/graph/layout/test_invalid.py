"""Convolutions and pools that are invalid, or whose input is too small: ONNX Runtime says the same before and after.

Each model runs as it is and with its regions as functions, which ONNX Runtime inlines. Either both give the same
numbers, or both are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from cases.models import fuse, outline
from onnxopt.graph import normalize, rewrite
from tests.graph.layout.test_random_graphs import LEVELS, compare, outcome

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "plain": {},
    "same upper": {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    "same lower": {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
    "valid": {"auto_pad": "VALID", "strides": [2, 1]},
    "pads": {"pads": [1, 0, 2, 1]},
    "same and dilated": {"auto_pad": "SAME_UPPER", "dilations": [2, 2]},
    "pads beside valid": {"auto_pad": "VALID", "pads": [1, 1, 1, 1]},
    "pads beside same": {"auto_pad": "SAME_UPPER", "pads": [1, 1, 1, 1]},
    "negative pads": {"pads": [-1, 0, 0, 0]},
    "no stride": {"strides": [0, 1]},
    "no dilation": {"dilations": [0, 1]},
    "unknown auto_pad": {"auto_pad": "WRONG"},
    "two pads": {"pads": [1, 1]},
    "one stride": {"strides": [2]},
    "wide pads": {"pads": [3, 3, 3, 3], "strides": [2, 2]},
    "another kernel": {"kernel_shape": [5, 5]},
    "an empty kernel": {"kernel_shape": [0, 3]},
    "one side": {"kernel_shape": [3]},
    "groups": {"group": 3},
    "ceiling": {"ceil_mode": 1, "strides": [2, 2]},
}
DIMS: dict[str, list[int | str] | None] = {"numbers": [2, 3, 7, 6], "symbols": ["N", 3, "H", "W"], "nothing": None}
SIZES = ((2, 3, 7, 6), (1, 3, 2, 2), (1, 3, 1, 9), (0, 3, 7, 6), (1, 3, 0, 6))


def model(op: str, attributes: dict[str, Any], dims: list[int | str] | None) -> onnx.ModelProto:
    """The operator with a Relu and a 1x1 convolution behind it."""
    rng = np.random.default_rng(1)
    weights = {"Conv": (6, 3, 3, 3), "ConvTranspose": (3, 6, 3, 3)}
    if "group" in attributes:
        weights = {"Conv": (6, 1, 3, 3), "ConvTranspose": (3, 2, 3, 3)}
    constants = {"v": rng.standard_normal((4, 6 if op in weights else 3, 1, 1))}
    if op in weights:
        constants["w"] = rng.standard_normal(weights[op])
    else:
        attributes = {"kernel_shape": [3, 3], **attributes}
    nodes = [
        helper.make_node(op, ["x", *(["w"] if op in weights else [])], ["c"], **attributes),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, d) for name, d in (("x", dims), ("y", None))]
    tensors = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in constants.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_same_result_or_both_are_refused(op: str, name: str, tmp_path: Path) -> None:
    attributes = ATTRIBUTES[name]
    for dims in DIMS.values():
        before = model(op, attributes, dims)
        after = normalize.normalize(ir.from_proto(before)).model
        rewrite.rewrite(after, tmp_path)
        outline(after, fuse(after))
        texts = before.SerializeToString(), ir.to_proto(after).SerializeToString()
        for size in SIZES[: 1 if dims is DIMS["numbers"] else None]:
            x = np.random.default_rng(2).standard_normal(size).astype(np.float32)
            expected, found = (outcome(text, x, LEVELS[0]) for text in texts)
            compare(found, expected)


def test_both_happen() -> None:
    """The test above means something."""
    x = np.ones(SIZES[0], np.float32)
    runs = [outcome(model("Conv", a, None).SerializeToString(), x, LEVELS[0]) for a in ATTRIBUTES.values()]
    refused = [r for r in runs if isinstance(r, str)]
    assert 5 < len(refused) < len(runs) - 5
