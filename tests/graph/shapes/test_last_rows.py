"""The last n rows of a table, or all where it has fewer: exporters of ALiBi cut its biases so."""

from __future__ import annotations

import pytest
import sympy

from onnxopt.graph.shapes.dims import broadcast_dim, parse_dim, slice_length

END = 2**63 - 1
N = parse_dim("n")


@pytest.mark.parametrize(
    ("dim", "start", "expected"),
    [
        (256, sympy.Max(0, 256 - N), sympy.Min(256, N)),
        (256, sympy.Max(0, 255 - N), sympy.Min(256, N + 1)),
        (parse_dim("rows"), sympy.Max(0, parse_dim("rows") - N), sympy.Min(parse_dim("rows"), N)),
    ],
)
def test_they_are_as_many_as_are_asked_for_and_are_there(dim: object, start: sympy.Expr, expected: sympy.Expr) -> None:
    window = slice_length(dim, start, END, 1)
    assert window is not None and window[1] == expected


def test_rows_from_an_offset_are_the_number_asked_for_or_the_rest() -> None:
    """BART's positions begin at 2; tokens are added to them, so that there are as many."""
    window = slice_length(66, 2, N + 2, 1)
    assert window == (2, sympy.Min(64, N))
    assert broadcast_dim(N, window[1]) == N


@pytest.mark.parametrize(("start", "end", "step"), [
    (sympy.Max(0, 300 - N), END, 1), (sympy.Max(0, 256 - N), 200, 1), (sympy.Max(0, 256 - N), END, 2),
    (sympy.Max(8, 256 - N), END, 1),
])  # fmt: skip
@pytest.mark.parametrize("n", [1, 7, 56, 100, 256, 300, 1000])
def test_other_windows_have_the_length_that_python_gives_them(start: sympy.Expr, end: int, step: int, n: int) -> None:
    window, sizes = slice_length(256, start, end, step), {N: n}
    assert window is not None and window[1] != sympy.Min(256, N)
    assert int(sympy.sympify(window[1]).subs(sizes)) == len(range(256)[int(start.subs(sizes)) : end : step])
