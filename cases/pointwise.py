"""Elementwise operators, with broadcasts, integers, index operators and padding."""

from __future__ import annotations

from cases.text import Case, table

_ENDS = "int64[1] zero = {0}, int64[1] half = {4}, int64[1] all = {8}, int64[1] last = {-1}"
_POINTWISE = Case(
    "float[N, 6, M] x, float[6, 1] c, float[M] b, int32[N, 6, M] k", "float[N, 6, M] y, int32[N, 6, M] q",
    "a = Mul(x, c)  s = Add(a, b)  g = Sigmoid(s)  y = Mul(s, g)  r = Mod(k, seven)  q = Div(k, three)",
    ((2, 6, 70), (6, 1), (70,), (2, 6, 70)), "int32 three = {3}, int32 seven = {7}",
)  # fmt: skip
_HALF = Case(
    "float16[N, 64] x, float16[64] b, bool[N, 1] m", "float16[N, 64] y",
    "a = Add(x, b)  t = Tanh(a)  w = Where(m, t, x)  y = Mul(w, a)",
    ((5, 64), (64,), (5, 1)),
)  # fmt: skip
_ROTARY = Case(
    "float[N, 8] x, float[8] c", "float[N, 8] y, float[N, 8] z",
    "l = Slice(x, zero, half, one)  r = Slice(x, half, all, one)  m = Neg(r)  t = Concat<axis = 1>(m, l) "
        "y = Mul(t, c)  z = Tanh(y)",
    ((9, 8), (8,)), f"{_ENDS}, int64[1] one = {{1}}",
)  # fmt: skip
_PADDED = Case(
    "float[N, 3, 4, 5] x", "float[N, 4, 7, 6] y",
    "p = Pad(x, pads, fill)  t = Transpose<perm = [0, 2, 3, 1]>(p)  u = Transpose<perm = [0, 3, 1, 2]>(t) "
        "s = Exp(u)  y = Add(s, fill)",
    ((2, 3, 4, 5),), "int64[8] pads = {0, 0, 2, 1, 0, 1, 1, 0}, float fill = {0.5}",
)  # fmt: skip
_LONG = Case(
    "float[N, 600] a, float[N, 200] b", "float[N, 800] y",
    "r = Concat<axis = 1>(a, b)  m = Mod<fmod = 1>(r, three)  y = Exp(m)",
    ((3, 600), (3, 200)), "float three = {3.5}",
)  # fmt: skip
_TRANSPOSED = Case(
    "float[N, 3, T, 8] x, float[8] b", "float[N, T, 3, 8] y",
    "t = Transpose<perm = [0, 2, 1, 3]>(x)  a = Add(t, b)  y = Sigmoid(a)",
    ((2, 3, 5, 8), (8,)),
)  # fmt: skip
_GATHERED = Case(
    "float16[R, 16] t, int64[N, 5] i, int32[N] j, float16[N, 16] z", "float16[N, 7, 16] y",
    "u = Unsqueeze(z, one)  g = Gather(t, i)  h = Gather(t, j)  v = Unsqueeze(h, one)  y = Concat<axis = 1>(u, g, v)",
    ((128, 16), (3, 5), (3,), (3, 16)), "int64[1] one = {1}",
)  # fmt: skip
_COMPUTED = Case(
    "float16[R, 64] t, int64[N, 5] i, int64[5] first, float16[N, 1, 64] z", "float16[N, 6, 64] y",
    "a = Add(i, first)  l = Less(a, none)  f = Where(l, first, a)  g = Gather(t, f)  y = Concat<axis = 1>(z, g)",
    ((256, 64), (33, 5), (5,), (33, 1, 64)), "int64 none = {-256}",
)  # fmt: skip
_ODD_ROWS = Case(
    "float16[R, 13] t, int64[N, 5] i, float16[5, 13] z", "float16[N, 5, 13] y",
    "g = Gather(t, i)  y = Add(g, z)", ((128, 13), (3, 5), (5, 13)),
)  # fmt: skip
_TRIANGLE = Case(
    "float16[N, 81] t, float16[N, 8] z", "float16[N, 24] y",
    "g = Gather<axis = 1>(t, c)  j = Concat<axis = 1>(z, g)  y = Pad(j, w)",
    ((70, 81), (70, 8)), "int64[10] c = {9, 18, 19, 27, 28, 29, -45, 37, 38, 39}, int64[4] w = {0, 0, 0, 6}",
)  # fmt: skip
TABLE = table(
    "pointwise",
    {
        "pointwise": (_POINTWISE, _POINTWISE.at((1, 6, 1), (6, 1), (1,), (1, 6, 1))),
        "half": (_HALF,),
        "rotary": (_ROTARY,),
        "padded": (_PADDED,),
        "long": (_LONG,),
        "transposed": (_TRANSPOSED,),
        "gathered": (_GATHERED, _GATHERED.at((200, 16), (1, 5), (1,), (1, 16))),
        "gathered at computed indices": (_COMPUTED,),
        "gathered odd rows": (_ODD_ROWS,),
        "triangle": (_TRIANGLE,),
    },
)
