"""Pool regions: what is found, what stays, the entry points, and that no result changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases import pool as pool_models
from cases.models import fuse, outline
from onnxopt.codegen.generate import generate
from onnxopt.costs.pool import numbers
from onnxopt.fusion.region import FusionPlan
from onnxopt.kinds.pool.kind import POOL
from onnxopt.program.pool import Pool, PoolVariant
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.graphs import graph, run

_TO_NCHW, _TO_NHWC = "Transpose<perm = [0, 3, 1, 2]>", "Transpose<perm = [0, 2, 3, 1]>"
_MAX = "MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>"


def _plan(
    pool: str, dtype: str = "float16", behind: str = "y = Hardmax(q)", opset: int = 22, front: str = _TO_NCHW
) -> FusionPlan:
    body = f"t = {front}(x)  p = {pool}(t)  q = {_TO_NHWC}(p)  {behind}"
    return fuse(graph(f"{dtype}[N, H, W, C] x", f"{dtype}[] y", body, opset=opset))


def _pool_regions(plan: FusionPlan) -> list[list[str]]:
    return [[str(n.name) for n in r.nodes] for r in plan.regions if r.kind is POOL]


@pytest.mark.parametrize(
    ("pool", "fields"),
    [
        (_MAX, {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        (_MAX.replace("MaxPool", "AveragePool"), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        (
            "MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, storage_order = 1>",
            {"strides": (2, 2), "ceil_mode": True},
        ),
        (
            "AveragePool<kernel_shape = [3, 3], pads = [0, 0, 1, 1], count_include_pad = 1>",
            {"pads": (0, 0, 1, 1), "count_include_pad": True},
        ),
        ('MaxPool<kernel_shape = [3, 3], auto_pad = "SAME_LOWER">', {"auto_pad": "SAME_LOWER"}),
        ("MaxPool<kernel_shape = [3, 3], dilations = [2, 1]>", {"dilations": (2, 1)}),
    ],
)
def test_what_is_found(pool: str, fields: dict[str, object]) -> None:
    plan = _plan(pool)
    assert _pool_regions(plan) == [["t", "p", "q"]]
    (region,) = [r for r in plan.regions if r.kind is POOL]
    operation = "max" if pool.startswith("Max") else "average"
    assert region.meaning == pool_models.of(operation, "float16", (3, 3), **fields)
    assert [v.name for v in (*region.inputs, *region.outputs)] == ["x", "q"]
    assert not POOL.pays_on_cpu(region)
    assert region.traffic.launches_before == 1  # the model had a pool without the layout pass's Transposes
    region.meaning.verify()


def test_the_dilation_of_a_single_row_means_nothing() -> None:
    (region,) = _plan("MaxPool<kernel_shape = [1, 3], dilations = [5, 2]>").regions
    assert isinstance(region.meaning, Pool)
    assert region.meaning.window.dilations == (1, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float", "int8", "uint8"])
def test_dtypes(dtype: str) -> None:
    assert _pool_regions(_plan(_MAX, dtype, "y = Identity(q)"))


@pytest.mark.parametrize(
    ("pool", "dtype", "reason"),
    [
        (_MAX, "double", "No kernel runs MaxPool of float64"),
        ("MaxPool<kernel_shape = [3, 3], pads = [3, 0, 0, 0]>", "float16", "its window.pads are not smaller"),
        ('MaxPool<kernel_shape = [3, 3], dilations = [2, 1], auto_pad = "SAME_UPPER">', "float16",
         "its window.dilations are not 1 beside auto_pad"),
        ('MaxPool<kernel_shape = [1, 1], strides = [2, 2], auto_pad = "SAME_UPPER">', "float16",
         "its window.strides exceed the kernel beside auto_pad"),
        ("AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1, count_include_pad = 1>", "float16",
         "its count_include_pad is set beside ceil_mode"),
        ("MaxPool<kernel_shape = [1024, 1]>", "float16", "its window has a kernel, stride or dilation above 1023"),
    ],
)  # fmt: skip
def test_what_is_refused(pool: str, dtype: str, reason: str) -> None:
    plan = _plan(pool, dtype, "y = Identity(q)")
    assert not _pool_regions(plan)
    assert any(reason in r.reason for r in plan.refusals if r.node == "p"), plan.refusals


@pytest.mark.parametrize(
    ("behind", "front", "reason"),
    [
        ("u = Relu(p)  y = Hardmax(u)", _TO_NCHW, "The MaxPool's result is NCHW, or other nodes read it too"),
        ("u = Relu(t)  y = Hardmax(u)", _TO_NCHW, "The MaxPool's input is NCHW, or other nodes read it too"),
        ("y = Hardmax(q)", "Transpose<perm = [0, 2, 1, 3]>", "The MaxPool's input is NCHW, or other nodes"),
        ("y = Hardmax(q)", "Relu", "The MaxPool's input is NCHW, or other nodes"),
    ],
)
def test_pools_in_other_layouts_stay(behind: str, front: str, reason: str) -> None:
    plan = _plan(_MAX, behind=behind, front=front)
    assert not _pool_regions(plan)
    assert any(reason in r.reason for r in plan.refusals), plan.refusals


@pytest.mark.parametrize(
    ("size", "attributes", "flags"),
    [
        ("8, 6", "strides = [2, 2]", (False, False)), ("8, h", "strides = [2, 1]", (False, False)),
        ("8, 6", "strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 0", (False, True)),
        ("9, 6", "strides = [2, 2], ceil_mode = 0", (False, False)), ("9, 6", "strides = [2, 2]", None),
        ("h, 6", "strides = [2, 2]", None), ("8, 6", "strides = [2, 2], pads = [1, 0, 0, 0]", None),
    ],
)  # fmt: skip
def test_flags_that_change_nothing(size: str, attributes: str, flags: tuple[bool, bool] | None) -> None:
    """As torch writes both: windows that end with their map and have no padding are what they are without."""
    attributes += "" if "ceil_mode" in attributes else ", ceil_mode = 1"
    pool = f"AveragePool<kernel_shape = [2, 2], count_include_pad = 1, {attributes}>"
    body = f"t = {_TO_NCHW}(x)  p = {pool}(t)  q = {_TO_NHWC}(p)  y = Hardmax(q)"
    meanings = [r.meaning for r in fuse(graph(f"float16[N, {size}, C] x", "float16[] y", body)).regions]
    found = [(pool.ceil_mode, pool.count_include_pad) for pool in meanings if isinstance(pool, Pool)]
    assert found == ([] if flags is None else [flags])


@pytest.mark.parametrize("name", ["DynamicDimension.1", "floor(h/2)", "print(1)"])
def test_names_of_dims_are_no_expressions(name: str) -> None:
    """A model may name a dim by any text."""
    body = f"t = {_TO_NCHW}(x)  p = {_MAX.replace('pads', 'ceil_mode = 1, pads')}(t)  q = {_TO_NHWC}(p)  y = Hardmax(q)"
    model = graph("float16[N, H, W, C] x", "float16[] y", body)
    model.graph.inputs[0].shape = ir.Shape(["N", name, "W", "C"])
    (region,) = fuse(model).regions
    assert isinstance(region.meaning, Pool) and region.meaning.ceil_mode


def test_indices_stay_with_onnx_runtime() -> None:
    body = f"t = {_TO_NCHW}(x)  p, i = MaxPool<kernel_shape = [3, 3]>(t)  q = {_TO_NHWC}(p)  y = Hardmax(q)"
    plan = fuse(graph("float16[N, H, W, C] x", "float16[] y, int64[] i", body))
    assert not _pool_regions(plan)
    assert any("does not compute the Indices" in r.reason for r in plan.refusals)


def _variants(pool: Pool, dims: str) -> list[tuple[int, int, int]]:
    model = pool_models.model(pool, dims)
    (kernel,) = outline(model, fuse(model))
    assert kernel.name.startswith("MaxPool_" if pool.operation == "max" else "AveragePool_")
    generate([kernel])
    return [(v.vector, v.down, v.across) for v in kernel.variants if isinstance(v, PoolVariant)]


@pytest.mark.parametrize(
    ("pool", "dims", "expected"),
    [
        (pool_models.of("max", "float16", (3, 3), strides=(2, 2)), "N, H, W, C", [(8, 1, 1), (1, 1, 1)]),
        (pool_models.of("max", "float16", (3, 3)), "N, H, W, C", [(8, 2, 2), (1, 2, 2)]),
        (pool_models.of("max", "float16", (5, 5)), "N, H, W, C", [(8, 2, 4), (1, 2, 4)]),
        (pool_models.of("max", "float16", (4, 4), strides=(2, 2)), "N, H, W, 20", [(4, 2, 2), (1, 2, 2)]),
        (pool_models.of("max", "float16", (3, 3), strides=(2, 2)), "N, H, W, 3", [(1, 1, 1)]),
        (pool_models.of("max", "float32", (2, 2), strides=(2, 2)), "N, H, W, 64", [(4, 1, 1), (1, 1, 1)]),
        (pool_models.of("max", "int8", (4, 2), strides=(2, 2)), "N, H, W, 64", [(16, 2, 1), (1, 2, 1)]),
        (pool_models.of("max", "float16", (13, 13)), "N, H, W, 64", [(8, 1, 4), (1, 1, 4)]),
        (pool_models.of("max", "float16", (2, 17)), "N, H, W, 64", [(8, 1, 1), (1, 1, 1)]),
        (pool_models.of("max", "float16", (3, 3), dilations=(2, 2)), "N, H, W, 64", [(8, 1, 1), (1, 1, 1)]),
        (pool_models.of("average", "float16", (4, 4)), "N, 4, 4, 64", [(8, 1, 1), (1, 1, 1)]),
        (pool_models.of("average", "float16", (7, 7), strides=(7, 7)), "N, H, W, C", [(8, 1, 1), (2, 1, 1), (1, 1, 1)]),
    ],
)
def test_entry_points(pool: Pool, dims: str, expected: list[tuple[int, int, int]]) -> None:
    assert _variants(pool, dims) == expected


def test_alternatives_are_tiles_that_the_device_code_has() -> None:
    tiles = numbers().tiles
    of_one_row = tuple(tile for tile in tiles if tile[0] == 1)
    for kernel_shape, dilations, expected in (
        ((3, 3), (1, 1), tiles), ((13, 13), (1, 1), of_one_row), ((3, 3), (2, 1), ((1, 1),)),
    ):  # fmt: skip
        pool = pool_models.of("max", "float16", kernel_shape, dilations=dilations)
        model = pool_models.model(pool)
        (kernel,) = outline(model, fuse(model))
        others = [v for v in POOL.alternatives(kernel) if isinstance(v, PoolVariant) and v.problem(pool) is None]
        assert tuple((v.down, v.across) for v in others) == expected


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_results_do_not_change_without_the_library(tmp_path: Path, dtype: str) -> None:
    model = graph(f"{dtype}[N, H, W, 5] x", f"{dtype}[] y",
                  f"t = {_TO_NCHW}(x)  p = {_MAX}(t)  q = {_TO_NHWC}(p)  y = Relu(q)")  # fmt: skip
    x = np.random.default_rng(2).standard_normal((2, 7, 9, 5)).astype("float32" if dtype == "float" else dtype)
    expected = run(model, {"x": x})
    outline(model, fuse(model))
    for library in (None, artifact.copy_library(tmp_path)):
        np.testing.assert_array_equal(artifact.session(ir.to_proto(model), library).run(None, {"x": x}), expected)
