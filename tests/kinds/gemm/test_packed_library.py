"""Products with weights of 2, 4 and 8 bits, chosen and launched by the library, the device code run by g++: float64.

A stand-in for cuBLASLt multiplies the products of many rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from cases.packed_weights import STORED, Products, Weight
from tests.support import sampling
from tests.support.emulation import emulated_library
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")
_TOLERANCE = {"float16": 6e-4, "bfloat16": 5e-3}  # of the largest result: rounding to the storage dtype, half an ulp


def run(folder: Path, products: Products, inputs, outputs, feeds):
    """What the fused model gives for each of the feeds, and the entry points that were launched, without names."""
    model = ir.serde.deserialize_model(products.model(inputs, outputs))
    kernels = outline(model, fuse(model))
    libraries = [emulated_library.stand_in(idle_gpu.MULTIPLIES, "libcublasLt.so.13")]
    results, launched = emulated_library.run(
        folder / "run", ir.serde.serialize_model(model), kernels, feeds, libraries=libraries
    )
    return results, {symbol.rsplit("_", 1)[1] for symbol in launched}


def check(found: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    assert found.shape == expected.shape
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=_TOLERANCE[dtype] * largest)


def drawn(shape, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


WEIGHTS = [
    Weight(40, 512),
    Weight(33, 544, zeros="codes"),  # columns that fill no tile, an odd number of groups
    Weight(17, 1000, group=128, zeros="floats"),  # depth that ends inside a group
    Weight(48, 288, bits=8, zeros="codes"),
    Weight(31, 640, bits=8, group=64, zeros="floats"),
    Weight(17, 224, group=16, zeros="codes"),  # two groups in a matrix of codes
    Weight(17, 1024, bits=8, group=256),  # a group longer than a chunk
    Weight(33, 576, bits=2, zeros="codes"),  # two groups in a matrix of codes
    Weight(17, 1008, bits=2, group=128, zeros="floats"),
    Weight(40, 1536, bits=2, group=64),
]


WIDENED = [
    Weight(24, 64, zeros="codes"),
    Weight(9, 80, zeros="codes"),  # the third group is half empty
    Weight(24, 64, group=16, zeros="floats"),
    Weight(24, 64, bits=2),
    Weight(24, 128, bits=8, group=64, zeros="codes"),
    Weight(24, 128, bits=8, group=128),
]


def test_every_layout(tmp_path: Path) -> None:
    """Numbers of rows around those that share a matrix."""
    products = Products()
    names = [products.product(f"p{k}", f"x{k}", weight) for k, weight in enumerate(WEIGHTS)]
    inputs = {f"x{k}": ("float16", ["rows", weight.depth]) for k, weight in enumerate(WEIGHTS)}
    feeds = [{n: drawn((rows, d[1]), rows) for n, (_, d) in inputs.items()} for rows in (1, 3, 8, 11)]
    results, launched = run(tmp_path, products, inputs, dict.fromkeys(names, "float16"), feeds)
    for given, found in zip(feeds, results, strict=True):
        for k, name in enumerate(names):
            check(found[name], given[f"x{k}"].astype(np.float64) @ products.weights[name].T, "float16")
    assert launched == {"row", "codes16", "codes8"}


def test_entry_points_by_columns_and_rows(tmp_path: Path) -> None:
    """A block has more warps where columns are few; many rows are cuBLASLt's, of the weight as floats."""
    products = Products()
    for name, columns in (("few", 2112), ("some", 2128), ("many", 4240)):
        products.product(name, f"x_{name}", Weight(columns, 64))
    inputs = {f"x_{name}": ("float16", [1, name, 64]) for name in products.weights}
    rows = (
        {"few": 1, "some": 2, "many": 1}, {"few": 2, "some": 1, "many": 2}, {"few": 24, "some": 1, "many": 1}
    )  # fmt: skip
    feeds = [{f"x_{name}": drawn((1, count, 64)) for name, count in each.items()} for each in rows]
    results, launched = run(tmp_path, products, inputs, dict.fromkeys(products.weights, "float16"), feeds)
    for given, found in zip(feeds, results, strict=True):
        for name, weight in products.weights.items():
            check(found[name], given[f"x_{name}"].astype(np.float64) @ weight.T, "float16")
    assert launched == {"row", "codes16", "codes8", "codes4"}


def test_many_rows_widen_the_weight(tmp_path: Path) -> None:
    products = Products()
    for k, weight in enumerate(WIDENED):
        products.product(f"y{k}", f"x{k}", weight)
    inputs = {f"x{k}": ("float16", ["a", "s", weight.depth]) for k, weight in enumerate(WIDENED)}
    feeds = [{name: drawn((2, 21, dims[-1])) for name, (_, dims) in inputs.items()}]
    ((found,), launched) = run(tmp_path, products, inputs, dict.fromkeys(products.weights, "float16"), feeds)
    for k, (name, weight) in enumerate(products.weights.items()):
        check(found[name], feeds[0][f"x{k}"].astype(np.float64) @ weight.T, "float16")
    assert launched == {"floats"}


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bfloat16(tmp_path: Path, bits: int) -> None:
    products, dtype = Products(), STORED["bfloat16"]
    weight = Weight(40, 384, bits=bits, zeros="codes", dtype="bfloat16")
    products.node("Cast", ["x"], "x16", to=ir.DataType.BFLOAT16.value)
    products.product("p", "x16", weight)
    products.node("Cast", ["p"], "y", to=ir.DataType.FLOAT.value)
    feeds = [{"x": drawn((rows, 384)).astype(np.float32)} for rows in (1, 5)]
    results, _ = run(tmp_path, products, {"x": ("float32", ["s", 384])}, {"y": "float32"}, feeds)
    for given, found in zip(feeds, results, strict=True):
        check(found["y"], given["x"].astype(dtype).astype(np.float64) @ products.weights["p"].T, "bfloat16")


def test_epilogues(tmp_path: Path) -> None:
    """The product's own bias, an Add, a residual, a scale, activations, and parts of its columns."""
    rng, columns, rows = np.random.default_rng(3), 40, 3
    products = Products()
    bias, residual = rng.standard_normal(columns).astype(np.float16), drawn((rows, columns), 5)
    products.constant("bias", bias)
    products.constant("half", np.array(0.5, np.float16))
    products.constant("sizes", np.array([20, 20]))
    own = products.product("own", "x", Weight(columns, 128), ["", "bias"])
    products.node("Relu", [own], "relu")
    products.node("Mul", [products.product("scaled", "x", Weight(columns, 128, bits=8)), "half"], "scaled.mul")
    products.node("Add", ["scaled.mul", "bias"], "scaled.add")
    products.node("Add", ["scaled.add", "r"], "sum")
    products.node("Gelu", [products.product("p", "x", Weight(columns, 128))], "gelu", approximate="tanh")
    split = products.product("split", "x", Weight(columns, 128, zeros="codes"))
    products.split(split, "sizes", ["left", "right"])
    x = drawn((rows, 128))
    inputs = {"x": ("float16", ["s", 128]), "r": ("float16", ["s", columns])}
    outputs = dict.fromkeys(("relu", "sum", "gelu", "left", "right"), "float16")
    ((found,), launched) = run(tmp_path, products, inputs, outputs, [{"x": x, "r": residual}])
    y = {name: x.astype(np.float64) @ weight.T for name, weight in products.weights.items()}
    check(found["relu"], np.maximum(y["own"] + bias, 0), "float16")
    check(found["sum"], 0.5 * y["scaled"] + bias + residual, "float16")
    gelu = 0.5 * y["p"] * (1 + np.tanh(np.sqrt(2 / np.pi) * (y["p"] + 0.044715 * y["p"] ** 3)))
    check(found["gelu"], gelu, "float16")
    check(np.concatenate([found["left"], found["right"]], axis=-1), y["split"], "float16")
    assert launched == {"codes16"}


@pytest.mark.parametrize(
    ("activation", "columns", "warps"),
    sampling.values([("silu", 72, 8), ("gelu", 4240, 4), ("gelu", 72, 8), ("silu", 4240, 4)]),
)
def test_gate_and_up(tmp_path: Path, activation: str, columns: int, warps: int) -> None:
    """Columns that fill no tile, and more rows than share a matrix."""
    products, half = Products(), columns // 2
    weight = Weight(columns, 96, zeros="codes") if activation == "silu" else Weight(columns, 160, bits=8)
    products.constant("sizes", np.array([half, half]))
    bias = np.random.default_rng(6).standard_normal(columns).astype(np.float16)
    products.constant("bias", bias)
    products.node("Add", [products.product("p", "x", weight), "bias"], "h")
    products.split("h", "sizes", ["g", "u"])
    if activation == "silu":
        products.node("Sigmoid", ["g"], "s")
        products.node("Mul", ["s", "g"], "a")
    else:
        products.node("Gelu", ["g"], "a", approximate="tanh")
    products.node("Mul", ["u", "a"], "y")
    feeds = [{"x": drawn((1, rows, weight.depth), rows)} for rows in (1, 8, 13)]
    inputs = {"x": ("float16", [1, "s", weight.depth])}
    results, launched = run(tmp_path, products, inputs, {"y": "float16"}, feeds)
    for given, found in zip(feeds, results, strict=True):
        g, u = np.split(given["x"].astype(np.float64) @ products.weights["p"].T + bias, 2, axis=-1)
        tanh = 0.5 * g * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
        check(found["y"], (g / (1 + np.exp(-g)) if activation == "silu" else tanh) * u, "float16")
    assert launched == {f"codes{warps}", *(["row"] if weight.bits == 4 else [])}


def test_gate_and_up_of_many_rows(tmp_path: Path) -> None:
    products = Products()
    products.constant("sizes", np.array([16, 16]))
    products.split(products.product("p", "x", Weight(32, 64)), "sizes", ["g", "u"])
    products.node("Gelu", ["g"], "a", approximate="tanh")
    products.node("Mul", ["a", "u"], "y")
    given = {"x": drawn((60, 64))}
    (found,), launched = run(tmp_path, products, {"x": ("float16", ["s", 64])}, {"y": "float16"}, [given])
    assert launched == {"floats", "gate"} and found["y"].shape == (60, 16)


def test_gate_and_up_of_2_bits(tmp_path: Path) -> None:
    products = Products()
    products.constant("sizes", np.array([40, 40]))
    products.split(products.product("p", "x", Weight(80, 192, bits=2, zeros="codes")), "sizes", ["g", "u"])
    products.node("Sigmoid", ["g"], "s")
    products.node("Mul", ["s", "g"], "a")
    products.node("Mul", ["u", "a"], "y")
    given = {"x": drawn((1, 3, 192))}
    (found,), launched = run(tmp_path, products, {"x": ("float16", [1, "s", 192])}, {"y": "float16"}, [given])
    g, u = np.split(given["x"].astype(np.float64) @ products.weights["p"].T, 2, axis=-1)
    check(found["y"], g / (1 + np.exp(-g)) * u, "float16")
    assert launched == {"codes4"}
