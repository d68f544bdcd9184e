"""Launch shapes of rowwise kernels: whatever the length, they hold the row, and the library takes them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from cases.models import fuse, outline
from onnxopt.costs import measured, rowwise
from onnxopt.kinds.rowwise.entry_points import RowVariant
from onnxopt.kinds.rowwise.launch_shapes import RowShape, RowWork, for_length, for_strided, shared_bytes, vectors_of
from onnxopt.runtime import gpus
from tests.support.graphs import graph

_LENGTHS = (*range(2, 600), *range(600, 9000, 37), *range(9000, 600_000, 1013), 16384, 40960, 65536, 262_144, 1_048_576)
_WORKS = [
    RowWork(size, inputs, reduced, rows, flat, same)
    for size in (1, 2, 4, 8)
    for inputs, reduced, rows, flat, same in ((1, 1, None, 1, 0), (4, 2, 300, 2, 2), (3, 1, 64, 1, 2), (2, 2, 64, 1, 0))
]
_GOLDEN = Path(__file__).with_name("golden") / "row_shapes.txt"
_GOLDEN_LENGTHS = (2, 3, 7, 33, 64, 77, 100, 197, 300, 511, 768, 1000, 1024, 4096, 5120, 11008, 16384, 30522, 40960)
_GOLDEN_LONG = (131_072, 200_000, 262_144, 1_048_576, 4_194_304)


def _line(shape: RowShape | None) -> str:
    if shape is None:
        return "none"
    numbers = (shape.vector, shape.unroll, shape.lanes, shape.threads, shape.cluster, shape.resident, shape.depth)
    return f"{shape.layout} {' '.join(map(str, numbers))} {'keeps' if shape.keeps else ''}".rstrip()


def chosen() -> Iterator[str]:
    """A line for each sample of a row and of a kernel's work, with the shapes that are chosen for it."""
    for work, length in itertools.product(_WORKS, _GOLDEN_LENGTHS + _GOLDEN_LONG):
        case = (length, work.size, work.inputs, work.reduced, work.rows, work.flat, work.same)
        yield f"length {' '.join(map(str, case))}: {_line(for_length(length, 16 // work.size, work))}"
    for case in itertools.product((33, 256, 2000, None), (1, 2, 4, 8), (1, 3), (None, 924)):
        length, size, values, rows = case
        shapes = for_strided({length: RowWork(size, rows=rows)}, 16 // size, values)
        yield f"strided {' '.join(map(str, case))}: {'; '.join(map(_line, shapes))}"


def test_choices_are_those_made_before_the_numbers_became_data() -> None:
    """golden/row_shapes.txt was written while the numbers were still constants of launch_shapes.py.

    A new measurement changes it: `python -m tests.kinds.rowwise.test_launch_shapes` prints today's choices.
    """
    assert list(chosen()) == _GOLDEN.read_text().splitlines()


def _values() -> dict:
    return {key: copy.deepcopy(row.value) for key, row in measured.family("rowwise").rows.items()}


def test_the_measured_gpu_is_the_catalogues() -> None:
    (name,) = {m["gpu"] for m in measured.family("rowwise").measurements.values()}
    gpu = gpus.find_gpu(name)
    assert gpu is not None and rowwise.numbers().multiprocessors == gpu.sms


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"threads": 0}, "threads: 0 is not a number above 0"),
        ({"threads": "128"}, "threads: '128' is not of type int"),
        ({"threads": True}, "threads: True is not of type int"),
        ({"threads": 128.5}, "threads: 128.5 is not of type int"),
        ({"most_helt": 32}, "most_helt"),
        ({"reserved_shared_bytes": 233472}, "reserved_shared_bytes"),
        ({"short_odd_row": 512}, "short_odd_row"),
        ({"wide_clusters": [[1, 40, 2]]}, "wide_clusters.*not pairs"),
        ({"wide_clusters": [[1, 40], [1, 40]]}, "wide_clusters.*do not grow from 1"),
        ({"narrow_clusters": [[2, 40]]}, "narrow_clusters.*do not grow from 1"),
        ({"narrow_clusters": []}, "narrow_clusters.*do not grow from 1"),
    ],
)
def test_a_wrong_number_is_named(change: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"rowwise.json.*{reason}"):
        rowwise.parse(_values() | change)


def test_a_missing_number_is_named() -> None:
    values = _values()
    del values["max_held"]
    with pytest.raises(ValueError, match=r"rowwise.json.*max_held"):
        rowwise.parse(values)


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


@pytest.mark.parametrize("rows", [None, 1, 924, 32768])
@pytest.mark.parametrize(("length", "widest"), list(itertools.product((2, 5, 33, 100, 256, 2000, None), (2, 4, 8))))
def test_strided_shapes_end_with_one_for_any_length(length: int | None, widest: int, rows: int | None) -> None:
    *held, last = for_strided({length: RowWork(16 // widest, rows=rows)}, widest, 2)
    assert (last.vector, last.unroll) == (1, 0)
    for shape in (*held, last):
        assert shape.unroll == 0 or (length is not None and shape.lanes * shape.unroll >= length)
        assert shape.threads * shape.vector * 8 * 2 <= 48 << 10
        assert shape.threads % shape.lanes == 0 and shape.threads // shape.lanes in (1, 2, 4, 8, 16, 32)


def test_few_rows_that_lie_apart_take_narrow_tiles() -> None:
    few, many = (for_strided({100: RowWork(4, rows=n)}, 4, 2)[1] for n in (924, 100_000))
    assert (few.threads // few.lanes, many.threads // many.lanes) == (8, 32)


@pytest.mark.parametrize(
    ("length", "widest", "rows", "shape"),
    [
        (64, 4, 100_000, (4, 1, 16, 256)),
        (64, 8, 100_000, (8, 1, 8, 256)),
        (77, 8, 32_768, (1, 5, 16, 256)),
        (196, 8, 15_360, (4, 4, 16, 128)),
        (197, 8, 37_824, (1, 13, 16, 128)),
        (768, 8, 784, (8, 3, 32, 128)),
        (1024, 8, 8192, (8, 2, 64, 128)),
        (4096, 4, 4096, (4, 4, 256, 256)),
        (4096, 8, 4096, (8, 4, 128, 128)),
    ],
)
def test_shapes_that_were_measured(length: int, widest: int, rows: int, shape: tuple[int, int, int, int]) -> None:
    """benchmarks/notes: rows: rows on one H200."""
    found = for_length(length, widest, RowWork(16 // widest, rows=rows))
    assert found is not None and found.layout == "held"
    assert (found.vector, found.unroll, found.lanes, found.threads) == shape


@pytest.mark.parametrize(
    ("length", "work", "layout", "cluster", "resident"),
    [
        (16384, RowWork(2, 3, 1, 1024, 1, 2), "piped", 1, 2),  # LayerNorm: its blocks keep scale and bias
        (16384, RowWork(4, 3, 1, 1024, 1, 2), "piped", 1, 1),
        (16384, RowWork(2, 4, 2, 1024, 2, 2), "held", 1, 0),  # and a residual
        (16384, RowWork(2, 1, 1, 1024, 1, 0), "held", 1, 0),  # softmax
        (40960, RowWork(2, 5, 1, 1024, 1, 0), "held", 1, 0),  # GroupNorm: nothing is the same for every row
        (40960, RowWork(4, 5, 1, 1024, 1, 0), "piped", 2, 1),
        (262_144, RowWork(2, 3, 1, 64, 1, 2), "piped", 16, 2),
        (262_144, RowWork(4, 3, 1, 64, 1, 2), "piped", 16, 1),
        (1_048_576, RowWork(2, 1, 1, 4, 1, 0), "ring", 16, 1),
    ],
)
def test_long_rows_as_measured(length: int, work: RowWork, layout: str, cluster: int, resident: int) -> None:
    """benchmarks/notes: rows: long rows on one H200, and everything merged."""
    shape = for_length(length, 16 // work.size, work)
    assert shape is not None and (shape.layout, shape.cluster, shape.resident) == (layout, cluster, resident)


def test_rows_kept_in_shared_memory_are_held_where_it_is_small() -> None:
    """The host takes the first entry point that fits: a GPU of 64 KB a block takes the second."""
    model = graph("float16[64, 16384] x, float16[16384] g, float16[16384] b", "float16[64, 16384] y",
                  "y = LayerNormalization<axis = -1>(x, g, b)")  # fmt: skip
    (kernel,) = outline(model, fuse(model))
    first, second, *_ = cast(tuple[RowVariant, ...], kernel.variants)
    assert (first.layout, second.layout) == ("piped", "held")
    assert first.shared > 64 << 10 and second.shared == 0
    assert first.columns == second.columns == 16384


if __name__ == "__main__":
    print("\n".join(chosen()))
