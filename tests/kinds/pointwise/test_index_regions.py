"""Regions with index operations: one kernel each, and the numbers of the unchanged model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import kernels_json
from onnxopt.fusion.region import Kernel
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.graphs import graph, run

pytestmark = pytest.mark.usefixtures("library")

# name: inputs, outputs, body, constants. Each must become exactly one call.
_NUMBERS = ", ".join(
    f"int64[1] {name} = {{{number}}}"
    for name, number in {
        "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "back": -2, "big": 2**63 - 1,
    }.items()
)  # fmt: skip
_MAP = (  # of 4 N rows and 4 S columns
    "s = Shape(x)  n = Slice(s, zero, one)  l = Slice(s, two, three)  h = Mul(n, four)  w = Mul(l, four)  "
    "whole = Concat<axis=0>(h, w, three)  m = Reshape<allowzero = 1>(x, whole)  t = Neg(m)"
)


def _rolled(rows: str, columns: str, result: str = "b") -> str:
    """A map t, rolled to the elements that begin at these rows and columns."""
    return (
        f"a1 = Slice(t, {rows}, big, zero)  a2 = Slice(t, zero, {rows}, zero)  a = Concat<axis=0>(a1, a2)  "
        f"b1 = Slice(a, {columns}, big, one)  b2 = Slice(a, zero, {columns}, one)  {result} = Concat<axis=1>(b1, b2)"
    )


ONE_KERNEL = {
    "transpose": ("float[2, 3, 5, 7] x", "float[2, 5, 7, 3] y", "a = Neg(x)  y = Transpose<perm=[0,2,3,1]>(a)", ""),
    "transpose without perm": ("float[3, 4, 5] x", "float[5, 4, 3] y", "a = Neg(x)  y = Transpose(a)", ""),
    "transpose in front": (
        "float[2, 3, 5, 7] x, float[3] b", "float[2, 5, 7, 3] y", "t = Transpose<perm=[0,2,3,1]>(x)  y = Add(t, b)", "",
    ),
    "reshape between": (
        "float[6, 8] x, float[8] b", "float[2, 3, 4, 2] y",
        "a = Add(x, b)  r = Reshape(a, s)  t = Transpose<perm=[0,1,3,2]>(r)  r2 = Reshape(t, s2)  y = Tanh(r2)",
        "int64[4] s = {2, 3, 2, 4}, int64[4] s2 = {2, 3, 4, 2}",
    ),
    "slice": ("float[7, 9] x", "float[3, 4] y", "a = Neg(x)  y = Slice(a, s, e, ax, st)",
              "int64[2] s = {1, -2}, int64[2] e = {7, -10}, int64[2] ax = {0, 1}, int64[2] st = {2, -2}"),
    "slice with clamped ends": ("float[7, 9] x", "float[7, 4] y", "a = Neg(x)  y = Slice(a, s, e, ax)",
                                "int64[1] s = {5}, int64[1] e = {1000}, int64[1] ax = {-1}"),
    "concat": ("float[2, 3] x, float[2, 5] z", "float[2, 8] y", "a = Neg(x)  b = Exp(z)  y = Concat<axis=1>(a, b)", ""),
    "concat of three": (
        "float[2, 3] x, float[1, 3] z", "float[5, 3] y", "a = Neg(x)  c = Concat<axis=0>(a, z, x)  y = Abs(c)", "",
    ),
    "concat, then cut inside": (
        "float[2, 6] x, float[2, 6] z", "float[2, 4, 3] y", "c = Concat<axis=1>(x, z)  r = Reshape(c, s)  y = Abs(r)  ",
        "int64[3] s = {2, 4, 3}",
    ),
    "split": (
        "float[4, 10] x", "float[4, 5] y",
        "g, u = Split<axis=1, num_outputs=2>(x)  s = Sigmoid(g)  y = Mul(s, u)", "",
    ),
    "split to outputs": (
        "float[4, 6, 5] x", "float[6, 4, 5] p, float[6, 4, 5] q",
        "a, b = Split<axis=1>(x2, sizes)  p = Transpose<perm=[1,0,2]>(a)  q = Transpose<perm=[1,0,2]>(b)  "
        "x2 = Concat<axis=1>(x, x)", "int64[2] sizes = {6, 6}",
    ),
    "expand": ("float[3, 1] x", "float[2, 3, 4] y", "a = Neg(x)  y = Expand(a, s)", "int64[3] s = {2, 3, 4}"),
    "tile": ("float[3, 4] x", "float[6, 12] y", "a = Neg(x)  y = Tile(a, r)", "int64[2] r = {2, 3}"),
    "pad": ("float[3, 4] x", "float[6, 6] y", "a = Exp(x)  p = Pad(a, w, c)  y = Neg(p)",
            "int64[4] w = {1, 2, 2, 0}, float c = {1.5}"),
    "pad with axes, cropping": ("float[3, 4] x", "float[3, 3] y", "a = Exp(x)  y = Pad(a, w, , ax)",
                                "int64[2] w = {-2, 1}, int64[1] ax = {1}"),
    "gather one": ("float[3, 4, 5] x", "float[3, 5] y", "a = Neg(x)  y = Gather<axis=1>(a, k)", "int64 k = {-2}"),
    "gather a range": (
        "float[9, 5] x", "float[3, 5] y",
        "a = Neg(x)  y = Gather<axis=0>(a, k)", "int64[3] k = {7, 5, 3}",
    ),
    "depth to space": (
        "float[2, 12, 3, 5] x", "float[2, 3, 6, 10] y",
        "a = Neg(x)  y = DepthToSpace<blocksize=2>(a)", "",
    ),
    "depth to space, columns": (
        "float[2, 12, 3, 5] x", "float[2, 3, 6, 10] y", 'a = Neg(x)  y = DepthToSpace<blocksize=2, mode="CRD">(a)', "",
    ),
    "space to depth": (
        "float[2, 3, 4, 6] x", "float[2, 12, 2, 3] y",
        "a = Neg(x)  y = SpaceToDepth<blocksize=2>(a)", "",
    ),
    "squeeze and unsqueeze": (
        "float[4, 1, 6] x", "float[1, 4, 6] y", "a = Neg(x)  s = Squeeze(a, k)  u = Unsqueeze(s, z)  y = Abs(u)",
        "int64[1] k = {1}, int64[1] z = {0}",
    ),
    "flatten": (
        "float[2, 3, 4] x, float[12] b", "float[2, 12] y",
        "a = Neg(x)  f = Flatten<axis=1>(a)  y = Add(f, b)", "",
    ),
    "rotary embedding": (
        "float[2, 16, 4, 8] x, float[1, 1, 16, 8] cos, float[1, 1, 16, 8] sin", "float[2, 4, 16, 8] y",
        "t = Transpose<perm=[0,2,1,3]>(x)  a = Mul(t, cos)  h = Slice(t, zero, half, last)  "
        "g = Slice(t, half, big, last)  n = Neg(g)  r = Concat<axis=3>(n, h)  b = Mul(r, sin)  y = Add(a, b)",
        "int64[1] zero = {0}, int64[1] half = {4}, int64[1] big = {9223372036854775807}, int64[1] last = {3}",
    ),
    "parts of one tensor": (
        "float[2, 5, 16] x, float[8] b", "float[2, 5, 8] p, float[2, 5, 2, 2, 2] q",
        "c = Slice(x, zero, eight, last)  p = Add(c, b)  "
        "d = Slice(x, eight, twelve, last)  n = Neg(d)  r = Reshape(n, s)  q = Expand(r, t)",
        "int64[1] zero = {0}, int64[1] eight = {8}, int64[1] twelve = {12}, int64[1] last = {-1}, "
        "int64[5] s = {2, 5, 2, 1, 2}, int64[5] t = {1, 1, 1, 2, 1}",
    ),
    "dynamic parts of one tensor": (
        "float[N, S, 12] x", "float[N, S, 6] p, float[N, S, 6] q",
        "c = Slice(x, zero, six, last)  p = Neg(c)  d = Slice(x, six, twelve, last)  q = Exp(d)",
        "int64[1] zero = {0}, int64[1] six = {6}, int64[1] twelve = {12}, int64[1] last = {2}",
    ),
    "shifted windows": (
        "float[2, 6, 6, 3] x", "float[8, 9, 3] y",
        "t = Neg(x)  a1 = Slice(t, s1, big, ax1)  a2 = Slice(t, s0, s1, ax1)  a = Concat<axis=1>(a1, a2)  "
        "b1 = Slice(a, s1, big, ax2)  b2 = Slice(a, s0, s1, ax2)  b = Concat<axis=2>(b1, b2)  r = Reshape(b, s6)  "
        "p = Transpose<perm=[0,1,3,2,4,5]>(r)  q = Reshape(p, s3)  y = Abs(q)",
        "int64[1] s1 = {1}, int64[1] s0 = {0}, int64[1] big = {9223372036854775807}, int64[1] ax1 = {1}, "
        "int64[1] ax2 = {2}, int64[6] s6 = {2, 2, 3, 2, 3, 3}, int64[3] s3 = {8, 9, 3}",
    ),
    "parts cut and joined again": (
        "float[1] x, float[1] z", "float[3] y",
        "a = Neg(x)  c = Concat<axis=0>(a, z)  c0, c1 = Split<axis=0, num_outputs=2>(c)  "
        "d = Concat<axis=0>(c0, c1, c0)  y = Abs(d)", "",
    ),
    "a guarded broadcast": (
        "float[4, 1] x, float[2, 6] z", "float[6, 6] y", "a = Expand(x, s)  c = Concat<axis=0>(a, z)  y = Neg(c)",
        "int64[2] s = {4, 6}",
    ),
    "all that is read is one element": (
        "float[5] x", "float[3] y", "a = Neg(x)  g = Gather<axis=0>(a, k)  y = Expand(g, s)",
        "int64 k = {3}, int64[1] s = {3}",
    ),
    "dynamic batch": (
        "float[N, 16, 4, 8] x, float[8] b", "float[N, 4, 16, 8] y",
        "a = Add(x, b)  t = Transpose<perm=[0,2,1,3]>(a)  y = Tanh(t)", "",
    ),
    "dynamic batch and length": (
        "float[N, S, 12] x", "float[N, 2, S, 6] y",
        "a = Neg(x)  r = Reshape(a, s)  t = Transpose<perm=[0,2,1,3]>(r)  y = Tanh(t)", "int64[4] s = {0, 0, 2, 6}",
    ),
    "dynamic repetition, for queries": (
        "float[N, 1, S] x", "float[N, 1, S, S] y",
        "s = Shape(x)  n = Slice(s, zero, one)  l = Slice(s, two, three)  to = Concat<axis=0>(n, one, l, l)  "
        "a = Neg(x)  b = Unsqueeze(a, one)  y = Expand(b, to)", _NUMBERS,
    ),
    "dynamic repetition, then a view": (
        "float[N, S, 1, 3] x", "float[N, R] y",
        "s = Shape(x)  n = Slice(s, zero, one)  l = Slice(s, one, two)  to = Concat<axis=0>(one, l, four, one)  "
        "a = Expand(x, to)  b = Neg(a)  e = Mul(l, four)  e3 = Mul(e, three)  "
        "flat = Concat<axis=0>(n, e3)  r = Reshape<allowzero = 1>(b, flat)  y = Abs(r)", _NUMBERS,
    ),
    "dynamic halves": (
        "float[N, 6] x", "float[N, 6] y",
        "h = Slice(x, zero, half, last)  g = Slice(x, half, big, last)  n = Neg(g)  y = Concat<axis=1>(n, h)",
        "int64[1] zero = {0}, int64[1] half = {3}, int64[1] big = {9223372036854775807}, int64[1] last = {1}",
    ),
    "dynamic shifted windows": (
        "float[N, 4, S, 4, 3] x", "float[N, S, 4, 4, 3] y",
        f"{_MAP}  {_rolled('two', 'two')}  p = Concat<axis=0>(n, four, l, four, three)  "
        "r = Reshape<allowzero = 1>(b, p)  y = Transpose<perm=[0,2,1,3,4]>(r)", _NUMBERS,
    ),
    "dynamic windows shifted back": (
        "float[N, 4, S, 4, 3] x", "float[R, C, 3] y", f"{_MAP}  {_rolled('back', 'back', 'y')}", _NUMBERS,
    ),
}  # fmt: skip
SYMBOLS = {"N": (1, 3, 0), "S": (5, 1, 4)}


def _outlined(name: str) -> tuple[ir.Model, ir.Model, Kernel]:
    inputs, outputs, body, constants = ONE_KERNEL[name]
    before = graph(inputs, outputs, body, constants=constants)
    ir.passes.common.TopologicalSortPass()(before) if name == "split to outputs" else None
    after = before.clone()
    (kernel,) = outline(after, fuse(after))
    assert [n.op_type for n in after.graph if n.domain == "onnxopt"] == [kernel.name]
    # Also where ONNX Runtime would be preferred: the kernel itself is under test.
    return before, after, dataclasses.replace(kernel, cpu=True)


def _feeds(model: ir.Model, draw: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(draw)
    feeds = {}
    for value in model.graph.inputs:
        dims = [d if isinstance(d, int) else SYMBOLS[d.value][draw] for d in value.shape]
        feeds[value.name] = rng.uniform(-2, 2, dims).astype(np.float32)
    return feeds


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    before, after, kernel = _outlined(name)
    kernel.program.verify()
    library = artifact.copy_library(tmp_path)
    (tmp_path / "kernels.json").write_text(kernels_json.to_json([kernel], None))
    session = artifact.session(ir.to_proto(after), library)
    for draw in range(3 if "dynamic" in name else 1):
        feeds = _feeds(before, draw)
        for found, expected in zip(session.run(None, feeds), run(before, feeds), strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ONE_KERNEL if "windows" in name or "repetition" in name])
def test_the_function_computes_shapes_itself(name: str) -> None:
    before, after, _ = _outlined(name)
    for draw in range(3 if "dynamic" in name else 1):
        feeds = _feeds(before, draw)
        for found, expected in zip(run(after, feeds), run(before, feeds), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["rotary embedding", "dynamic batch and length", "shifted windows"])
def test_nothing_else_is_left(name: str) -> None:
    _, after, _ = _outlined(name)
    assert [n.domain for n in after.graph] == ["onnxopt"]


@pytest.mark.parametrize(
    ("outputs", "second"),
    [
        ("float[4, 6] p, float[4, 4] q", "d = Slice(x, six, ten, last)  q = Exp(d)"),  # another size
        (
            "float[4, 6] p, float[6, 4] q",
            "d = Slice(x, six, twelve, last)  e = Exp(d)  q = Transpose(e)",
        ),  # moved around
    ],
)
def test_parts_that_stay_apart(outputs: str, second: str) -> None:
    """Kernels that make as much of each part, element by element, are one; others would lose by it."""
    constants = ", ".join(
        f"int64[1] {n} = {{{v}}}" for n, v in (("zero", 0), ("six", 6), ("ten", 10), ("twelve", 12), ("last", 1))
    )
    model = graph(
        "float[4, 12] x", outputs, f"c = Slice(x, zero, six, last)  p = Neg(c)  {second}", constants=constants
    )
    assert [len(r.outputs) for r in fuse(model).regions] == [1, 1]


@pytest.mark.parametrize(("dtype", "count"), [("float16", 1), ("bfloat16", 1), ("float", 0)])
def test_gelu_alone_is_a_region_in_16_bits(dtype: str, count: int) -> None:
    """ONNX Runtime's CUDA kernel for it takes three times as long as ours there."""
    assert len(fuse(graph(f"{dtype}[4, 6] x", f"{dtype}[4, 6] y", "y = Gelu(x)")).regions) == count


def test_a_view_alone_stays_a_view() -> None:
    model = graph("float[4, 6] x", "float[2, 12] y", "a = Neg(x)  y = Reshape(a, s)", constants="int64[2] s = {2, 12}")
    assert fuse(model).regions == ()


@pytest.mark.parametrize(
    ("body", "constants", "reason"),
    [
        ("a = Neg(x)  y = Gather<axis=0>(a, k)", "int64[3] k = {0, 1, 3}", "Gather looks elements up in what the same"),
        ("y = Gather<axis=0>(x, k)  z2 = Neg(y)", "int64[2] k = {0, 4}", "Gather's indices lie outside of a dim of 4"),
        ('a = Neg(x)  y = Pad<mode="reflect">(a, w)', "int64[4] w = {1, 0, 1, 0}", "Pad has mode reflect"),
        (
            "a = Erf(x)  y = Expand(a, s)",
            "int64[3] s = {8, 4, 6}",
            "Erf would be recomputed for every element that `a` is broadcast to",
        ),
        (
            "a = Neg(x)  y = Expand(a, shape)",
            "",
            "Expand cannot become index arithmetic: The fused kernel is not valid",
        ),
        (
            "s = Shape(z)  to = Concat<axis=0>(s, one, one)  a = Neg(x)  y = Expand(a, to)",
            "int64[1] one = {1}",
            "no input has a dim of size `T`",
        ),
        (
            "a = Neg(x)  t = Transpose(a)  y = MatMul(t, x)",
            "",
            "ONNX Runtime folds this Transpose into the MatMul that reads `t`",
        ),
    ],
)
def test_what_stays_apart(body: str, constants: str, reason: str) -> None:
    inputs = "float[4, 6] x, float[T] z, int64[3] shape"
    plan = fuse(graph(inputs, "float[] y", body, constants=constants))
    assert plan.regions == ()
    assert any(reason in r.reason for r in plan.refusals), [r.reason for r in plan.refusals]


def test_other_shapes_than_declared_are_refused_by_the_library(tmp_path: Path) -> None:
    _, after, kernel = _outlined("dynamic batch")
    library = artifact.copy_library(tmp_path)
    (tmp_path / "kernels.json").write_text(kernels_json.to_json([kernel], None))
    model = ir.to_proto(after)
    for k in (1, 2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[k].dim_param = f"free{k}"
    session = artifact.session(model, library)
    with pytest.raises(Exception, match="where the model declares"):
        session.run(None, {"x": np.zeros((2, 16, 5, 8), np.float32), "b": np.zeros(8, np.float32)})


def test_two_tensors_of_unknown_length_are_not_joined() -> None:
    model = graph("float[N, 4] x, float[S, 4] z", "float[R, 4] y", "a = Neg(x)  y = Concat<axis=0>(a, z)")
    (refusal,) = fuse(model).refusals
    assert refusal.reason.endswith("Concat works along a dim of unknown size; only dims of known size are fused")
