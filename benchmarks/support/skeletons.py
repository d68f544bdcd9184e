"""Skeletons: graphs without their large weights, which are drawn again from a seed where they are needed.

`harness.load` (in .gpu/, beside the GPU machine's ONNX Runtime) fills the exported graphs: those beside it, and those
of benchmarks/graphs, which `python -m benchmarks.support.skeletons NAME` writes. An optimized graph becomes a skeleton
too. `strip` replaces every weight that follows byte for byte from the original's weights by a recipe, and keeps the
weights that the optimizer computed.
"""

from __future__ import annotations

import json
import lzma
import pathlib
import sys
from types import ModuleType

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.support.recipes import Recipe, Recipes

_KEEP_BELOW = 4096  # bytes; smaller tensors travel as they are
_HARNESS_DEVIATION = 0.02  # of the weights that harness.load draws
_LARGEST = 1 << 20  # bytes of one packed graph; several must fit beside what else is carried
GPU_FOLDER = pathlib.Path(__file__).parents[2] / ".gpu"
GRAPHS = pathlib.Path(__file__).parents[1] / "graphs"
_CACHED = 512  # tokens in the cache of a decoding step, where the graph leaves that open


def harness() -> ModuleType:
    """The measuring harness of .gpu/, which env.sh puts on the path on the GPU machine."""
    if str(GPU_FOLDER) not in sys.path:
        sys.path.append(str(GPU_FOLDER))
    import harness

    return harness


def folder_of(name: str) -> pathlib.Path:
    """Where the exported graph of this name lies."""
    own = (GRAPHS / f"{name}.onnx.xz").is_file()
    return GRAPHS if own else pathlib.Path(harness().SKELETONS)


def sample_inputs(model: onnx.ModelProto, name: str, **sizes: int) -> dict[str, np.ndarray]:
    """Seeded inputs of an exported graph. sizes: of symbolic dims; default batch 1 and a cache of 512 tokens.

    Graphs of .gpu/ get the shape that they were exported with where no sizes are given.
    """
    if folder_of(name) != GRAPHS and not sizes:
        return {model.graph.input[0].name: harness().sample_input(name)}
    random, sizes = np.random.default_rng(1), {"batch": 1, "past": _CACHED, **sizes}
    given = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        integers = np.issubdtype(dtype, np.integer)
        drawn = random.integers(0, 30000, shape) if integers else random.standard_normal(shape, np.float32)
        given[value.name] = drawn.astype(dtype)
    return given


def empty(model: onnx.ModelProto, path: pathlib.Path) -> int:
    """Write an exported graph to `path` (.onnx.xz) without its large weights, whose dims and dtypes go to a .json.

    `model` loses those weights. Returns the bytes written.
    """
    emptied = {}
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) >= _KEEP_BELOW:
            emptied[tensor.name] = [list(tensor.dims), tensor.data_type]
            tensor.ClearField("raw_data")
    path.write_bytes(lzma.compress(model.SerializeToString(), preset=9))
    path.with_suffix("").with_suffix(".json").write_text(json.dumps(emptied))
    return path.stat().st_size


def original(name: str) -> onnx.ModelProto:
    """The exported graph filled with seeded weights by harness.load, in which a difference can be seen.

    harness.load leaves masks all false, with which attention gives zeros, and draws convolutions so small that no trace
    of the input reaches the output: masks are made causal, and convolutions keep the variance.
    """
    model: onnx.ModelProto = harness().load(name, folder_of(name))
    emptied = json.loads((folder_of(name) / f"{name}.json").read_text())
    for tensor in model.graph.initializer:
        if tensor.name not in emptied:
            continue
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.bool_ and value.ndim >= 2:
            whole = np.ones_like(value)
            tensor.raw_data = (whole if tensor.name.startswith("eq") else np.tril(whole)).tobytes()
        elif value.ndim == 4 and value.dtype.kind == "f":
            scale = np.sqrt(2.0 / value[0].size) / _HARNESS_DEVIATION
            tensor.raw_data = (value.astype(np.float32) * scale).astype(value.dtype).tobytes()
    return model


def strip(optimized: onnx.ModelProto, source: onnx.ModelProto, path: pathlib.Path) -> int:
    """Write the optimized model to `path` (.onnx.xz) without the weights that `source` gives; bytes written.

    `optimized` loses those weights; a .json beside `path` has the recipe of each. Raises ValueError where the constants
    that the optimizer computed make the file too large to carry.
    """
    recipes = Recipes(source)
    stripped = {}
    for tensor in optimized.graph.initializer:
        recipe = recipes.find(tensor) if len(tensor.raw_data) >= _KEEP_BELOW else None
        if recipe is not None:
            stripped[tensor.name] = recipe.to_json()
            tensor.ClearField("raw_data")
    packed = lzma.compress(optimized.SerializeToString(), preset=9)
    if len(packed) > _LARGEST:
        raise ValueError(f"{path.name}: {len(packed)} bytes with the optimizer's constants, more than {_LARGEST}")
    path.write_bytes(packed)
    path.with_suffix("").with_suffix(".json").write_text(json.dumps(stripped))
    return path.stat().st_size


def restore(path: pathlib.Path, source: onnx.ModelProto) -> onnx.ModelProto:
    """The model that `strip` was given, with its weights made from those of `source` again.

    Raises ValueError where `source` is not the graph that `strip` had.
    """
    model = onnx.load_from_string(lzma.decompress(path.read_bytes()))
    stripped = json.loads(path.with_suffix("").with_suffix(".json").read_text())
    weights = {t.name: t for t in source.graph.initializer}
    for tensor in model.graph.initializer:
        if tensor.name in stripped:
            data = Recipe.from_json(stripped[tensor.name]).data(weights, tensor.dims)
            if data is None:
                raise ValueError(f"{path.name}: {tensor.name} does not follow from the weights of this source")
            tensor.raw_data = data
    return model


if __name__ == "__main__":
    import models

    for exported in sys.argv[1:]:  # float16, as the others
        source = onnx.load(models.path(exported.replace("_dyn", "") + "_fp16" + "_dyn" * exported.endswith("_dyn")))
        print(exported, empty(source, GRAPHS / f"{exported}.onnx.xz"), "bytes")
