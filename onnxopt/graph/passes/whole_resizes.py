"""Resize to sizes that a graph computes, where these are whole multiples of the input's.

Resize(x [N, C, h, w], sizes = [N, C, 2 * h, 2 * w]) -> Resize(x, scales = [1, 1, 2, 2])

Kernels and runtimes know more of constant scales. What computed the sizes is left for other passes to remove.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxopt.graph.shapes.dims import Dim, quotient
from onnxopt.graph.shapes.infer import Knowledge, infer

_SIZES = 3  # the position of the input


class WholeResizesPass(ir.passes.InPlacePass):
    """States whole factors as constants. No result changes."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        resizes = [n for graph in model.graphs() for n in graph if _has_computed_sizes(n)]
        inferred = infer(model) if resizes else None
        modified = False
        for node in resizes:
            assert inferred is not None
            factors = _factors(node, inferred)
            if factors is not None:
                _scale(node, factors)
                modified = True
        return ir.passes.PassResult(model, modified)


def _has_computed_sizes(node: ir.Node) -> bool:
    if node.op_type != "Resize" or node.domain != "" or len(node.inputs) <= _SIZES:
        return False
    sizes = node.inputs[_SIZES]
    way = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    stretches = node.attributes.get_string("keep_aspect_ratio_policy", "stretch") == "stretch"
    return sizes is not None and sizes.const_value is None and stretches and way != "tf_crop_and_resize"


def _factors(node: ir.Node, inferred: Knowledge) -> list[int] | None:
    """How many times each axis becomes as long; None where one is not known to become a whole number of times so."""
    dims, sizes = inferred.dims(node.inputs[0]), inferred.contents(node.inputs[_SIZES])
    if dims is None or sizes is None:
        return None
    axes = node.attributes.get_ints("axes", tuple(range(len(dims))))
    if len(axes) != sizes.size or 0 in dims:
        return None
    factors: list[Dim] = [quotient(size, dims[axis % len(dims)]) for axis, size in zip(axes, sizes.flat, strict=True)]
    whole = [factor for factor in factors if isinstance(factor, int) and factor >= 1]
    return whole if len(whole) == len(factors) else None


def _scale(node: ir.Node, factors: list[int]) -> None:
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    name = f"{node.outputs[0].name}_scales"
    while name in graph.initializers:
        name += "_"
    scales = ir.Value(name=name, const_value=ir.tensor(np.array(factors, np.float32), name=name))
    scales.shape, scales.dtype = ir.Shape([len(factors)]), ir.DataType.FLOAT
    graph.register_initializer(scales)
    node.resize_inputs(_SIZES)
    node.replace_input_with(_SIZES - 1, scales)
