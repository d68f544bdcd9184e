"""Kernel files of models: kernels.json as the library reads it, with the shapes that each kernel is called with.

A file has the field "cases", which the library does not read: {kernel: [[dims of each input], ...]}. Of long lists of
entry points only some are kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from cases import depthwise as depthwise_models
from cases import experts as experts_models
from cases import flash_attention as flash_attention_models
from cases import group_norm as group_norm_models
from cases import image_convolution as image_convolution_models
from cases import squeeze_excite as squeeze_excite_models
from cases.models import fuse, outline
from onnxopt.codegen import kernels_json
from onnxopt.fusion.region import Kernel
from tests.support.attention import cached_attention
from tests.support.fakes import custom_ops_fake_driver
from tests.support.kinds import convolution_graphs, packed_weights

FATBIN = custom_ops_fake_driver.fatbin((90, False), (90, True))
_ENTRY_POINTS = 6  # kept of a kernel: the first ones, and the most general ones at the end

Dims = tuple[int, ...]


def attention() -> dict[str, Any]:
    """The kernel file of one token's attention: GroupQueryAttention, q beside k and v in one input."""
    heads, groups, width, past = 4, 2, 16, 5
    info, make = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    half, cache = onnx.TensorProto.FLOAT16, [2, groups, past, width]
    inputs = [info("q", half, [2, 1, (heads + 2 * groups) * width]), info("pk", half, cache), info("pv", half, cache)]
    outputs = [info(name, half, None) for name in ("y", "nk", "nv")]
    int32 = onnx.TensorProto.INT32
    constants = [onnx.helper.make_tensor("lengths", int32, [2], [past] * 2)]
    constants.append(onnx.helper.make_tensor("total", int32, [], [past + 1]))
    node = make(
        "GroupQueryAttention", ["q", "", "", "pk", "pv", "lengths", "total"], ["y", "nk", "nv"],
        domain="com.microsoft", num_heads=heads, kv_num_heads=groups, scale=0.25,
    )  # fmt: skip
    graph = onnx.helper.make_graph([node], "g", inputs, outputs, constants)
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))
    shapes = tuple(tuple(d.dim_value for d in i.type.tensor_type.shape.dim) for i in inputs)
    return kernel_file(model, (shapes,))


def masked_attention() -> dict[str, Any]:
    """The kernel file of three tokens' attention under a mask, to a cache that grows by them."""
    tokens, width, past, groups = 3, cached_attention.WIDTH, 5, cached_attention.GROUPS
    fresh, cache = (2, tokens, groups, width), (2, groups, past, width)
    shapes = ((2, tokens, 2 * groups * width), fresh, fresh, cache, cache, (2, 1, tokens, past + tokens))
    return kernel_file(ir.from_proto(cached_attention.graph(tokens=tokens)), (shapes,))


def depthwise(case: depthwise_models.Case) -> dict[str, Any]:
    """The kernel file of a depthwise convolution with all that stands in front of it."""
    found = depthwise_models.fused(case)
    feeds = tuple(case.feeds()[i.name].shape for i in found.optimized.graph.input)
    return _document(found.kernels, ir.from_proto(found.optimized), (feeds,))


def group_norm(case: group_norm_models.Case) -> dict[str, Any]:
    found = group_norm_models.fused(case)
    feeds = tuple(case.feeds()[i.name].shape for i in found.optimized.graph.input)
    return _document(found.kernels, ir.from_proto(found.optimized), (feeds,))


def squeeze_excite(case: squeeze_excite_models.Case) -> dict[str, Any]:
    """The kernel file of a squeeze-excite."""
    found = squeeze_excite_models.fused(case)
    return _document(found.kernels, ir.from_proto(found.optimized), ((case.x,),))


def experts(case: experts_models.Case, *, of_products: bool = False) -> dict[str, Any]:
    """The kernel file of a mixture of experts, for few tokens and for many. of_products: cuBLASLt multiplies all."""
    found = experts_models.fused(case)
    document = json.loads(kernels_json.to_json(found.kernels, FATBIN))
    for variant in document["kernels"][0]["variants"] if of_products else ():
        variant["least_rows"] = 0
    weights = [list(weight.shape) for weight in case.weights()]
    choices = [[[tokens, case.columns], *[[tokens, case.chosen]] * 2, *weights] for tokens in (case.tokens, 40)]
    return {**document, "cases": {found.kernels[0].name: choices}}


def image_convolution(case: image_convolution_models.Case) -> dict[str, Any]:
    """The kernel file of a convolution of an image."""
    found = image_convolution_models.fused(case)
    return _document(found.kernels, ir.from_proto(found.optimized), ((case.given_dims(),),))


def flash_attention(case: flash_attention_models.Case) -> dict[str, Any]:
    """The kernel file of an attention of many queries."""
    found = flash_attention_models.fused(case)
    return _document(found.kernels, ir.from_proto(found.optimized), (tuple(case.shapes().values()),))


def packed(weight: packed_weights.Weight, rows: Sequence[int]) -> dict[str, Any]:
    """The kernel file of a product with packed codes, its bias and a residual."""
    products = packed_weights.Products()
    products.constant("bias", np.ones(weight.columns, np.float16))
    products.product("p", "x", weight, ["", "bias"])
    products.node("Add", ["p", "r"], "y")
    inputs = {"x": ("float16", ["N", weight.depth]), "r": ("float16", ["N", weight.columns])}
    model = ir.serde.deserialize_model(products.model(inputs, {"y": "float16"}))
    return kernel_file(model, tuple(((n, weight.depth), (n, weight.columns)) for n in rows))


def packed_gate() -> dict[str, Any]:
    """The kernel file of a product with packed codes whose halves are multiplied."""
    products, weight = packed_weights.Products(), packed_weights.Weight(40, 96)
    products.constant("sizes", np.array([20, 20]))
    products.split(products.product("p", "x", weight), "sizes", ["g", "u"])
    products.node("Gelu", ["g"], "a", approximate="tanh")
    products.node("Mul", ["a", "u"], "y")
    model = ir.serde.deserialize_model(products.model({"x": ("float16", ["N", 96])}, {"y": "float16"}))
    return kernel_file(model, (((2, 96),), ((70, 96),)))


def convolution(layer: convolution_graphs.Layer) -> dict[str, Any]:
    model = ir.from_proto(layer.model(casts=False))
    return kernel_file(model, (tuple(value.shape for value in layer.feeds().values()),))


def kernel_file(model: ir.Model, calls: tuple[tuple[Dims, ...], ...]) -> dict[str, Any]:
    """kernels.json of a model as a document, with its cases. AssertionError where nothing was fused."""
    kernels = outline(model, fuse(model))
    assert kernels
    return _document(kernels, model, calls)


def _document(kernels: Sequence[Kernel], model: ir.Model, calls: tuple[tuple[Dims, ...], ...]) -> dict[str, Any]:
    """model: with nodes that call the kernels."""
    document = json.loads(kernels_json.to_json(kernels, FATBIN))
    cases: dict[str, list[list[list[int]]]] = {}
    for call in calls:
        for name, shapes in _shapes(model, call).items():
            cases.setdefault(name, []).append(shapes)
    for kernel in document["kernels"]:
        points = kernel["variants"]
        if kernel["kind"] in ("pointwise", "gemm") and len(points) > _ENTRY_POINTS:
            kernel["variants"] = [*points[: _ENTRY_POINTS - 2], *points[-2:]]
    return {**document, "cases": cases}


def _shapes(model: ir.Model, call: tuple[Dims, ...]) -> dict[str, list[list[int]]]:
    """The input shapes of every fused node, from a run of the model that gives them as outputs where it must."""
    proto = ir.to_proto(model)
    nodes = [n for n in proto.graph.node if n.domain == "onnxopt"]
    wanted = {name for n in nodes for name in n.input}
    known = {o.name for o in (*proto.graph.output, *proto.graph.input)} | {t.name for t in proto.graph.initializer}
    given = dict(zip((i.name for i in proto.graph.input), call, strict=True))
    given |= {t.name: tuple(t.dims) for t in proto.graph.initializer}
    if wanted <= given.keys():  # ONNX Runtime's CPU provider has no float16 convolutions
        return {n.op_type: [list(given[name]) for name in n.input] for n in nodes}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(wanted - known))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {}
    for value, dims in zip(session.get_inputs(), call, strict=True):
        dtype = {"tensor(float)": "float32"}.get(value.type, value.type[len("tensor(") : -1])
        feeds[value.name] = np.ones(dims, dtype)
    names = [o.name for o in session.get_outputs()]
    found = dict(zip(names, session.run(names, feeds), strict=True)) | feeds
    found |= {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    return {n.op_type: [list(found[name].shape) for name in n.input] for n in nodes}
