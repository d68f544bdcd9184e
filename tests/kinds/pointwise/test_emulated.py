"""Pointwise CUDA kernels with index operations, run on the CPU by g++ and threads (emulation/cuda.h), against ORT.

Every entry point of a kernel runs: what is tested is the device code, its tiles, tails and barriers. The host's choice
of an entry point and 16-bit floats need a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.pointwise.access_modes import ALONG, columns
from onnxopt.program.indexing import Condition, Indexing, Term
from onnxopt.program.pointwise import Program
from onnxopt.program.schema import Variant
from tests.support.emulation import emulated
from tests.support.graphs import graph

_ROLL = (
    "a1 = Slice(t, s3, big, ax1)  a2 = Slice(t, s0, s3, ax1)  a = Concat<axis=1>(a1, a2)  "
    "b1 = Slice(a, s3, big, ax2)  b2 = Slice(a, s0, s3, ax2)  b = Concat<axis=2>(b1, b2)  "
)
# name: inputs, body, constants, letters of the entry point that must be there
CASES = {
    "transpose_odd": ("float[67, 131] x, float[131, 67] z", "t = Transpose(x)  y = Add(t, z)", "", "zF"),
    "transpose_odd_int16": ("int16[67, 131] x", "t = Transpose(x)  y = Abs(t)", "", "z"),
    "transpose_odd_rows_int16": ("int16[101, 72] x", "t = Transpose(x)  y = Abs(t)", "", "Z"),
    "transpose_odd_columns_int16": ("int16[104, 69] x", "t = Transpose(x)  y = Abs(t)", "", "z"),
    "transpose_even_columns_int8": ("int8[128, 70] x", "t = Transpose(x)  y = Abs(t)", "", "z"),
    "transpose_odd_int8": ("int8[101, 69] x", "t = Transpose(x)  y = Abs(t)", "", "z"),
    "transpose_odd_double": ("double[67, 131] x, double[131, 67] z", "t = Transpose(x)  y = Add(t, z)", "", "zF"),
    "turned_odd_bias_int8": (
        "int8[101, 135] x, int8[101] z",
        "t = Transpose(x)  a = Add(t, z)  y = Max(a, z)",
        "",
        "zr",
    ),
    "turned_bias_uint8": (
        "uint8[112, 144] x, uint8[112] z",
        "t = Transpose(x)  a = Add(t, z)  y = Min(a, z)",
        "",
        "ZR",
    ),
    "turned_bias_int16": ("int16[101, 69] x, int16[101] z", "t = Transpose(x)  y = Sub(t, z)", "", "zr"),
    "odd_images_int16": (
        "int16[2, 7, 9, 101] x",
        "a = Abs(x)  t = Transpose<perm=[0,3,1,2]>(a)  y = Neg(t)",
        "",
        "z",
    ),
    "heads_int16": ("int16[2, 197, 3, 64] x", "a = Abs(x)  t = Transpose<perm=[0,2,3,1]>(a)  y = Neg(t)", "", "Z"),
    "four_channels_int16": ("int16[2, 4, 71] x", "t = Transpose<perm=[0,2,1]>(x)  y = Abs(t)", "", "z"),
    "twelve_channels_int16": ("int16[2, 12, 70] x", "t = Transpose<perm=[0,2,1]>(x)  y = Abs(t)", "", "z"),
    "three_channels_int8": ("int8[2, 3, 84] x", "t = Transpose<perm=[0,2,1]>(x)  y = Abs(t)", "", "z"),
    "turned_images_int16": (
        "int16[2, 6, 11, 5, 35] x",
        "a = Abs(x)  t = Transpose<perm=[0,4,1,3,2]>(a)  y = Neg(t)",
        "",
        "X",
    ),
    "transpose_aligned": ("float[72, 136] x, float[72] z", "t = Transpose(x)  y = Add(t, z)", "", "ZR"),
    "small_images": (
        "float[2, 7, 7, 96] x, float[96] g, float[2, 96, 7, 7] r",
        "m = Mul(x, g)  t = Transpose<perm=[0,3,1,2]>(m)  y = Add(r, t)",
        "",
        "FZc",
    ),
    "three_channels": ("float[2, 3, 21, 20] x", "t = Transpose<perm=[0,2,3,1]>(x)  y = Relu(t)", "", "Z"),
    "heads": (
        "float[2, 67, 4, 16] x, float[67] z",
        "t = Transpose<perm=[0,2,3,1]>(x)  y = Add(t, z)",
        "",
        "Zr",
    ),
    "space_to_depth": ("float[2, 3, 34, 36] x", "d = SpaceToDepth<blocksize=2>(x)  y = Relu(d)", "", "Z"),
    "space_to_depth_odd": ("float[2, 3, 34, 38] x", "d = SpaceToDepth<blocksize=2>(x)  y = Relu(d)", "", "Y"),
    "half_vectors": ("float[72, 70] x, float[72] z", "t = Transpose(x)  y = Add(t, z)", "", "zR"),
    "depth_to_space": ("float[2, 8, 6, 10] x", 'd = DepthToSpace<blocksize=2, mode="CRD">(x)  y = Relu(d)', "", "I"),
    "patches": (
        "float[2, 40, 35] x, float[2, 1, 40] c",
        "t = Transpose<perm=[0,2,1]>(x)  k = Concat<axis=1>(c, t)  y = Relu(k)",
        "",
        "zTPP",
    ),
    "patches_int16": (
        "int16[2, 40, 35] x, int16[2, 1, 40] c",
        "t = Transpose<perm=[0,2,1]>(x)  k = Concat<axis=1>(c, t)  y = Abs(k)",
        "",
        "zTPP",
    ),
    "shift": (
        "float[2, 14, 14, 8] x, float[8] g",
        f"t = Mul(x, g)  {_ROLL} r = Reshape(b, s6)  y = Transpose<perm=[0,1,3,2,4,5]>(r)",
        "int64[1] s3 = {3}, int64[1] s0 = {0}, int64[1] big = {9223372036854775807}, int64[1] ax1 = {1}, "
        "int64[1] ax2 = {2}, int64[6] s6 = {2, 2, 7, 2, 7, 8}",
        "VRVVVPPPP",
    ),
    "rotary_turned": (
        "float[1, 37, 3, 32] x, float[1, 1, 37, 32] c",
        "t = Transpose<perm=[0,2,1,3]>(x)  h1 = Slice(t, s0, s16, ax3)  h2 = Slice(t, s16, big, ax3)  n = Neg(h2)  "
        "r = Concat<axis=3>(n, h1)  m = Mul(r, c)  a = Add(t, m)  y = Transpose<perm=[0,1,3,2]>(a)",
        "int64[1] s16 = {16}, int64[1] s0 = {0}, int64[1] big = {9223372036854775807}, int64[1] ax3 = {3}",
        "ZZZtpp",
    ),
    "padded": (
        "float[2, 3, 10, 9] x, float[2, 3, 12, 11] z",
        "p = Pad(x, pads)  a = Relu(p)  y = Add(a, z)",
        "int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}",
        "gFpp",
    ),
}  # fmt: skip
_TYPES = {"float": np.float32, "double": np.float64, "int16": np.int16, "int8": np.int8, "uint8": np.uint8}
_C_TYPES = {"float": "float", "double": "double", "int16": "short", "int8": "signed char", "uint8": "unsigned char"}
_MAIN = """
%(source)s
using namespace onnxopt;
using Index = unsigned;
using Element = %(type)s;
int main() {
  std::vector<std::vector<Element>> in;
  %(reads)s
  std::vector<Element> y(%(count)d);
  Params<Index, %(inputs)d, 1%(conditions)s> params{};
  params.count = y.size();
  params.output[0] = y.data();
  %(fills)s
  %(runs)s
}
"""


def _dtype(name: str) -> str:
    """Of a case's inputs and its output."""
    return CASES[name][0].split("[")[0]


def _kernel(name: str) -> tuple[ir.Model, Kernel]:
    inputs, body, constants, _ = CASES[name]
    model = graph(inputs, f"{_dtype(name)}[] y", body, constants=constants)
    optimized = model.clone()
    (kernel,) = outline(optimized, fuse(optimized))
    return model, kernel


def _divisor(d: int) -> str:
    shift = (d - 1).bit_length()
    return f"{{{d}u, {(((1 << shift) - d) << 32) // d + 1}u, {shift}u}}"


def _terms(terms: Sequence[Term]) -> str:
    rows = [(t.div.factor, t.mod.factor, t.stride.factor) for t in terms] + [(1, 1, 0)] * (6 - len(terms))
    return ", ".join(f"{{{_divisor(d)}, {_divisor(m)}, {s % 2**32}u}}" for d, m, s in rows)


def _fill(k: int, index: Indexing) -> str:
    access = index.accesses[k]
    offset = sum(e.factor for e in access.offset)
    data = f"params.data[{k}] = in[{access.input}].data() + ({offset});"
    return f"{data} params.input[{k}] = {{params.data[{k}], {len(access.terms)}u, 0u, {{{_terms(access.terms)}}}}};"


def _condition(k: int, c: Condition) -> str:
    low, extent = ((c.low - c.offset).number or 0) % 2**32, (c.high - c.low).number
    return f"params.condition[{k}] = {{{low}u, {extent}u, {len(c.terms)}u, 0u, {{{_terms(c.terms)}}}}};"


def _launch(variant: Variant, index: Indexing, count: int) -> str:
    """C++ that poisons the output, runs one entry point over it and writes the result."""
    blocks, argument = -(-count // (variant.threads * variant.vector * variant.unroll)), "params"
    before = ""
    if variant.tile:
        column = columns(index.accesses[next(k for k, m in enumerate(variant.modes) if m in ALONG)].terms)
        assert column is not None
        rows, wide = column.div.factor, column.mod.factor
        along = (-(-(rows + (variant.vector - 1) * variant.slides) // variant.tile), -(-wide // variant.tile_columns))
        blocks, argument = math.prod(along) * (count // (rows * wide)), "tiled"
        sides = f"{rows}u, {wide}u, {_divisor(along[0])}, {_divisor(along[1])}"
        before = f"const struct {{ Tiles<Index> tiles; decltype(params) of; }} block{{{{{sides}}}, params}}; "
        before += "const auto& tiled = reinterpret_cast<const TiledOf&>(block);"
        assert not variant.whole or rows == variant.tile
    run = f"emulation::launch({blocks}, {variant.threads}, [&] {{ {variant.symbol}({argument}); }});"
    return f'{{ y.assign(y.size(), Element(-77)); {before} {run} emulation::write("{variant.symbol}", y); }}'


@pytest.mark.parametrize("name", CASES)
def test_every_entry_point(tmp_path: Path, name: str) -> None:
    model, kernel = _kernel(name)
    index = cast(Program, kernel.program).index
    assert index is not None
    assert CASES[name][3] in [v.modes for v in kernel.variants]
    rng = np.random.default_rng(len(name))
    dtype, spread = _TYPES[_dtype(name)], 100 if "int" in _dtype(name) else 2
    shapes = {v.name: [int(d) for d in v.shape] for v in model.graph.inputs}
    feeds = {name: rng.normal(0, spread, shape).clip(-120, 120).astype(dtype) for name, shape in shapes.items()}
    if dtype in (np.float32, np.float64):
        session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, feeds)
    else:  # ONNX Runtime's CPU provider does not take small integers
        (expected,) = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)
    for k, value in enumerate(feeds.values()):
        value.tofile(tmp_path / str(k))
    counts = (len(index.accesses), len(index.conditions))
    tiled = f"using TiledOf = TiledParams<Index, {counts[0]}, 1, {counts[1]}>;"
    main = _MAIN % {
        "source": generate.generate([kernel]),
        "reads": " ".join(
            f'in.push_back(emulation::read<Element>("{k}", {v.size}));' for k, v in enumerate(feeds.values())
        ),
        "type": _C_TYPES[_dtype(name)],
        "count": expected.size, "inputs": counts[0], "conditions": f", {counts[1]}" * bool(counts[1]),
        "fills": " ".join(
            [*(_fill(k, index) for k in range(counts[0])), *(_condition(k, c) for k, c in enumerate(index.conditions))]
        ),
        "runs": tiled + " ".join(_launch(v, index, expected.size) for v in kernel.variants),
    }  # fmt: skip
    emulated.run(tmp_path, main)
    for variant in kernel.variants:
        found = np.fromfile(tmp_path / variant.symbol, dtype).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=variant.symbol)
