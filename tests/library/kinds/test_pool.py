"""Pools in the library: what it refuses, and what becomes of their functions with a GPU and without one."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from cases import pool as pool_models
from cases.models import fuse, outline, text_dtype
from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.fusion.region import Kernel
from onnxopt.program.pool import DTYPES, Pool
from onnxopt.program.window import Depth
from tests.support import graphs
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.fakes import custom_ops_fake_driver as fake_driver
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")
POOL = pool_models.of("max", "float32", (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))


def outlined() -> tuple[ir.Model, Kernel]:
    model = pool_models.model(POOL)
    (kernel,) = outline(model, fuse(model))
    return model, kernel


_VARIANT = "kernels.0.variants.0"
DAMAGE = {
    "a tile of no rows": (f"{_VARIANT}.down", 0, "down is not an integer from 1 to 16"),
    "a vector of 32 bytes": (f"{_VARIANT}.vector", 8, "vector is wider than one access"),
    "64 bits": (f"{_VARIANT}.index", 64, "index is not 32"),
    "threads of no whole warp": (f"{_VARIANT}.threads", 100, "threads is no multiple of a warp"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path: pathlib.Path) -> None:
    field, value, message = DAMAGE[name]
    idle_gpu.assert_refused(tmp_path, idle_gpu.document([outlined()[1]], set_field(field, value)), message)


_SPACE = (
    *(pool_models.of("max", d, (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)) for d in DTYPES["max"]),
    *(pool_models.of("average", d, (3, 2), strides=(2, 1), pads=(1, 1, 2, 0)) for d in ("float32", "float16")),
    pool_models.of("max", "float32", (3, 2), dilations=(2, 3), pads=(2, 1, 1, 1)),
    pool_models.of("max", "float32", (3, 3), strides=(2, 2), auto_pad="SAME_UPPER", ceil_mode=True),
    pool_models.of("max", "float32", (4, 3), strides=(2, 1), auto_pad="SAME_LOWER"),
    pool_models.of("max", "float32", (3, 2), strides=(2, 3), auto_pad="VALID", ceil_mode=True),
    pool_models.of("max", "float16", (2, 2), strides=(3, 3), pads=(1, 1, 1, 1), ceil_mode=True),
    pool_models.of("average", "float32", (3, 3), strides=(2, 2), pads=(1, 1, 0, 0), ceil_mode=True),
    pool_models.of("average", "float32", (2, 2), dilations=(2, 1), pads=(1, 0, 1, 1), count_include_pad=True),
    pool_models.of("max", "float16", (3, 3), strides=(2, 2), depth=Depth(3, 2, 1, 1, 1), ceil_mode=True),
    pool_models.of("average", "float32", (2, 2), auto_pad="SAME_LOWER", depth=Depth(3, 2)),
)


def _several(chosen: Sequence[Pool]) -> ir.Model:
    """Pool k reads xk and gives yk, of float32 where numpy does not have its dtype."""
    inputs, outputs, body = [], [], []
    for k, pool in enumerate(chosen):
        dtype = text_dtype("float32" if pool.dtype == "bfloat16" else pool.dtype)
        depth = "" if pool.window.depth is None else f"D{k}, "
        inputs.append(f"{dtype}[N{k}, {depth}H{k}, W{k}, C{k}] x{k}")
        outputs.append(f"{dtype}[] y{k}")
        x, y = f"x{k}", f"y{k}"
        if pool.dtype == "bfloat16":
            body.append(f"in{k} = Cast<to = 16>(x{k})")
            x, y = f"in{k}", f"out{k}"
        body.append(pool_models.nodes(pool, x, y, str(k)))
        if pool.dtype == "bfloat16":
            body.append(f"y{k} = Cast<to = 1>(out{k})")
    return graphs.graph(", ".join(inputs), ", ".join(outputs), "  ".join(body), opset=22)


def _shapes(folder: pathlib.Path, pools: Sequence[Pool], feeds: list[dict[str, np.ndarray]]) -> Any:
    """What calls of these pools give: pool k reads xk and gives yk."""
    model = _several(pools)
    kernels = outline(model, fuse(model))
    assert sum(k.kind.name == "pool" for k in kernels) == len(pools)
    return idle_gpu.calls(folder / "run", ir.to_proto(model), idle_gpu.document(kernels), feeds)


def test_shapes_are_those_of_the_operator(tmp_path: pathlib.Path) -> None:
    every, rng = [*_SPACE, *pool_models.random_pools()], np.random.default_rng(4)
    feeds = [
        {f"x{k}": _drawn(rng, pool, dims) for k, pool in enumerate(every)}
        for dims in ((1, 40, 45, 1), (2, 41, 48, 3), (0, 40, 40, 3))
    ]
    for given, found in zip(feeds, _shapes(tmp_path, every, feeds), strict=True):
        expected = {f"y{k}": pool_models.expected(p, given[f"x{k}"]).shape for k, p in enumerate(every)}
        assert found == expected


def _drawn(rng: np.random.Generator, pool: Pool, dims: tuple[int, ...]) -> np.ndarray:
    dtype = "float32" if pool.dtype == "bfloat16" else pool.dtype  # numpy has none
    planes = () if pool.window.depth is None else (4 + dims[0],)
    return rng.integers(0, 100, (dims[0], *planes, *dims[1:])).astype(dtype)


REFUSED_VOLUMES = [
    ((1, 0, 4, 4, 3), "an image of 0 x 4 x 4 x 3 is empty; only N may be 0"),
    ((1, 1, 4, 4, 3), "a window of 3 x 2 x 2 is larger than its padded image of 1 x 4 x 4"),
]
REFUSED = [
    ((1, 0, 4, 3), "an image of 0 x 4 x 3 is empty; only N may be 0"),
    ((1, 4, 4, 0), "an image of 4 x 4 x 0 is empty; only N may be 0"),
    ((1, 1, 9, 3), "a window of 5 x 5 is larger than its padded image of 1 x 9"),
]


@pytest.mark.parametrize(
    ("pool", "refused"),
    [
        (pool_models.of("max", "float32", (5, 5)), REFUSED),
        (pool_models.of("max", "float32", (2, 2), depth=Depth(3)), REFUSED_VOLUMES),
    ],
)
def test_what_a_call_refuses(pool: Pool, refused: list[tuple[tuple[int, ...], str]], tmp_path: pathlib.Path) -> None:
    """ONNX Runtime's own pool refuses the same."""
    arrays = [np.zeros(dims, np.float32) for dims, _ in refused]
    said = _shapes(tmp_path, [pool], [{"x0": x} for x in arrays])
    for x, one, (_, message) in zip(arrays, said, refused, strict=True):
        assert message in one
        with pytest.raises(Exception, match="MaxPool"):
            artifact.session(ir.to_proto(pool_models.model(pool)), None).run(None, {"x": x})


def _expected(x: np.ndarray) -> np.ndarray:
    return pool_models.expected(POOL, x)


def test_without_a_gpu_the_function_is_inlined(tmp_path: pathlib.Path) -> None:
    model, kernel = outlined()
    assert not kernel.cpu
    library = artifact.copy_library(tmp_path)
    (tmp_path / "kernels.json").write_text(kernels_json.to_json([kernel], None))
    x = np.random.default_rng(1).standard_normal((2, 7, 6, 5)).astype(np.float32)
    (y,) = artifact.session(ir.to_proto(model), library).run(None, {"x": x})
    np.testing.assert_array_equal(y, _expected(x))


_RUN = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
np.save(sys.argv[3], session.run(None, {"x": np.load(sys.argv[4])})[0])
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_with_a_gpu_a_session_on_the_cpu_works_too(tmp_path: pathlib.Path) -> None:
    """ONNX Runtime inlines the function, although an op of its name is registered for the GPU."""
    model, kernel = outlined()
    fatbin = fake_driver.fatbin((90, False))
    document: dict[str, Any] = json.loads(kernels_json.to_json([kernel], None))
    document["fatbin"] = {
        "file": "kernels.fatbin", "sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin),
    }  # fmt: skip
    library = artifact.copy_library(tmp_path)
    (tmp_path / "kernels.fatbin").write_bytes(fatbin)
    (tmp_path / "kernels.json").write_text(sealed_json.seal(document))
    (tmp_path / "model.onnx").write_bytes(ir.to_proto(model).SerializeToString())
    x = np.random.default_rng(1).standard_normal((2, 7, 6, 5)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    driver = fake_driver.build()
    files = [str(tmp_path / name) for name in ("model.onnx", library.name, "y.npy", "x.npy")]
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_ARCH": "90"}
    done = subprocess.run([sys.executable, "-c", _RUN, *files], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), _expected(x))
