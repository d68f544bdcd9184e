"""Reductions along rows: softmax, norms, statistics along an inner axis, and a rotary embedding after a norm."""

from __future__ import annotations

from cases.text import Case, table

_ENDS = "int64[1] zero = {0}, int64[1] half = {4}, int64[1] all = {8}, int64[1] last = {-1}"
_HEADS = "int64[4] heads = {0, 0, 2, 8}"
_SOFTMAX = Case(
    "float[N, M] x, float[M] b", "float[N, M] y",
    "a = Add(x, b)  y = Softmax(a)",
    ((5, 33), (33,)),
)  # fmt: skip
_NORM = Case(
    "float16[N, T, 32] x, float16[N, T, 32] r, float16[32] g, float16[32] b", "float16[N, T, 32] y",
    "a = Add(x, r)  y = LayerNormalization(a, g, b)",
    ((2, 3, 32), (2, 3, 32), (32,), (32,)),
)  # fmt: skip
_GROUPS = Case(
    "float[2, 6, 5, 4] x, float[6] g, float[6] b", "float[2, 6, 5, 4] y",
    "n = GroupNormalization<num_groups = 3>(x, g, b)  s = Sigmoid(n)  y = Mul(n, s)",
    ((2, 6, 5, 4), (6,), (6,)),
)  # fmt: skip
_STRIDED = Case(
    "float[N, C, W] x", "float[N, 1, W] m, float[N, C, W] y",
    "m = ReduceMax(x, axis)  y = Sub(x, m)",
    ((2, 37, 6),), "int64[1] axis = {1}",
)  # fmt: skip
_JOINED = Case(
    "float[N, T, 16] x, float[8] g, float[N, 1, T, 8] c", "float[N, 2, T, 8] y",
    "v = Reshape(x, heads) n = RMSNormalization(v, g) t = Transpose<perm = [0, 2, 1, 3]>(n) "
        "ac = Mul(t, c) h = Slice(t, zero, half, last) k = Slice(t, half, all, last) nk = Neg(k) "
        "r = Concat<axis = -1>(nk, h) y = Add(ac, r)",
    ((2, 3, 16), (8,), (2, 1, 3, 8)), f"{_ENDS}, {_HEADS}", 23,
)  # fmt: skip
TABLE = table(
    "rowwise",
    {
        "softmax": (_SOFTMAX, _SOFTMAX.at((1, 3000), (3000,))),
        "norm": (_NORM,),
        "groups": (_GROUPS,),
        "strided": (_STRIDED, _STRIDED.at((1, 2500, 12)), _STRIDED.at((2, 2100, 7))),
        "joined": (_JOINED,),
    },
)
