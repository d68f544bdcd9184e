"""Rows of several tables as those of one: what is merged, what stays, and that every index means what it meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.tables import PointsOfTranspose
from tests.support.graphs import graph, hold, run
from tests.support.refused import reason

ROWS = {"t0": (5, 4), "t1": (3, 4), "t2": (7, 4), "t3": (2, 4), "wide": (6, 8)}
CONSTANTS = (
    "int64 k0 = {0}, int64 k1 = {1}, int64 k2 = {2}, int64 kl = {-1}, int64[1] one = {1}, int64[1] two = {2}, "
    "int64[1] zero = {0}, int64[1] last = {-1}, int64[1] three = {3}, int64[2] flat = {0, 4}"
)
COLUMNS = "i0 = Gather<axis = 1>(i, k0) i1 = Gather<axis = 1>(i, k1) i2 = Gather<axis = 1>(i, k2) "
LOOKED_UP = "a = Gather(t0, i0) b = Gather(t1, i1) c = Gather(t2, i2) "
ADDED = "u = Unsqueeze(a, one) v = Unsqueeze(b, one) w = Unsqueeze(c, one) "
STACKED = COLUMNS + LOOKED_UP + ADDED
ONE_BY_ONE = "int64[N, 1] i0, int64[N, 1] i1, int64[N, 1] i2"


def model(body: str, inputs: str = "int64[N, 3] i", outputs: str = "float[] y") -> ir.Model:
    tables = ", ".join(f"float[{rows}, {width}] {name}" for name, (rows, width) in ROWS.items())
    source = graph(f"{inputs}, {tables}", outputs, body, constants=CONSTANTS)
    rng = np.random.default_rng(0)
    hold(source, {name: rng.standard_normal(dims) for name, dims in ROWS.items()}, np.float32)
    return source


def merged(source: ir.Model, folder: Path, gpu: bool = True) -> tuple[ir.Model, int]:
    found = source.clone()
    return found, rewrite(found, folder, gpu=gpu).applied["tables"]


def drawn(source: ir.Model, count: int = 3) -> dict[str, np.ndarray]:
    """Indices from both ends that all tables but the smallest have, and floats."""
    rng, feeds = np.random.default_rng(1), {}
    for value in source.graph.inputs:
        shape = [dim if isinstance(dim, int) else count for dim in value.shape or ()]
        is_index = value.dtype in (ir.DataType.INT64, ir.DataType.INT32)
        array = rng.integers(-3, 3, shape) if is_index else rng.standard_normal(shape)
        assert value.dtype is not None
        feeds[str(value.name)] = array.astype(value.dtype.numpy())
    return feeds


def same(source: ir.Model, found: ir.Model) -> None:
    for count in (1, 5, 0):
        feeds = drawn(source, count)
        for expected, result in zip(run(source, feeds), run(found, feeds), strict=True):
            np.testing.assert_array_equal(result, expected)


def gathers(found: ir.Model) -> int:
    return sum(node.op_type == "Gather" for node in found.graph)


@pytest.mark.parametrize(
    ("body", "inputs", "left"),
    [
        (STACKED + "y = Concat<axis = 1>(u, v, w)", "int64[N, 3] i", 1),
        (STACKED + "y = Concat<axis = -2>(u, v, w)", "int32[N, 3] i", 1),
        (STACKED + "e = Unsqueeze(x, one) y = Concat<axis = 1>(e, u, v, w)", "int64[N, 3] i, float[N, 4] x", 1),
        (STACKED + "y = Concat<axis = 1>(w, v, u)", "int64[N, 3] i", 2),  # and the columns in another order
        (STACKED + "y = Concat<axis = 1>(u, v, w)", "int64[N, 4] i", 1),  # of which a Slice has the columns
        (COLUMNS + LOOKED_UP + "y = Concat<axis = 1>(a, b, c)", "int64[N, 3] i", 1),
        (STACKED.replace("t2", "t0") + "y = Concat<axis = 1>(u, v, w)", "int64[N, 3] i", 1),  # one table twice
        (STACKED.replace("t1", "t0").replace("t2", "t0") + "y = Concat<axis = 1>(u, v, w)", "int64[N, 3] i", 1),
        (LOOKED_UP + "y = Concat<axis = 1>(a, b, c)", ONE_BY_ONE, 1),
        (LOOKED_UP + "d = Flatten(a) e = Squeeze(b, one) f = Reshape(c, flat) y = Concat<axis = 1>(d, e, f)",
         ONE_BY_ONE, 1),
        ("i0, i1, i2 = Split<axis = 1, num_outputs = 3>(i) " + LOOKED_UP + "y = Concat<axis = 1>(a, b, c)",
         "int64[N, 3] i", 1),
        ("i0 = Slice(i, zero, one, one) i1 = Slice(i, one, two, one) i2 = Slice(i, two, three, last) " + LOOKED_UP
         + "y = Concat<axis = 1>(a, b, c)", "int64[N, 3] i", 1),
        (LOOKED_UP + "y = Concat<axis = -1>(a, b, c)", "int64[N, L] i0, int64[N, L] i1, int64[N, L] i2", 1),
        (STACKED + "d = Concat<axis = 1>(a, b, c) e = Concat<axis = 1>(u, v, w) f = Flatten(e) y = Sub(d, f)",
         "int64[N, 3] i", 1),  # the same rows twice
        (LOOKED_UP + "d = Concat<axis = 1>(a, b, c, x) y = Relu(d)", "int64[N] i0, int64[N] i1, int64[N] i2, "
         "float[N, 4] x", 1),
    ],
)  # fmt: skip
def test_rows_of_one_table(body: str, inputs: str, left: int, tmp_path: Path) -> None:
    source = model(body, inputs)
    found, count = merged(source, tmp_path)
    assert count == 1 and gathers(found) == left
    held = [v.const_value for v in found.graph.initializers.values() if len(v.shape or ()) == 2]
    tables = {name for name in ROWS if any(v.name == name and v.uses() for v in source.graph.initializers.values())}
    assert [t.shape.numpy() for t in held if t is not None] == [(sum(ROWS[name][0] for name in tables), 4)]
    same(source, found)


@pytest.mark.parametrize("index", [-4, 3, 4, -6, 7, 2**40, -(2**40)])
def test_an_index_outside_of_its_table_is_an_error_still(index: int, tmp_path: Path) -> None:
    """As zeros are, where ONNX Runtime's CUDA kernel writes them: the index is outside of the joined table too."""
    source = model(STACKED + "y = Concat<axis = 1>(u, v, w)")
    found, _ = merged(source, tmp_path)
    for one in (source, found):
        with pytest.raises(Exception, match="indices element out of data bounds"):
            run(one, {"i": np.array([[0, index, 0]])})


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        (STACKED + "y = Concat<axis = 1>(u, v)", "float[] y"),  # two tables
        (STACKED.replace("c = Gather(t2, i2)", "c = Gather(wide, i2)") + "p = Concat<axis = 1>(u, v) "
         "y = Concat<axis = 1>(a, c)", "float[] y, float[] p"),
        (STACKED + "y = Concat<axis = 1>(u, v, w) z = Gather(t1, i0)", "float[] y, float[] z"),
        (STACKED + "y = Concat<axis = 1>(u, v, w) z = Relu(b)", "float[] y, float[] z"),
        (STACKED + "y = Concat<axis = 0>(u, v, w)", "float[] y"),
        (STACKED + "y = Concat<axis = 1>(u, v, w) z = Concat<axis = 1>(a, b)", "float[] y, float[] z"),
        (STACKED.replace("Gather(t2, i2)", "Gather<axis = 1>(t2, k1)") + "y = Concat<axis = 1>(u, v)", "float[] y"),
    ],
)  # fmt: skip
def test_what_stays(body: str, outputs: str, tmp_path: Path) -> None:
    source = model(body, outputs=outputs)
    assert merged(source, tmp_path)[1] == 0


def test_no_arithmetic_on_indices_without_kernels_for_gpus(tmp_path: Path) -> None:
    assert merged(model(STACKED + "y = Concat<axis = 1>(u, v, w)"), tmp_path, gpu=False)[1] == 0


def _points(array: list[list[int]], perm: list[int], dims: str, behind: str = "") -> ir.Model:
    numbers = ", ".join(str(n) for row in array for n in row)
    constants = f"int64[{len(array)}, {len(array[0])}] p = {{{numbers}}}"
    body = f"t = Transpose<perm = {perm}>(x) y = GatherND(t, p) {behind}"
    return graph(f"float[{dims}] x", "float[] y" + (", float[] z" if behind else ""), body, constants=constants)


@pytest.mark.parametrize(
    ("array", "perm", "dims"),
    [
        ([[1, 0], [2, 0], [2, 1], [-1, -2]], [1, 2, 0], "N, 3, 4"),
        ([[1, 0], [2, 1]], [0, 1, 2], "3, 4, 5"),
        ([[1, 0], [0, 3]], [1, 2, 0, 3], "N, 3, 4, 2"),
        ([[1, 0, 1], [2, 3, -1]], [1, 2, 3, 0], "N, 3, 4, 2"),
    ],
)
def test_points_are_one_gather(array: list[list[int]], perm: list[int], dims: str, tmp_path: Path) -> None:
    source = _points(array, perm, dims)
    found, _ = merged(source, tmp_path)
    assert "GatherND" not in {node.op_type for node in found.graph}
    for count in (1, 3):
        x = (
            np.random.default_rng(2)
            .standard_normal([count if d == "N" else int(d) for d in dims.split(", ")])
            .astype(np.float32)
        )
        np.testing.assert_array_equal(run(found, {"x": x})[0], run(source, {"x": x})[0])


def test_the_transposes_around_points_cancel(tmp_path: Path) -> None:
    source = graph(
        "float[N, 3, 3] x", "float[] y", "t = Transpose<perm = [1, 2, 0]>(x) g = GatherND(t, p) "
        "y = Transpose<perm = [1, 0]>(g)", constants="int64[3, 2] p = {1, 0, 2, 0, 2, 1}"
    )  # fmt: skip
    found, count = merged(source, tmp_path)
    assert count == 1 and [node.op_type for node in found.graph] == ["Reshape", "Gather"]
    x = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    np.testing.assert_array_equal(run(found, {"x": x})[0], x[:, [1, 2, 2], [0, 0, 1]])


@pytest.mark.parametrize(
    ("array", "perm", "dims", "behind", "says"),
    [
        ([[1, 3]], [1, 2, 0], "N, 3, 3", "", "a point is outside"),
        ([[1, 2]], [2, 1, 0], "N, 3, 3", "", "not neighbours"),
        ([[1, 2]], [1, 2, 0], "3, 3, N", "", "are not known"),
        ([[1]], [1, 2, 0], "N, 3, 3", "", "points have one dim"),
        ([[1, 2]], [1, 2, 0], "N, 3, 3", "z = Relu(t)", "other uses"),
    ],
)
def test_points_that_stay(array: list[list[int]], perm: list[int], dims: str, behind: str, says: str) -> None:
    source = _points(array, perm, dims, behind)
    assert says in reason(source, "y", PointsOfTranspose.rule())
