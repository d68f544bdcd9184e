"""What hostile models are built with: the registry, models from parts or text, and seeded feeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Feeds = list[dict[str, np.ndarray]]
Builder = Callable[[], tuple[onnx.ModelProto, Feeds]]

MODELS: dict[str, Builder] = {}

_RANK_SIZES = ({"N": 2, "M": 3}, {"N": 1, "M": 5}, {"N": 4, "M": 1})


def hostile(builder: Builder) -> Builder:
    """Register a builder under its name."""
    MODELS[builder.__name__] = builder
    return builder


def value(name: str, dims: list | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    ir_version: int | None = None,
    domains: dict[str, int] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """A model of these parts; the IR version is the one exporters of that opset wrote, unless given."""
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (initializers or {}).items()]
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    return helper.make_model(
        helper.make_graph(nodes, "hostile", inputs, outputs, tensors),
        opset_imports=imports,
        ir_version=ir_version or max(8 if functions else 3, helper.find_min_ir_version_for(imports[:1])),
        functions=functions or [],
    )


def random_feeds(model: onnx.ModelProto, *sizes: dict[str, int]) -> Feeds:
    """Seeded inputs for each set of sizes of the dynamic dims; floats from N(0, 1), integers 0 to 4."""
    random = np.random.default_rng(7)
    constants = {tensor.name for tensor in model.graph.initializer}
    feeds = []
    for chosen in sizes or _RANK_SIZES:
        feed = {}
        for declared in model.graph.input:
            if declared.name in constants:
                continue
            tensor = declared.type.tensor_type
            shape = [chosen[d.dim_param] if d.dim_param else d.dim_value for d in tensor.shape.dim]
            feed[declared.name] = _random_array(random, shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        feeds.append(feed)
    return feeds


def _random_array(random: np.random.Generator, shape: list[int], dtype: np.dtype) -> np.ndarray:
    if dtype == np.object_:
        return random.choice(np.array(["a", "bb", "ccc", ""], dtype=object), shape)
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(bool)
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, 5, shape).astype(dtype)
    return np.asarray(random.standard_normal(shape)).astype(dtype)


def text(source: str, *sizes: dict[str, int], opset: int = 17, ir_version: int = 8, domains: str = "") -> tuple:
    """A model in onnx's text syntax (https://onnx.ai/onnx/repo-docs/Syntax.html) and random feeds."""
    header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}{domains}]>\n'
    model = onnx.parser.parse_model(header + source)
    return model, random_feeds(model, *sizes)
