"""Products that the library has cuBLASLt compute, a stand-in, against float64; what it refuses, and damaged files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from onnx import helper

from onnxopt.program.gemm import Gemm
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.fakes import custom_ops_fake_driver as fake_driver
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")
F = "float32"
# of the largest |value|: sums in float32, one rounding to storage
TOLERANCE = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


def row(gemm: Gemm, **fields) -> dict:
    gemm.verify()
    return {"name": artifact.NAME, "kind": "gemm", **gemm.to_json(), "cpu": False, "variants": [], **fields}


def expected(gemm: Gemm, arrays: list[np.ndarray]) -> np.ndarray:
    """The definition in gemm.py, in float64."""
    x = [a.astype(np.float64) for a in arrays]
    if gemm.rows:
        x[gemm.a] = x[gemm.a][..., gemm.first_row : gemm.first_row + gemm.rows, :]
    a = x[gemm.a].swapaxes(-1, -2) if gemm.transpose_a else x[gemm.a]
    b = x[gemm.b].swapaxes(-1, -2) if gemm.transpose_b else x[gemm.b]
    y = gemm.alpha * (a @ b)
    if gemm.bias is not None:
        y = y + x[gemm.bias].reshape(-1)
    if gemm.residual is not None:
        y = y.reshape(x[gemm.residual].shape) + gemm.beta * x[gemm.residual]
    if gemm.activation == "relu":
        y = np.maximum(y, 0)
    if gemm.activation == "gelu_tanh":
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
    return y


def body(gemm: Gemm):
    """A function that fails if it runs."""
    return artifact.wrong_body(*gemm.outputs)


def draw(gemm: Gemm, shapes) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    outside = [F if d == "bfloat16" else d for d in gemm.inputs]
    arrays = [np.asarray(rng.standard_normal(s)).astype(d) for s, d in zip(shapes, outside, strict=True)]
    if "bfloat16" in gemm.inputs:  # values that bfloat16 holds exactly
        arrays = [(a.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for a in arrays]
    return arrays


def results(folder, cases) -> list:
    """What each (meaning, arrays, dims of the inputs in the graph) gives on a GPU: its outputs, or the error's text."""
    rows, jobs = [], []
    for k, (one, arrays, dims) in enumerate(cases):
        rows.append(row(one, name=f"Fused_{k:08x}"))
        inputs = list(zip(one.inputs, dims, strict=True))
        model = artifact.model(body(one), inputs, [(d, None) for d in one.outputs], name=rows[-1]["name"])
        jobs.append((model, [{f"x{n}": array for n, array in enumerate(arrays)}]))
    found = idle_gpu.run(folder / "run", idle_gpu.document_of(*rows), jobs, multiplies=True)
    return [one if isinstance(one, str) else [one[f"y{n}"] for n in range(len(one))] for (one,) in found]


def check(folder, cases) -> None:
    """cases: meaning and shapes. Where there are several outputs, they are equal parts of the product's columns."""
    arrays = [draw(one, shapes) for one, shapes in cases]
    given = [(one, drawn, [list(a.shape) for a in drawn]) for (one, _), drawn in zip(cases, arrays, strict=True)]
    for found, (one, drawn, _) in zip(results(folder, given), given, strict=True):
        assert not isinstance(found, str), found
        wanted = np.split(expected(one, drawn), len(one.outputs), axis=-1)
        for y, part in zip(found, wanted, strict=True):
            assert y.shape == part.shape
            scale = np.abs(part).max(initial=1.0)
            np.testing.assert_allclose(y.astype(np.float64), part, atol=TOLERANCE[one.outputs[0]] * scale, rtol=0)


def gemm(count: int = 2, dtype: str = F, **fields) -> Gemm:
    return Gemm((dtype,) * count, (dtype,), **fields)


SHAPES = [
    ((5, 7), (7, 3)),
    ((1, 64), (64, 64)),  # one row
    ((33, 65), (65, 130)),  # one above the blocks
    ((2, 3, 4), (4, 5)),  # rows of a batch are rows of one matrix
    ((2, 1, 3, 4), (5, 4, 6)),  # batches that broadcast both ways
    ((2, 3, 4, 5), (2, 3, 5, 6)),
    ((4, 5), (3, 5, 2)),
    ((3, 0), (0, 2)),  # a sum over nothing
    ((0, 3), (3, 2)),
    ((2, 3), (3, 0)),
    ((0, 2, 3), (3, 4)),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_products(tmp_path, dtype):
    check(tmp_path, [(gemm(dtype=dtype), shapes) for shapes in SHAPES])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_transposed(tmp_path, dtype):
    cases = []
    for turned, shapes in itertools.product([(True, False), (False, True), (True, True)], SHAPES):
        dims = [(*s[:-2], s[-1], s[-2]) if t else s for s, t in zip(shapes, turned, strict=True)]
        cases.append((gemm(dtype=dtype, transpose_a=turned[0], transpose_b=turned[1]), dims))
    check(tmp_path, cases)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_epilogues(tmp_path, dtype):
    cases = []
    for activation, shape in itertools.product(["none", "relu", "gelu_tanh"], [(9, 4), (2, 5, 4)]):
        weight, bias, whole = (shape[-1], 70), (70,), (*shape[:-1], 70)
        common = {"dtype": dtype, "activation": activation, "alpha": 0.75}
        cases += [
            (gemm(3, bias=2, **common), [shape, weight, bias]),
            (gemm(3, bias=2, **common), [shape, weight, (1, 70)]),
            (gemm(3, residual=2, beta=-0.5, **common), [shape, weight, whole]),
            (gemm(4, bias=2, residual=3, **common), [shape, weight, bias, whole]),
        ]
    check(tmp_path, cases)


def test_operands_that_are_one_input_and_dims_of_a_residual(tmp_path):
    check(tmp_path, [
        (gemm(2, residual=0), [(6, 6), (6, 6)]),
        (Gemm((F,), (F,), a=0, b=0), [(6, 6)]),
        (gemm(3, residual=2, residual_shape=True), [(6, 4), (4, 5), (2, 3, 5)]),
    ])  # fmt: skip


def test_parts(tmp_path):
    """Several outputs are equal parts of the product's columns."""
    cases = []
    for dtype, parts, turned in itertools.product(["float32", "float16", "bfloat16"], [2, 3], [False, True]):
        one = Gemm((dtype,) * 3, (dtype,) * parts, bias=2, activation="relu", transpose_b=turned)
        columns = 70 * parts
        cases.append((one, [(2, 5, 9), (columns, 9) if turned else (9, columns), (columns,)]))
    check(tmp_path, cases)


SLICED = [
    ((9, 8), (8, 6)),
    ((2, 9, 8), (8, 6)),
    ((3, 2, 9, 8), (8, 6)),
    ((2, 9, 8), (2, 8, 6)),
    ((1, 9, 8), (3, 8, 6)),
    ((4, 1, 9, 8), (3, 8, 6)),
    ((2, 9, 0), (0, 6)),
    ((0, 9, 8), (8, 6)),
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_of_a(tmp_path, dtype):
    """Some rows of every matrix are read where they are stored."""
    cases = []
    for rows, first, turned in itertools.product([1, 3, 5], [0, 2, 4], [False, True]):
        common = {"dtype": dtype, "rows": rows, "first_row": first, "transpose_b": turned}
        for a, b in SLICED:
            b = (*b[:-2], b[-1], b[-2]) if turned else b
            cases.append((gemm(**common), [a, b]))
        out = (2, rows, 6)
        b = (6, 8) if turned else (8, 6)
        cases.append((gemm(4, bias=2, residual=3, activation="relu", **common), [(2, 9, 8), b, (6,), out]))
    check(tmp_path, cases)


def test_nan_passes_relu(tmp_path):
    x = np.array([[np.nan, 0], [1, 0]], F)
    (((found,),)) = results(tmp_path, [(gemm(activation="relu"), [x, np.eye(2, dtype=F)], [[2, 2], [2, 2]])])
    assert np.isnan(found[0, 0])
    assert found[1, 0] == 1


MISFITS = [
    ({}, 2, [(2, 3), (4, 5)], "the matrices do not fit together: a [2, 3], b [4, 5]"),
    ({"transpose_b": True}, 2, [(2, 3), (3, 5)], "b^T [3, 5]"),
    ({}, 2, [(2, 2, 3), (3, 3, 5)], "leading dims do not broadcast"),
    ({}, 2, [(3,), (3, 5)], "an operand of a product is no matrix"),
    ({"bias": 2}, 3, [(2, 3), (3, 5), (2, 5)], "the bias is not a vector along the last dim"),
    ({"residual": 2}, 3, [(2, 3), (3, 5), (1, 5)], "the residual does not have the product's shape"),
    ({"outputs": (F, F)}, 2, [(2, 3), (3, 5)], "have no 2 equal parts"),
    ({"rows": 2, "first_row": 3}, 2, [(2, 4, 3), (3, 5)], "rows that are read are not there"),
    ({"outputs": (F, F)}, 2, [(2, 2, 3), (2, 3, 4)], "have no 2 equal parts"),
]


def test_shapes_that_do_not_fit(tmp_path):
    cases = []
    for fields, count, shapes, _ in MISFITS:
        one = dataclasses.replace(gemm(count), **fields)
        cases.append((one, draw(one, shapes), [None] * count))
    for said, (*_, message) in zip(results(tmp_path, cases), MISFITS, strict=True):
        assert message in said


def test_the_function_runs_where_there_is_no_gpu(tmp_path):
    library = artifact.write(tmp_path, [row(gemm())])
    identity = [helper.make_node("Identity", ["x0"], ["y0"])]
    model = artifact.model(identity, [(F, [2, 2])] * 2, [(F, None)])
    x = np.full((2, 2), 3, F)
    np.testing.assert_array_equal(artifact.run(artifact.session(model, library), [x, x])[0], x)


FEW_ROWS = {
    "symbol": "k_rows1", "modes": "", "index": 32, "vector": 4, "unroll": 8, "threads": 64, "waits": True, "rows": 1,
    "columns": 1, "shared": 0}  # fmt: skip
TILES = {
    "symbol": "k_tiles256", "modes": "", "index": 32, "vector": 1, "unroll": 1, "threads": 384, "waits": True,
    "role": "tiles", "columns": 256, "shared": 232_000,
}  # fmt: skip
HALF = {"inputs": ["float16"] * 4, "outputs": ["float16"], "activation": "gelu"}
DAMAGE = {
    "tiles without a gelu": ({"variants": [TILES]}, "does not go with this product's activation"),
    "unknown role": ({**HALF, "variants": [{**TILES, "role": "sum"}]}, 'role is "sum", not one of activation'),
    "odd tile": ({**HALF, "variants": [{**TILES, "columns": 100}]}, "columns is no multiple of 64"),
    "small block of tiles": ({**HALF, "variants": [{**TILES, "threads": 256}]}, "threads is not 384"),
    "too much shared memory": ({**HALF, "variants": [{**TILES, "shared": 300_000}]}, "shared is not an integer from 0"),
    "tiles of a transposed a": (
        {**HALF, "transpose_a": True, "variants": [TILES]},
        "whose first operand is not transposed",
    ),
    "code": ({"variants": [{}]}, 'has no field "symbol"'),
    "code for other transposes": (
        {"variants": [FEW_ROWS]},
        "with its second operand transposed alone",
    ),
    "code of half a warp": ({"variants": [{**FEW_ROWS, "threads": 48}]}, "is no multiple of a warp"),
    "code of short vectors": ({"variants": [{**FEW_ROWS, "vector": 2}]}, "vector is not 16 bytes"),
    "unknown kind": ({"kind": "winograd"}, 'kind is "winograd"'),
    "a CPU kernel": ({"cpu": True}, "cpu is true, and there are no CPU kernels of this kind"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage(tmp_path, name):
    fields, message = DAMAGE[name]
    good = row(gemm(4, bias=2, residual=3))
    damaged = {k: v for k, v in {**good, **fields}.items() if v is not ...}
    library = artifact.write(tmp_path, [damaged])
    model = artifact.model(body(gemm()), [(F, None)] * 4, [(F, None)])
    with pytest.raises(Exception, match=r"kernels\.json") as caught:
        artifact.session(model, library)
    assert message in str(caught.value)


def test_json_leaves_out_what_is_not_there():
    assert "bias" not in json.loads(json.dumps(gemm().to_json()))


# registering on a machine with a GPU


_WHICH_RAN = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[2])
x = np.full((2, 2), 3, np.float32)
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print("kernel" if session.run(None, {"x0": x, "x1": x})[0][0, 0] == 18 else "function")
"""


def _without_cuda_provider(folder: pathlib.Path) -> pathlib.Path:
    """A copy of the onnxruntime package, of links, that lacks the CUDA provider; returns what goes on the path."""
    source = pathlib.Path(artifact.ort.__file__).parent
    for path in source.rglob("*"):
        if path.is_dir() or "providers_cuda" in path.name or "__pycache__" in path.parts:
            continue
        link = folder / "onnxruntime" / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return folder


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to build the stand-in driver with")
@pytest.mark.parametrize("provider", [True, False])
def test_registering_with_a_gpu(tmp_path, provider):
    """A CPU session runs the function, whether the CUDA op is registered or what it needs is missing."""
    if provider and not any(pathlib.Path(artifact.ort.__file__).parent.rglob("libonnxruntime_providers_cuda.so")):
        pytest.skip("this onnxruntime has no CUDA provider")
    library = artifact.write(tmp_path, [row(gemm())])
    model = tmp_path / "model.onnx"
    identity = [helper.make_node("Identity", ["x0"], ["y0"])]
    model.write_bytes(artifact.model(identity, [(F, [2, 2])] * 2, [(F, None)]).SerializeToString())
    driver = fake_driver.build()
    env = {**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_ARCH": "90"}
    if not provider:
        env["PYTHONPATH"] = str(_without_cuda_provider(tmp_path / "site"))
    command = [sys.executable, "-c", _WHICH_RAN, str(model), str(library)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "function"
    assert ("no libcublasLt.so" in done.stderr) == (not provider)
