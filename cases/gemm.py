"""Products: with bias, residual and activation, of 8-bit codes, with parts of their result."""

from __future__ import annotations

from cases.text import Case, table

_GEMM = Case(
    "float[B, S, 8] x, float[B, S, 12] r, float[8, 12] w, float[12] b, float[12, 8] u",
    "float[B, S, 12] y, float[B, S, 8] z",
    "m = MatMul(x, w)  s = Add(m, b)  y = Add(s, r)  t = MatMul(y, u)  z = Relu(t)",
    ((2, 5, 8), (2, 5, 12), (8, 12), (12,), (12, 8)),
)  # fmt: skip
_CODES = Case(
    "uint8[B, S, 8] x, uint8[B, 8, 12] k, float[12] b, float[B, S, 12] r", "float[B, S, 12] y",
    "one = DequantizeLinear(x, unit, z)  h = Cast<to = 10>(one)  n = Shape(h)  c = Reshape(x, n)  "
        "two = DequantizeLinear(k, unit, z)  i = Cast<to = 10>(two)  o = Shape(i)  d = Reshape(k, o)  "
        "f = DequantizeLinear(c, s, z)  g = DequantizeLinear(d, s, z)  m = MatMul(f, g)  a = Add(m, b)  y = Add(a, r)",
    ((2, 5, 8), (2, 8, 12), (12,), (2, 5, 12)), "float unit = {1}, float s = {0.1}, uint8 z = {7}",
)  # fmt: skip
# Products of codes may be summed with fewer bits than float32 has (docs/architecture.md).
_FLOAT8 = Case(
    "float8e4m3fn[B, S, 16] x, float8e4m3fn[48, 16] k, float[B, S, 48] r", "float[B, S, 48] y",
    "c = Cast<to = 1>(x)  a = Mul(c, s)  d = Cast<to = 1>(k)  t = Transpose<perm = [1, 0]>(d)  b = Mul(t, s)  "
        "m = MatMul(a, b)  y = Add(m, r)",
    ((2, 5, 16), (48, 16), (2, 5, 48)), "float s = {0.1}", limit=2e-3,
)  # fmt: skip
_GELU = Case(
    "float16[N, 16] x, float16[16, 24] w, float16[24] b, float16[24, 16] v", "float16[N, 16] y",
    "m = MatMul(x, w)  a = Add(m, b)  g = Gelu(a)  y = MatMul(g, v)",
    ((3, 16), (16, 24), (24,), (24, 16)), limit=1e-2,  # of g rounded once 6.8e-3, of the nodes 1.3e-2
)  # fmt: skip
_SILU = Case(
    "float16[N, 16] x, float16[16, 24] w, float16[24] b, float16[24, 16] v", "float16[N, 16] y",
    "m = MatMul(x, w)  a = Add(m, b)  s = Sigmoid(a)  g = Mul(a, s)  y = MatMul(g, v)",
    ((3, 16), (16, 24), (24,), (24, 16)), limit=1.2e-2,  # of g rounded once 1.05e-2, of the nodes 1.37e-2
)  # fmt: skip
_PARTS = Case(
    "float16[N, 16] x, float16[24, 16] w, float16[24] b", "float16[N, 8] q, float16[N, 8] k, float16[N, 8] v",
    "t = Transpose<perm = [1, 0]>(w)  m = MatMul(x, t)  a = Add(m, b)"
        "  q, k, v = Split<axis = -1, num_outputs = 3>(a)",
    ((3, 16), (24, 16), (24,)),
)  # fmt: skip
TABLE = table(
    "gemm",
    {
        "gemm": (_GEMM,),
        "codes": (_CODES,),
        "float8": (_FLOAT8, _FLOAT8.at((1, 3, 16), (48, 16), (1, 3, 48))),
        "gelu": (_GELU, _GELU.at((300, 16), (16, 24), (24,), (24, 16))),
        "silu": (_SILU, _SILU.at((300, 16), (16, 24), (24,), (24, 16))),
        "parts": (_PARTS, _PARTS.at((70, 16), (24, 16), (24,))),
    },
)
