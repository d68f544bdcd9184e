"""Launch shapes of rowwise kernels: whatever the length, they hold the row, and the library takes them."""

from __future__ import annotations

import itertools

import pytest

from onnxopt.row_shapes import RowShape, RowWork, for_length, for_strided, shared_bytes, vectors_of

_LENGTHS = (*range(2, 600), *range(600, 9000, 37), *range(9000, 600_000, 1013), 16384, 40960, 65536, 262_144, 1_048_576)
_WORKS = [
    RowWork(size, inputs, reduced, rows, flat)
    for size in (1, 2, 4, 8)
    for inputs, reduced, rows, flat in ((1, 1, None, 1), (4, 2, 300, 2), (3, 1, 64, 1), (2, 2, 64, 1))
]


def _holds(shape: RowShape, length: int) -> bool:
    return shape.lanes * shape.unroll >= vectors_of(shape.layout, length, shape.vector)


@pytest.mark.parametrize("work", _WORKS, ids=str)
def test_every_length_has_a_shape_that_fits(work: RowWork) -> None:
    widest = 16 // work.size
    for length in _LENGTHS:
        shape = for_length(length, widest, work)
        if shape is None:
            assert length > 512  # short rows always fit
            continue
        assert _holds(shape, length), (length, shape)
        assert 1 <= shape.unroll <= 32 and shape.threads <= 1024 and shape.threads * shape.cluster % shape.lanes == 0
        assert shape.layout == "ragged" or length % shape.vector == 0
        assert shape.cluster == 1 or shape.lanes == shape.threads * shape.cluster
        stays = shape.layout in ("piped", "ring")
        assert not stays or (shape.resident and shape.lanes == shape.threads * shape.cluster)
        row = shape.unroll * shape.vector * shape.threads * work.size
        assert shape.layout != "ring" or row * shape.depth * work.flat <= shared_bytes(shape.resident)


@pytest.mark.parametrize(("length", "widest"), list(itertools.product((2, 5, 33, 100, 256, 2000, None), (2, 4, 8))))
def test_strided_shapes_end_with_one_for_any_length(length: int | None, widest: int) -> None:
    *held, last = for_strided(length, widest, 2)
    assert (last.vector, last.unroll) == (1, 0)
    for shape in held:
        assert shape.unroll == 0 or (length is not None and shape.threads // 32 * shape.unroll >= length)
        assert shape.threads * shape.vector * 8 * 2 <= 48 << 10
