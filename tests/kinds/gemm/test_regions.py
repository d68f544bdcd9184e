"""Gemm regions: what a product takes in, what it leaves and why, and that nothing it computes changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.fusion.region import FusionPlan, Kernel, Region
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.program.gemm import Gemm
from tests.support.fakes import idle_gpu
from tests.support.graphs import graph, run

INPUTS = "float[B, S, 4] x, float[B, S, 6] r, float[5, 4] p, float[4, 5] q, float[5, 6] t, float[B, 4, 4] batched"
OUTPUT = "float[] y"


def _constants() -> str:
    rng = np.random.default_rng(5)
    rows = []
    for name, dims in (("w", (4, 6)), ("wt", (6, 4)), ("b", (6,)), ("c", (1, 1, 6)), ("d", (4, 6)), ("square", (4, 4))):
        values = ", ".join(f"{v:.6f}" for v in rng.standard_normal(int(np.prod(dims))))
        rows.append(f"float[{', '.join(map(str, dims))}] {name} = {{{values}}}")
    rows += ["float half = {0.5}", "float zero = {0}", "float[1] one = {2}"]
    rows += ["int64[3] merge = {-1, 3, 6}", "int64[2] heads = {-1, 2}", "int64[2] flat = {-1, 4}"]
    return ", ".join(rows)


def model(body: str, outputs: str = OUTPUT) -> ir.Model:
    return graph(INPUTS, outputs, body, constants=_constants())


def _gemms(plan: FusionPlan) -> list[Region]:
    return [r for r in plan.regions if r.kind is GEMM]


def _kernels(source: ir.Model) -> tuple[Kernel, ...]:
    return outline(source, fuse(source))


@pytest.mark.parametrize(
    ("body", "nodes", "fields"),
    [
        ("m = MatMul(x, w)  y = Add(m, b)", "m y", {"bias": 2}),
        ("m = MatMul(x, w)  y = Add(b, m)", "m y", {"bias": 2}),
        ("m = MatMul(x, w)  y = Add(m, c)", "m y", {"bias": 2}),
        ("m = MatMul(x, w)  y = Add(r, m)", "m y", {"residual": 2}),
        ("m = MatMul(x, w)  s = Add(m, b)  y = Add(s, r)", "m s y", {"bias": 2, "residual": 3}),
        ("m = MatMul(x, w)  s = Add(m, r)  y = Add(s, b)", "m s y", {"bias": 2, "residual": 3}),
        ("m = MatMul(x, w)  h = Mul(half, m)  y = Add(h, b)", "m h y", {"bias": 2, "alpha": 0.5}),
        ("m = MatMul(x, w)  h = Div(m, one)  y = Add(h, b)", "m h y", {"bias": 2, "alpha": 0.5}),
        ("m = MatMul(x, w)  y = Relu(m)", "m y", {"activation": "relu"}),
        ("m = MatMul(x, w)  s = Add(m, b)  y = Relu(s)", "m s y", {"bias": 2, "activation": "relu"}),
        (
            'm = MatMul(x, w)  s = Add(m, b)  y = Gelu<approximate = "tanh">(s)',
            "m s y",
            {"bias": 2, "activation": "gelu_tanh"},
        ),
        ("v = Transpose<perm = [1, 0]>(t)  m = MatMul(q, t)  y = Add(m, b)", "m y", {"bias": 2}),
        (
            "v = Transpose<perm = [1, 0]>(wt)  m = MatMul(x, v)  y = Add(m, b)",
            "v m y",
            {"bias": 2, "transpose_b": True},
        ),
        ("v = Transpose<perm = [1, 0]>(p)  m = MatMul(v, t)  y = Add(m, b)", "v m y", {"bias": 2, "transpose_a": True}),
        ("m = MatMul(batched, square)  y = Add(m, batched)", "m y", {"residual": 0}),
        ("y = Gemm(q, t, b)", "y", {"bias": 2}),
        ("y = Gemm<alpha = 0.5, beta = 2.0>(q, t, d)", "y", {"residual": 2, "alpha": 0.5, "beta": 2.0}),
        ("m = Gemm<transA = 1>(p, t)  y = Relu(m)", "m y", {"transpose_a": True, "activation": "relu"}),
        ("m = Gemm<transB = 1>(p, wt)  y = Relu(m)", "m y", {"transpose_b": True, "activation": "relu"}),
        ("m = Gemm(q, t, b)  y = Sigmoid(m)", "m", {"bias": 2}),  # the provider's is slow at adding it
    ],
)
def test_what_a_product_takes_in(body: str, nodes: str, fields: dict[str, object]) -> None:
    source = model(body)
    plan = fuse(source)
    (region,) = _gemms(plan)
    assert " ".join(str(n.name) for n in region.nodes) == nodes
    (kernel,) = [k for k in _kernels(source) if k.kind is GEMM]
    count = len(region.inputs)
    assert kernel.program == Gemm(("float32",) * count, ("float32",), **fields)  # type: ignore[arg-type]
    assert not kernel.cpu
    assert not kernel.variants


def test_the_bias_behind_a_reshape_waits_for_a_residual() -> None:
    inputs, constants = "float[6, 4] x, float[2, 3, 6] r", _constants()
    body = "m = MatMul(x, w)  s = Add(m, b)  v = Reshape(s, merge)  y = Add(v, r)"
    (kernel,) = _kernels(graph(inputs, OUTPUT, body, constants=constants))
    assert kernel.program == Gemm(("float32",) * 4, ("float32",), bias=2, residual=3, residual_shape=True)
    body = "m = MatMul(x, w)  s = Add(m, b)  v = Reshape(s, merge)  y = Hardmax(v)"
    (region,) = _gemms(fuse(graph(inputs, OUTPUT, body, constants=constants)))
    assert [n.name for n in region.nodes] == ["m", "s"]


@pytest.mark.parametrize(
    ("cut", "rows", "first"),
    [("Slice(x, n2, n5, rows)", 3, 2), ("Slice(x, n5, big, rows)", 4, 5), ("Slice(x, minus, big, axis)", 2, 7),
     ("Slice(x, n2, n5, columns)", 0, 0), ("Slice(x, n2, big, rows, step)", 0, 0), ("Slice(x, n5, n2, rows)", 0, 0),
     ("Slice(x, n0, n1, batch)", 0, 0), ("Slice(x, n2, n5, rows)  z = Abs(r)", 0, 0)],
)  # fmt: skip
def test_rows_of_a_larger_tensor_are_read_in_place(cut: str, rows: int, first: int) -> None:
    numbers = {"n0": 0, "n1": 1, "n2": 2, "n5": 5, "big": 2**62, "minus": -2, "step": 2, "rows": 1, "axis": -2}
    numbers |= {"columns": 2, "batch": 0}
    width = 3 if "columns" in cut else 4
    outputs = "float16[] y, float16[] z" if "z =" in cut else "float16[] y"
    source = graph(
        f"float16[B, 9, 4] x, float16[{width}, 8] w", outputs, f"r = {cut}  y = MatMul(r, w)",
        constants=", ".join(f"int64[1] {name} = {{{number}}}" for name, number in numbers.items()),
    )  # fmt: skip
    kernels = [k.program for k in _kernels(source) if k.kind is GEMM]
    assert kernels == ([Gemm(("float16",) * 2, ("float16",), rows=rows, first_row=first)] if rows else [])


_HALF = "float16[B, S, 64] x, float16[64, 72] w, float16[72, 64] v, float16[72] b"


@pytest.mark.parametrize(
    ("form", "activation"),
    [("g = Gelu(s)", "gelu"), ("i = Sigmoid(s)  g = Mul(s, i)", "silu"), ("i = Sigmoid(s)  g = Mul(i, s)", "silu")],
)
def test_an_activation_between_products_of_16_bits_is_the_first_ones(form: str, activation: str) -> None:
    source = graph(_HALF, "float16[B, S, 64] y", f"m = MatMul(x, w)  s = Add(m, b)  {form}  y = MatMul(g, v)")
    (region,) = _gemms(fuse(source))
    assert [n.name for n in region.nodes] == ["m", "s", *(["i", "g"] if activation == "silu" else ["g"])]
    (kernel,) = [k for k in _kernels(source) if k.kind is GEMM]
    assert kernel.program == Gemm(("float16",) * 3, ("float16",), bias=2, activation=activation)
    assert [v.symbol.rpartition("_")[2] for v in kernel.variants] == ["tiles256", "tiles192", "tiles128", "activation"]
    body = f"s = MatMul(x, w)  {form}  y = MatMul(g, v)"
    known = graph(_HALF.replace("B, S", "2, 100"), "float16[2, 100, 64] y", body)
    (kernel,) = [k for k in _kernels(known) if k.kind is GEMM]
    assert [v.symbol.rpartition("_")[2] for v in kernel.variants] == ["activation"]  # too few rows for tiles


@pytest.mark.parametrize(
    ("inputs", "behind", "reason"),
    [
        (_HALF, "y = Mul(g, m)", "is read elsewhere too"),
        (_HALF, "k = Sigmoid(g)  y = MatMul(k, v)", "the kernel of Sigmoid may compute it at no extra cost"),
        (_HALF, "y = MatMul(g, v)  z = Neg(g)", "the kernel of Neg may compute it at no extra cost"),
        (_HALF.replace("float16", "float"), "y = MatMul(g, v)", "stored transposed"),
    ],
)  # fmt: skip
def test_where_an_exact_gelu_stays_a_kernel_of_its_own(inputs: str, behind: str, reason: str) -> None:
    of = "float" if "float16" not in inputs else "float16"
    body = f"m = MatMul(x, w)  s = Add(m, b)  g = Gelu(s)  {behind}"
    plan = fuse(graph(inputs, f"{of} y" + (f", {of} z" if "z =" in behind else ""), body))
    assert all("g" not in [n.name for n in r.nodes] for r in _gemms(plan))
    reasons = [r.reason for r in plan.refusals]
    assert any(reason in r for r in reasons), reasons


@pytest.mark.parametrize(
    ("body", "node", "reason"),
    [
        ("m = MatMul(x, w)  y = Add(m, m)", "y", "`m` is read elsewhere too"),
        ("m = MatMul(x, w)  k = Hardmax(m)  y = Add(m, k)", "y", "so the MatMul must write it before the Add"),
        ("m = MatMul(q, t)  y = Add(m, r)", "y", "The Add broadcasts the GEMM's result to a larger shape"),
        ("h = Slice(r, begin, stop, last)  m = MatMul(x, w)  y = Add(m, h)", "y", "`h` [B, S, 1] is neither a bias"),
        ("m = MatMul(x, w)  y = Mul(m, b)", "y", "The factor `b` is not a scalar constant"),
        ("m = MatMul(x, w)  s = Add(m, b)  v = Add(s, c)  y = Hardmax(v)", "v", "The GEMM already has a bias"),
        ("m = MatMul(x, w)  y = Div(half, m)", "y", "The GEMM's result is the divisor"),
        ("m = MatMul(x, w)  y = Div(m, zero)", "y", "would not be a finite float32 number"),
        ("m = MatMul(x, w)  s = Add(m, b)  y = Sigmoid(s)", "m", "The kernel of Sigmoid adds the bias"),
        ("m = MatMul(x, w)  s = Add(m, b)  y = Gelu(s)", "m", "The kernel of Gelu adds the bias"),
        ("y = Gemm<beta = 0.5>(q, t, b)", "y", "Gemm scales its bias by beta = 0.5"),
    ],
)
def test_what_stays_apart_and_why(body: str, node: str, reason: str) -> None:
    axes = ", int64[1] begin = {0}, int64[1] stop = {1}, int64[1] last = {-1}"
    source = graph(INPUTS, OUTPUT, body, constants=_constants() + axes)
    plan = fuse(source)
    reasons = [r.reason for r in plan.refusals if r.node == node]
    assert any(reason in r for r in reasons), reasons
    assert all(node not in [n.name for n in r.nodes] for r in _gemms(plan))


def test_integers_float64_and_unknown_ranks_are_left_alone() -> None:
    for inputs in ("double[2, 4] x, double[4, 6] w, double[6] b", "float[] x, float[4, 6] w, float[6] b"):
        plan = fuse(graph(inputs, "double[] y" if "double" in inputs else OUTPUT, "m = MatMul(x, w)  y = Add(m, b)"))
        assert not _gemms(plan)


def test_a_plain_product_is_left_to_the_provider() -> None:
    assert not fuse(model("m = MatMul(x, w)  y = Mul(m, half)")).regions


def test_a_residual_stream_goes_through_the_products() -> None:
    """A value that a norm and a later sum read stays with the product, whatever reads it element by element."""
    body = "m = MatMul(x, square)  s = Add(m, x)  n = Cast<to = 1>(s)  k = Hardmax(n)  y = Add(s, k)"
    (region,) = _gemms(fuse(model(body)))
    assert [n.name for n in region.nodes] == ["m", "s"]


def test_bias_and_residual_of_one_body_are_two_kernels() -> None:
    """The function's nodes are the same, what the library must do is not: shapes told them apart."""
    body = "m = MatMul(q, t)  s = Add(m, b)  n = Hardmax(s)  o = MatMul(p, n)  y = Add(o, u)"
    inputs = "float[4, 5] q, float[5, 6] t, float[7, 4] p, float[7, 6] u"
    names = [k.name for k in _kernels(graph(inputs, OUTPUT, body, constants=_constants()))]
    assert len(names) == len(set(names)) == 2


NUMERIC = (
    "m = MatMul(x, w)  s = Add(m, b)  y = Add(s, r)",
    "m = MatMul(x, w)  h = Mul(m, half)  s = Add(h, c)  y = Relu(s)",
    'm = MatMul(x, w)  s = Add(m, b)  y = Gelu<approximate = "tanh">(s)',
    "v = Transpose<perm = [0, 2, 1]>(batched)  m = MatMul(v, w)  y = Add(m, b)",
    "v = Transpose<perm = [0, 2, 1]>(batched)  m = MatMul(batched, v)  y = Add(m, batched)",
    "y = Gemm<alpha = 0.5, beta = 2.0, transA = 1>(p, t, d)",
    "v = Transpose<perm = [1, 0]>(wt)  m = MatMul(x, v)  s = Add(m, b)  z = Add(s, r)  k = Hardmax(z)  y = Add(z, k)",
)


@pytest.mark.usefixtures("library")
def test_results_do_not_change(tmp_path) -> None:
    """The originals, the functions inlined, and the products that the library has cuBLASLt compute."""
    rng, cases, expected = np.random.default_rng(9), [], []
    for body in NUMERIC:
        source, feeds = model(body), []
        for batch, rows in ((2, 3), (1, 1), (3, 40)):
            shapes = {"x": (batch, rows, 4), "r": (batch, rows, 6), "p": (5, 4), "q": (4, 5), "t": (5, 6)}
            shapes["batched"] = (batch, 4, 4)
            feeds.append({n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()})
        expected.append([run(source, given)[0] for given in feeds])
        kernels = _kernels(source)
        assert any(k.kind is GEMM for k in kernels)
        for given, y in zip(feeds, expected[-1], strict=True):
            np.testing.assert_allclose(run(source, given)[0], y, rtol=2e-5, atol=2e-5)
        cases.append((ir.to_proto(source), kernels, feeds))
    for results, wanted in zip(idle_gpu.products(tmp_path / "run", cases), expected, strict=True):
        for found, y in zip(results, wanted, strict=True):
            np.testing.assert_allclose(found["y"], y, rtol=2e-5, atol=2e-5)
