"""Running totals."""

from __future__ import annotations

from cases.text import Case, table

_SCAN = Case(
    "float[N, T, 3] x, float[3] g", "float[N, T, 3] y",
    "z = Mul(x, g)  s = CumSum<exclusive = 1, reverse = 1>(z, axis)  y = Add(s, g)",
    ((2, 50, 3), (3,)), "int64 axis = {1}",
)  # fmt: skip
TABLE = table(
    "scan",
    {
        "scan": (_SCAN,),
    },
)
