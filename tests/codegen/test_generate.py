"""Generated CUDA: readable (golden files), deterministic, bit-exact literals, and compilable whatever the program.

ONNXOPT_UPDATE_GOLDEN=1 rewrites tests/codegen/golden/; read the difference before committing it.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from cases.models import fuse, outline
from onnxopt.codegen.generate import generate
from onnxopt.codegen.nvrtc import compile_cuda
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.pointwise.kind import POINTWISE
from onnxopt.program.cuda_text.statements import literal
from onnxopt.program.dtypes import COMPUTE_DTYPES, DTYPES
from onnxopt.program.expressions import Builder, Expr
from onnxopt.program.pointwise import PRIMITIVES, Instruction, PointwiseVariant, Program
from tests.support.graphs import graph

GOLDEN = Path(__file__).parent / "golden"
# name of the golden file: inputs, outputs, body, constants
KERNELS = {
    "bias_gelu_float16": (
        "float16[B, S, 768] x, float16[768] bias",
        "float16[B, S, 768] y",
        "a = Add(x, bias)  y = Gelu(a)",
        "",
    ),
    "masked_scores_two_outputs": (
        "float[2, 4, 8, 8] x, bool[8, 8] mask, int64[2, 1, 1, 1] scale",
        "float[2, 4, 8, 8] y, bool[2, 4, 8, 8] kept",
        "s = Cast<to = 1>(scale)  z = Mul(x, s)  y = Where(mask, z, low)  kept = Greater(y, low)",
        "float low = {-inf}",
    ),
    "batch_norm_relu_per_channel": (
        "float[N, 64, H, W] x, float[64, 1, 1] mean, float[64, 1, 1] factor",
        "float[N, 64, H, W] y",
        "d = Sub(x, mean)  e = Mul(d, factor)  f = Add(e, tenth)  y = Relu(f)",
        "float tenth = {0.1}",
    ),
    "rotary_embedding_float16": (
        "float16[B, S, 3072] x, float[1, 1, S, 64] cos, float[1, 1, S, 64] sin",
        "float16[B, 16, S, 64] y",
        "k = Slice(x, zero, heads, two)  r = Reshape(k, split)  t = Transpose<perm = [0, 2, 1, 3]>(r)  "
        "f = Cast<to = 1>(t)  a = Mul(f, cos)  h = Slice(f, zero, half, last)  g = Slice(f, half, end, last)  "
        "n = Neg(g)  c = Concat<axis = 3>(n, h)  b = Mul(c, sin)  z = Add(a, b)  y = Cast<to = 10>(z)",
        "int64[4] split = {0, 0, 16, 64}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] heads = {1024}, "
        "int64[1] half = {32}, int64[1] end = {64}, int64[1] last = {3}",
    ),
    "offset_and_limits_int8": (
        "int8[N, 64] x, int8[64] z",
        "int8[N, 64] y",
        "a = Add(x, z)  b = Max(a, low)  y = Min(b, high)",
        "int8 low = {-100}, int8 high = {100}",
    ),
}


def _kernels(name: str) -> tuple[Kernel, ...]:
    inputs, outputs, body, constants = KERNELS[name]
    model = graph(inputs, outputs, body, constants=constants)
    return outline(model, fuse(model))


@pytest.mark.parametrize("name", KERNELS)
def test_golden(name: str) -> None:
    text, path = generate(_kernels(name)), GOLDEN / f"{name}.cu"
    if os.environ.get("ONNXOPT_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "if this is meant: ONNXOPT_UPDATE_GOLDEN=1 pytest tests/codegen/test_generate.py"


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.cu")} == set(KERNELS)


def test_deterministic() -> None:
    name = "masked_scores_two_outputs"
    assert generate(_kernels(name)) == generate(_kernels(name))


def test_approximate_functions_only_where_every_float_has_16_bits() -> None:
    def functions(inputs: tuple[str, ...], output: str) -> set[str]:
        return set(re.findall(r"= ([a-z0-9_:<>]+)\(", _source(_unary_chain(inputs, output))))

    assert functions(("float16",), "bfloat16") == {"approximate::exp", "approximate::tanh", "add"}
    assert functions(("float16", "float32"), "float16") == {"exp", "tanh", "add"}
    assert functions(("float16",), "float32") == {"exp", "tanh", "add"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("g = Gelu(a)", "gelu(v0, 0.70710677f)"),
        ("d = Div(a, r)  e = Erf(d)  f = Add(e, one)  m = Mul(a, f)  g = Mul(m, half)", "gelu(v0, 0.70718235f)"),
        ("d = Div(a, r)  e = Erf(d)  f = Add(one, e)  m = Mul(half, f)  g = Mul(m, a)", "gelu(v0, 0.70718235f)"),
        ("h = Mul(half, a)  d = Div(a, r)  e = Erf(d)  f = Add(e, one)  g = Mul(f, h)", "gelu(v0, 0.70718235f)"),
        ("d = Div(a, r)  e = Erf(d)  f = Add(e, one)  m = Mul(x, f)  g = Mul(m, half)", "erf_plus"),
        ("d = Div(a, r)  e = Erf(d)  f = Add(e, one)  m = Mul(a, f)  g = Mul(m, r)", "erf_plus"),
        ("d = Mul(a, r)  e = Erf(d)  f = Add(e, one)  m = Mul(a, f)  g = Mul(m, half)", "erf_plus"),
        ("d = Div(a, r)  e = Erf(d)  f = Add(e, half)  m = Mul(a, f)  g = Mul(m, half)", "erf"),
    ],
)
def test_gelu_is_one_function(body: str, expected: str) -> None:
    """In every spelling, where its constants are those of GELU; then nothing else is computed."""
    constants = "float16 r = {15784}, float16 one = {15360}, float16 half = {14336}"  # as bits
    model = graph(
        "float16[N, 64] x, float16[64] b", "float16[N, 64] y", f"a = Add(x, b)  {body}  y = Neg(g)", constants=constants
    )
    found = re.findall(r"= approximate::(\w+\([^)]*\));", generate(outline(model, fuse(model))))
    assert [text[: len(expected)] for text in found] == [expected]


def _unary_chain(inputs: tuple[str, ...], output: str) -> Program:
    builder = Builder(inputs)
    result = builder.inputs[0].exp().tanh() + builder.inputs[-1]
    depends = tuple(range(len(inputs)))
    return Program(inputs, (output,), tuple(builder.code), (result.id,), (depends,), (0,))


def _strided(name: str, inputs: int) -> PointwiseVariant:
    return PointwiseVariant(f"{name}_strided", "*" * inputs, 32, 1, 1, 128)


def _source(*programs: Program) -> str:
    kernels = [
        Kernel(f"K{k}", POINTWISE, ("Test",), program, (_strided(f"K{k}", len(program.inputs)),), ())
        for k, program in enumerate(programs)
    ]
    return generate(kernels)


FLOAT_VALUES = (
    0.0, -0.0, 1.0, -2.5, 0.1, math.pi, 1e10, 1e16, 123456789.0, 2.0**-149, 1.1754943e-38, 1e-40, 3.4028235e38,
    math.inf, -math.inf, math.nan, 1 / 3, 16777216.0, 1e-5,
)  # fmt: skip
LITERALS = [
    *(("float32", float(np.float32(v))) for v in FLOAT_VALUES),
    *(("float64", v) for v in (*FLOAT_VALUES, 5e-324, 1.7976931348623157e308, 2.2250738585072014e-308, 1e22, 1e23)),
    *((d, v) for d, bits in (("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64)) for v in
      (0, -1, 5, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)))),
    *((d, v) for d, bits in (("uint8", 8), ("uint16", 16), ("uint32", 32), ("uint64", 64)) for v in (0, 2**bits - 1)),
    ("bool", True), ("bool", False),
]  # fmt: skip
_AS_64_BITS = {"float32": "__float_as_uint", "float64": "__double_as_longlong"}


def _expected_bits(dtype: str, value: float | int | bool) -> int:
    if dtype in _AS_64_BITS:
        if math.isnan(value):
            return 0x7FC00000 if dtype == "float32" else 0x7FF8000000000000
        code, size = ("<f", "<I") if dtype == "float32" else ("<d", "<Q")
        return struct.unpack(size, struct.pack(code, value))[0]
    return int(value) % 2**64


def test_literals_read_back_bit_exactly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel stores every literal's bits; they stand in the PTX."""
    lines = [
        f"y[{k}] = {_AS_64_BITS.get(dtype, 'uint64_t')}({literal(Instruction('const', dtype, value=value))});"
        for k, (dtype, value) in enumerate(LITERALS)
    ]
    opening = 'extern "C" __global__ void literals(uint64_t* y) {'
    source = "\n".join(['#include "pointwise/pointwise.cuh"', "namespace onnxopt {", opening, *lines, "}", "}"])
    compile_cuda(source, ["sm_75"], tmp_path)
    (ptx,) = tmp_path.glob("*.ptx")
    text = ptx.read_text(errors="replace")
    registers = dict(re.findall(r"mov\.[bu]64\s+(%rd\d+), (-?\d+);", text))
    stores = re.findall(r"st\.global\.[bu]64\s+\[%rd\d+(?:\+(\d+))?\], ([-%\w]+);", text)
    stored = {int(offset or 0) // 8: int(registers.get(source, source)) % 2**64 for offset, source in stores}
    assert len(stored) == len(LITERALS)
    wrong = {
        (dtype, value, hex(stored[k]))
        for k, (dtype, value) in enumerate(LITERALS)
        if stored[k] != _expected_bits(dtype, value)
    }
    assert not wrong


def _every_primitive(dtype: str, storage: str) -> Program:
    """One program that applies every primitive a compute dtype takes; nothing in it is dead."""
    builder = Builder((storage, storage, "bool"))
    x, y, chosen = builder.inputs

    def kept(value: Expr) -> Expr:
        return chosen.where(value, x) if value.dtype == dtype else value.where(x, y)

    result = x
    for op, row in PRIMITIVES.items():
        if op in ("const", "select", "cast", "narrow") or dtype not in row.operands:
            continue
        operands = (x, y)[: row.arity]
        result = chosen.where(kept(operands[0].apply(op, *operands[1:])), result)
    if dtype == "float32":
        result = chosen.where(x.narrow("bfloat16"), result) if storage != "bfloat16" else result
        result = chosen.where((x + y).narrow("float16"), result)
    program = Program((storage, storage, "bool"), (storage,), tuple(builder.code), (result.id,), ((0, 1, 2),), (0,))
    program.verify()
    return program


def _every_cast() -> Program:
    """All compute dtypes cast to all others."""
    inputs = tuple(sorted(COMPUTE_DTYPES))
    builder = Builder(inputs)
    casts = {}
    for value, target in itertools.product(builder.inputs, inputs):
        before = casts.get(target, builder.inputs[inputs.index(target)])
        casts[target] = builder.inputs[inputs.index("bool")].where(before, value.cast(target))
    results = tuple(casts[d].id for d in inputs)
    program = Program(
        inputs, inputs, tuple(builder.code), results, (tuple(range(len(inputs))),) * len(inputs), (0,) * len(inputs)
    )
    program.verify()
    return program


def test_every_primitive_compiles_for_every_dtype(tmp_path: Path) -> None:
    programs = [_every_primitive(d.compute, d.name) for d in DTYPES.values()]
    used = {(i.op, d) for p in programs for i in p.code for d in [p.dtypes[i.args[0]] if i.args else i.dtype]}
    wanted = {(op, d) for op, row in PRIMITIVES.items() if op not in ("const", "cast", "select") for d in row.operands}
    assert wanted <= used
    source = _source(*programs, _every_cast())
    assert compile_cuda(source, ["sm_75", "sm_90"], tmp_path)
