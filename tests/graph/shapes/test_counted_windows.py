"""Numbers of windows that are 1 or more where other windows fit."""

from __future__ import annotations

import pytest
import sympy

from onnxopt.graph.shapes.counted_windows import fits
from onnxopt.graph.shapes.dims import not_negative, parse_dim

H, W = parse_dim("height"), parse_dim("width")


def _floor(numerator: object, denominator: int) -> sympy.Expr:
    return sympy.floor(sympy.sympify(numerator) / denominator)


@pytest.mark.parametrize(
    ("dim", "sizes", "fit"),
    [
        (_floor(H + 12, 16), [_floor(H, 4)], True),  # from 4 on
        (_floor(H + 11, 16), [_floor(H, 4)], False),  # from 5 on
        (_floor(H + 12, 16), [_floor(W, 4)], False),  # of another symbol
        (_floor(H + 12, 16), [_floor(H, 5) - 1, 7, W], True),
        (_floor(H, 10) - 1, [_floor(H, 5) - 1], False),  # from 20 on, and 10
        (_floor(H, 10) - 1, [_floor(H, 20)], True),
        (_floor(H + 3, 4), [], True),
        (_floor(H + 2, 4), [], False),
        (_floor(H * W, 4), [H * W], False),
        (_floor(-H, 4) + 9, [], False),
    ],
)
def test_where_other_windows_fit(dim: sympy.Expr, sizes: list, fit: bool) -> None:
    assert fits(dim, sizes) is fit
    if fit:  # at every height at which the others are 1 or more
        for height in range(1, 50):
            at = {H: height, W: 3}
            if all(sympy.sympify(size).subs(at) >= 1 for size in sizes):
                assert dim.subs(at) >= 1


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (H - sympy.Min(2, H), True),
        (H + 3 - sympy.Min(2, H), True),
        (2 * H - sympy.Min(2, H) - sympy.Min(W, H), True),
        (H - sympy.Min(2, W), False),
        (H - sympy.Max(2, H), False),
        (H - 2 * sympy.Min(2, H), False),
    ],
)
def test_what_is_left_of_a_minimum(value: sympy.Expr, known: bool) -> None:
    assert not_negative(value) is known
    if known:
        assert all(value.subs({H: h, W: w}) >= 0 for h in range(1, 6) for w in range(1, 6))
