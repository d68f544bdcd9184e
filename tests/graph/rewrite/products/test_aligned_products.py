"""Zeros that fill the depth or the width of a product up: where they come to, where not, that they add nothing."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.costs.rewrite import numbers
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.products import aligned_products
from tests.support.graphs import graph, hold, run

NUMPY = {"float": np.float32, "float16": np.float16}
JOINED = "c = Concat<axis = -1>(x, z) "


def model(body: str, dtype: str = "float16", width: int = 6, outputs: str = "{} y") -> ir.Model:
    """A graph over x [N, 5] and z [N, width], with matrices w [5 + width, 3] and v, w transposed, and a bias b."""
    depth, rng = 5 + width, np.random.default_rng(3)
    arrays = {"w": rng.standard_normal((depth, 3)), "v": rng.standard_normal((3, depth)), "b": rng.standard_normal(3)}
    inputs = [f"{dtype}[N, 5] x", f"{dtype}[N, {width}] z"]
    inputs += [f"{dtype}[{','.join(map(str, a.shape))}] {k}" for k, a in arrays.items()]
    source = graph(", ".join(inputs), outputs.replace("{}", f"{dtype}[]"), body)
    hold(source, arrays, NUMPY[dtype])
    return source


def aligned(source: ir.Model, folder: Path, gpu: bool = True) -> tuple[ir.Model, int]:
    found = source.clone()
    return found, rewrite(found, folder, gpu=gpu).applied["products"]


@pytest.mark.parametrize(("dtype", "width", "depth"), [("float16", 6, 16), ("float", 6, 12), ("float16", 4, 16)])
@pytest.mark.parametrize(
    "product", ["y = MatMul(c, w)", "m = MatMul(c, w) y = Add(m, b)", "y = Gemm(c, w, b)", "y = Gemm<transB = 1>(c, v)"]
)
def test_the_depth_is_a_multiple_of_16_bytes(product: str, dtype: str, width: int, depth: int, tmp_path: Path) -> None:
    source = model(JOINED + product, dtype, width)
    found, count = aligned(source, tmp_path)
    assert count == 1 and [node.op_type for node in found.graph][:2] == ["Concat", "Pad"]
    (weight,) = [v for v in found.graph.initializers.values() if len(v.shape or ()) == 2]
    assert sorted(weight.shape) == [3, depth]  # type: ignore[arg-type,type-var]
    for rows in (1, 4):
        feeds = {
            name: np.random.default_rng(rows).standard_normal((rows, size)).astype(NUMPY[dtype])
            for name, size in (("x", 5), ("z", width))
        }
        feeds["z"][0, :2] = np.inf, np.nan
        (expected,), (result,) = run(source, feeds), run(found, feeds)
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3)
    (region,) = [r for r in fuse(found).regions if any(n.op_type == "Concat" for n in r.nodes)]
    assert [n.op_type for n in region.nodes] == ["Concat", "Pad"]  # in one kernel


@pytest.mark.parametrize(
    ("body", "width", "outputs"),
    [
        pytest.param(JOINED + "y = MatMul(c, w)", 3, "{} y", id="8 elements"),
        pytest.param(JOINED + "y = MatMul(c, w) u = Relu(c)", 6, "{} y, {} u", id="columns that are read elsewhere"),
        pytest.param(JOINED + "y = MatMul(c, w) u = Relu(w)", 6, "{} y, {} u", id="a weight that is read elsewhere"),
        pytest.param(JOINED + "r = Relu(w) y = MatMul(c, r)", 6, "{} y", id="a computed weight"),
        pytest.param(JOINED + "y = Gemm<transA = 1>(c, w)", 6, "{} y", id="columns as rows"),
        pytest.param("c = Concat<axis = 0>(x, x) y = MatMul(c, w)", 0, "{} y", id="joined rows"),
        pytest.param(
            "p, q, r, s, t, u = Split<axis = 1, num_outputs = 6>(z) c = Concat<axis = 1>(x, p, q, r, s, t, u) "
            "y = MatMul(c, w)",
            6,
            "{} y",
            id="more parts than a kernel joins",
        ),
    ],
)
def test_other_products_stay(body: str, width: int, outputs: str, tmp_path: Path) -> None:
    assert aligned(model(body, width=width, outputs=outputs), tmp_path)[1] == 0


def test_no_zeros_without_kernels_for_gpus(tmp_path: Path) -> None:
    assert aligned(model(JOINED + "y = MatMul(c, w)"), tmp_path, gpu=False)[1] == 0


def large(rows: str, depth: int, width: int, body: str, dtype: str = "float16", outputs: str = "{} y") -> ir.Model:
    """A graph over x [rows, depth], with matrices w [depth, width] and v, w transposed, and a bias b."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal((depth, width)) / depth**0.5
    arrays = {"w": w, "v": w.T, "b": rng.standard_normal(width)}
    inputs = [f"{dtype}[{rows}, {depth}] x"]
    inputs += [f"{dtype}[{','.join(map(str, a.shape))}] {k}" for k, a in arrays.items()]
    constants = f"int64[1] zero = {{0}}, int64[1] width = {{{width}}}, int64[1] one = {{1}}"
    source = graph(", ".join(inputs), outputs.replace("{}", f"{dtype}[]"), body, constants=constants)
    hold(source, arrays, NUMPY[dtype])
    return source


@pytest.mark.parametrize(
    ("rows", "depth", "width", "dtype", "count"),
    [
        ("4096", 13, 512, "float16", 1), ("4096", 13, 512, "float", 1), ("8, 512", 13, 512, "float16", 1),
        ("2048", 13, 512, "float16", 0), ("N", 13, 512, "float16", 0), ("4096", 12, 512, "float16", 0),
        ("32768", 12, 512, "float16", 1), ("32768", 12, 512, "float", 0), ("16384", 513, 512, "float16", 0),
        ("16800", 256, 4, "float16", 1), ("16800", 256, 4, "float", 0), ("67200", 256, 1, "float16", 0),
        ("2400", 256, 4, "float16", 0), ("24000", 256, 3, "float", 1), ("67200", 256, 136, "float16", 0),
        ("67200", 256, 130, "float16", 0), ("67200", 252, 4, "float16", 0),
    ],
)  # fmt: skip
def test_from_which_sizes_on(rows: str, depth: int, width: int, dtype: str, count: int, tmp_path: Path) -> None:
    source = large(rows, depth, width, "m = MatMul(x, w)  s = Add(m, b)  y = Neg(s)", dtype)
    assert aligned(source, tmp_path)[1] == count


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sizes are large enough."""
    any_size = dataclasses.replace(numbers(), min_padded=(1, 1), min_sliced=(1, 1))
    monkeypatch.setattr(aligned_products, "numbers", lambda: any_size)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize(
    ("depth", "width", "body", "operators"),
    [
        (5, 9, "m = MatMul(x, w)  y = Neg(m)", "Pad MatMul Neg"),
        (5, 9, "y = Gemm<transB = 1>(x, v, b)", "Pad Gemm"),
        (5, 9, "m = MatMul(x, w)  t = ReduceSum(x)  y = Add(m, t)", "Pad MatMul ReduceSum Add"),
        (16, 3, "m = MatMul(x, w)  y = Neg(m)", "MatMul Slice Neg"),
        (16, 3, "m = MatMul(x, w)  s = Add(b, m)  y = Neg(s)", "MatMul Add Slice Neg"),
        (16, 5, "m = MatMul(x, w)  s = Add(m, b)  r = Relu(s)  y = Neg(r)", "MatMul Add Relu Slice Neg"),
        (16, 5, "m = Gemm<transB = 1>(x, v, b)  r = Relu(m)  n = Neg(r)  y = Mul(n, r)", "Gemm Relu Slice Neg Mul"),
        (16, 3, "m = MatMul(x, w)  s = Add(m, b)  n = Neg(s)  y = Max(n, b)", "MatMul Add Slice Neg Max"),
        (16, 7, "m = MatMul(x, w)  s = Sigmoid(m)  y = Mul(m, s)", "MatMul Slice Sigmoid Mul"),
    ],
)
def test_zeros_and_slices(depth: int, width: int, body: str, operators: str, dtype: str, tmp_path: Path) -> None:
    rows = "7" if "Gemm" in body else "2, 5"
    source = large(rows, depth, width, body, dtype)
    found, count = aligned(source, tmp_path)
    made = [n.op_type for n in found.graph if n.op_type != "Constant"]
    assert count == 1 and sorted(made) == sorted(operators.split())
    elements = 16 // np.dtype(NUMPY[dtype]).itemsize
    sides = next(v.shape for v in found.graph.initializers.values() if v.shape is not None and len(v.shape) == 2)
    assert sum(isinstance(side, int) and side % elements == 0 for side in sides) >= 1
    x = np.random.default_rng(1).standard_normal([int(n) for n in f"{rows}, {depth}".split(", ")]).astype(NUMPY[dtype])
    x[0] = np.inf
    (expected,), (result,) = run(source, {"x": x}), run(found, {"x": x})
    np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("depth", "body"),
    [
        pytest.param(16, "y = MatMul(x, w)", id="what the graph returns"),
        pytest.param(16, "c = Slice(x, zero, width, one)  m = Gemm(x, w, c)  y = Neg(m)", id="a sum with a matrix"),
        pytest.param(16, "m = MatMul(x, w)  t = ReduceSum(w)  y = Add(m, t)", id="a weight that is read elsewhere"),
        pytest.param(16, "r = Neg(w)  m = MatMul(x, r)  y = Neg(m)", id="a computed weight"),
        pytest.param(7, "r = Neg(x)  y = Gemm<transA = 1>(r, w)", id="columns as rows"),
    ],
)
def test_what_is_not_filled(depth: int, body: str, tmp_path: Path) -> None:
    assert aligned(large("7", depth, 3, body), tmp_path)[1] == 0


@pytest.mark.usefixtures("always")
def test_random_chains(tmp_path: Path) -> None:
    """Of products one after the other, with biases, activations and sums of what came before."""
    rng, filled = np.random.default_rng(4), 0
    for k in range(40):
        dtype = ("float", "float16")[k % 2]
        widths = [int(w) for w in rng.choice([2, 3, 4, 5, 8, 13, 16, 32], rng.integers(3, 6))]
        values: dict[int, str] = {widths[0]: "x"}
        body, arrays, last = [], {}, "x"
        for i, (depth, width) in enumerate(itertools.pairwise(widths)):
            arrays[f"w{i}"], arrays[f"b{i}"] = rng.standard_normal((depth, width)) / depth, rng.standard_normal(width)
            forms = [f"m{i} = MatMul({last}, w{i})  s{i} = Add(b{i}, m{i})", f"s{i} = Gemm({last}, w{i}, b{i})"]
            body.append(str(rng.choice(forms)))
            last = f"s{i}"
            if rng.random() < 0.7:
                body.append(f"r{i} = {rng.choice(['Relu', 'Gelu', 'Sigmoid'])}({last})")
                last = f"r{i}"
            if width in values:
                body.append(f"a{i} = Add({last}, {values[width]})")
                last = f"a{i}"
            values[width] = last
        inputs = [f"{dtype}[7, {widths[0]}] x"]
        inputs += [f"{dtype}[{','.join(map(str, a.shape))}] {name}" for name, a in arrays.items()]
        source = graph(", ".join(inputs), f"{dtype}[] y", "  ".join([*body, f"y = Tanh({last})"]))
        hold(source, arrays, NUMPY[dtype])
        (tmp_path / str(k)).mkdir()
        found, count = aligned(source, tmp_path / str(k))
        filled += count
        x = rng.standard_normal((7, widths[0])).astype(NUMPY[dtype])
        (expected,), (result,) = run(source, {"x": x}), run(found, {"x": x})
        np.testing.assert_allclose(result, expected, rtol=5e-3, atol=5e-3)
    assert filled > 40
