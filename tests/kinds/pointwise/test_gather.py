"""Gathers at indices that are computed, or not evenly spaced, as part of pointwise kernels.

The library chooses entry points and fills their parameters, g++ compiles the kernels and the CPU runs them. What they
give is compared with ONNX Runtime's CPU provider, bit by bit where nothing is computed; where indices lie outside of
the dim it refuses, and numpy says what ONNX Runtime's CUDA kernel gives: zeros.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.reference
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import kernels_json
from onnxopt.fusion.region import Kernel
from onnxopt.program.extents import Extent
from onnxopt.program.indexing import Lookup, Term
from onnxopt.program.pointwise import Program
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.emulation import emulated_library
from tests.support.graphs import graph, run

pytestmark = pytest.mark.usefixtures("library")

_DTYPES = {
    ir.DataType.FLOAT: np.float32, ir.DataType.FLOAT16: np.float16, ir.DataType.BFLOAT16: ml_dtypes.bfloat16,
    ir.DataType.INT32: np.int32, ir.DataType.INT64: np.int64, ir.DataType.INT8: np.int8, ir.DataType.BOOL: np.bool_,
}  # fmt: skip
_SUM = "a = Gather(t, i)  b = Gather(u, j)  y = Add(a, b)"
# name: inputs, output, body, constants. Indices are inputs: i of a dim of 9, j of the rows of u, k of a dim S.
CASES = {
    "rows": ("float[9, 16] t, int64[5] i, float[5, 16] z", "float[] y", "g = Gather(t, i)  y = Add(g, z)", ""),
    "rows of 16 bits": (
        "float16[9, 64] t, int64[3, 7] i, float16[3, 1, 64] z", "float16[] y",
        "g = Gather(t, i)  y = Concat<axis=1>(z, g)", "",
    ),
    "rows of bfloat16": (
        "bfloat16[9, 24] t, int32[3, 7] i, bfloat16[24] z", "bfloat16[] y", "g = Gather(t, i)  y = Mul(g, z)", "",
    ),
    "odd rows": (
        "float16[9, 13] t, int32[3, 7] i, float16[13] z", "float16[] y", "g = Gather(t, i)  y = Mul(g, z)", "",
    ),
    "scalar index": ("float[9, 16] t, int64 i, float[16] z", "float[] y", "g = Gather(t, i)  y = Add(g, z)", ""),
    "scalar index of a vector": ("float[9] t, int64 i, float[4] z", "float[] y", "g = Gather(t, i)  y = Add(g, z)", ""),
    "elements of a vector": ("float16[9] t, int64[3, 21] i", "float16[] y", "g = Gather(t, i)  y = Neg(g)", ""),
    "axis between": (
        "float[3, 9, 8] t, int32[5] i, float[3, 5, 8] z", "float[] y", "g = Gather<axis=1>(t, i)  y = Sub(g, z)", "",
    ),
    "axis between, indices of two dims": (
        "float16[3, 9, 2, 8] t, int64[5, 4] i, float16[2, 8] z", "float16[] y",
        "g = Gather<axis=1>(t, i)  y = Sub(g, z)", "",
    ),
    "last axis": (
        "float[7, 9] t, int64[21] i, float[7, 1] z", "float[] y", "g = Gather<axis=-1>(t, i)  y = Sub(g, z)", "",
    ),
    "last axis, indices of two dims": (
        "float16[7, 9] t, int64[3, 8] i, float16[7, 1, 1] z", "float16[] y",
        "g = Gather<axis=-1>(t, i)  y = Sub(g, z)", "",
    ),
    "triangle": (
        "float16[5, 9, 9] t, float16[5, 8] z", "float16[] y",
        "r = Reshape(t, s)  g = Gather<axis=1>(r, c)  j = Concat<axis=1>(z, g)  y = Pad(j, w)",
        "int64[2] s = {5, 81}, int64[10] c = {9, 18, 19, 27, 28, 29, -45, 37, 38, 39}, int64[4] w = {0, 0, 0, 6}",
    ),
    "tables and the map before them": (
        "float16[9, 64] t, int64[11, 26] i, float16[11, 64] z", "float16[] y",
        "u = Unsqueeze(z, one)  g = Gather(t, i)  y = Concat<axis=1>(u, g)", "int64[1] one = {1}",
    ),
    "columns of ids": (
        "float[9, 8] t, float[9, 4] u, int64[6, 3] i", "float[] y",
        "a = Slice(i, zero, one, one)  b = Slice(i, one, two, one)  c = Squeeze(a, one)  d = Squeeze(b, one)  "
        "g = Gather(t, c)  h = Gather(u, d)  y = Concat<axis=1>(g, h)",
        "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}",
    ),
    "words and positions": ("float16[9, 32] t, float16[5, 32] u, int64[2, 6] i, int32[6] j", "float16[] y", _SUM, ""),
    "one index in two tables": (
        "float[9, 32] t, float[9, 32] u, int64[2, 6] i", "float[] y",
        "a = Gather(t, i)  b = Gather(u, i)  y = Add(a, b)", "",
    ),
    "scaled and converted": (
        "float[9, 24] t, int64[2, 6] i", "float16[] y",
        "g = Gather(t, i)  s = Mul(g, two)  y = Cast<to=10>(s)", "float two = {2.0}",
    ),
    "where an id is zero": (
        "float[9, 8] t, int64[14] i", "float[] y",
        "g = Gather(t, i)  p = Unsqueeze(i, one)  e = Equal(p, zero)  y = Where(e, none, g)",
        "int64[1] one = {1}, int64 zero = {0}, float none = {-1.0}",
    ),
    "turned": ("float[9, 20] t, int64[70] i", "float[] y", "g = Gather(t, i)  r = Transpose(g)  y = Neg(r)", ""),
    "beside a tile": (
        "float[9, 68] t, int64[136] i, float[68, 136] z", "float[] y",
        "g = Gather(t, i)  r = Transpose(z)  y = Add(g, r)", "",
    ),
    "part of the rows": (
        "float[9, 20] t, int64[7] i", "float[] y", "g = Gather(t, i)  s = Slice(g, four, big, one)  y = Neg(s)",
        "int64[1] four = {4}, int64[1] one = {1}, int64[1] big = {9223372036854775807}",
    ),
    "computed indices": (
        "float16[9, 16] t, int64[5, 3] i, float16[5, 1, 16] z", "float16[] y",
        "n = Neg(i)  f = Min(i, n)  g = Gather(t, f)  y = Concat<axis=1>(z, g)", "",
    ),
    "converted indices, and rows of a second table by both": (
        "float[9, 6] t, float[9, 6] u, int64[14] i, int32[14] j", "float[] y",
        "a = Cast<to=6>(i)  d = Max(a, j)  g = Gather(t, d)  h = Gather(u, a)  y = Add(g, h)", "",
    ),
    "an index for each element": (
        "float16[4, 9] t, int64[40] i, int64 k", "float16[] y",
        "m = Min(i, k)  g = Gather<axis=1>(t, m)  y = Neg(g)", "",
    ),
    "integers": ("int64[9, 6] t, int32[5] i", "int64[] y", "g = Gather(t, i)  y = Neg(g)", ""),
    "bytes": ("int8[9, 48] t, int32[5] i, int8[2, 48] z", "int8[] y", "g = Gather(t, i)  y = Concat<axis=0>(z, g)", ""),
    "truth values": ("bool[9, 48] t, int32[5] i", "bool[] y", "g = Gather(t, i)  y = Not(g)", ""),
    "symbolic": (
        "float16[9, 32] t, float16[S, 32] u, int64[N, S] i, int64[S] j", "float16[N, S, 32] y", _SUM, "",
    ),
    "symbolic dim": (
        "float[N, S, 8] t, int64[5] k, float[N, 2, 8] z", "float[N, 7, 8] y",
        "g = Gather<axis=1>(t, k)  y = Concat<axis=1>(g, z)", "",
    ),
}  # fmt: skip
_SIZES = ((2, 5), (1, 1), (3, 7), (1, 16), (0, 5))
_OUTSIDE = (  # cases whose indexed dims alone have 9 elements
    "rows", "odd rows", "scalar index", "scalar index of a vector", "elements of a vector", "axis between",
    "axis between, indices of two dims", "last axis", "tables and the map before them", "where an id is zero", "turned",
)  # fmt: skip


def fused(inputs: str, output: str, body: str, constants: str) -> tuple[ir.Model, ir.Model, Kernel]:
    """The model, the same with one call, and the call's kernel."""
    model = graph(inputs, output, body, constants=constants)
    optimized = model.clone()
    (kernel,) = outline(optimized, fuse(optimized))
    assert [n.domain for n in optimized.graph if n.op_type not in ("Reshape", "Unsqueeze", "Squeeze")] == ["onnxopt"]
    return model, optimized, kernel


def _dims(value: ir.Value) -> list[int | str]:
    return [d if isinstance(d, int) else str(d.value) for d in value.shape or ()]


def _feeds(model: ir.Model, number: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Random operands, and indices counted from either end."""
    rng = np.random.default_rng(number)
    shapes = {v.name: [sizes[d] if isinstance(d, str) else d for d in _dims(v)] for v in model.graph.inputs}
    indexed = {"i": 9, "j": shapes.get("u", [0])[0], "k": sizes["S"]}
    feeds = {}
    for value in model.graph.inputs:
        name, shape, reach = str(value.name), shapes[value.name], 99
        dtype = _DTYPES[value.dtype or ir.DataType.UNDEFINED]
        if name in indexed or np.issubdtype(dtype, np.integer):
            reach = indexed.get(name, reach)
            feeds[name] = rng.integers(-reach, reach, shape).astype(dtype)
        else:
            noise = rng.uniform(-2, 2, shape)
            feeds[name] = (noise > 0 if dtype == np.bool_ else noise).astype(dtype)
    return feeds


def _expected(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX Runtime's results; onnx's for what its CPU provider has no kernel of."""
    if all(value.dtype not in (ir.DataType.BFLOAT16, ir.DataType.INT8) for value in model.graph.inputs):
        return run(model, feeds)
    return onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)  # type: ignore[return-value]


@pytest.mark.parametrize("name", CASES)
def test_same_numbers_as_onnx_runtime(name: str, tmp_path: Path) -> None:
    model, optimized, kernel = fused(*CASES[name])
    kernel.program.verify()
    drawn = _SIZES if "symbolic" in name else _SIZES[:1]
    feeds = [_feeds(model, k, {"N": n, "S": s}) for k, (n, s) in enumerate(drawn)]
    found, _ = emulated_library.run(tmp_path / "run", ir.serde.serialize_model(optimized), [kernel], feeds)
    for results, fed in zip(found, feeds, strict=True):
        for value, expected in zip(results.values(), _expected(model, fed), strict=True):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("name", _OUTSIDE)
def test_indices_outside_give_zeros(name: str, tmp_path: Path) -> None:
    """As if the tables had zeros for one position more, to which all such indices point."""
    inputs, output, body, constants = CASES[name]
    _, optimized, kernel = fused(inputs, output, body, constants)
    wider = graph(inputs.replace("9", "10"), output, body, constants=constants)
    feeds = _feeds(wider, 1, {"S": 5})
    rows = np.random.default_rng(2).integers(-30, 30, feeds["i"].shape).astype(feeds["i"].dtype)
    axis = _dims(optimized.graph.inputs[0]).index(9)
    zeros = np.take(feeds["t"], [9], axis) * 0
    table = np.take(feeds["t"], range(9), axis)
    extremes = np.array([9, -10, -9, 8, np.iinfo(rows.dtype).min, np.iinfo(rows.dtype).max], rows.dtype)
    rows.reshape(-1)[: len(extremes)] = extremes[: rows.size]
    found, _ = emulated_library.run(
        tmp_path / "run", ir.serde.serialize_model(optimized), [kernel], [{**feeds, "t": table, "i": rows}]
    )
    counted = np.where(rows < 0, rows + 9, rows)
    inside = (counted >= 0) & (counted < 9)
    moved = {**feeds, "t": np.concatenate([table, zeros], axis), "i": np.where(inside, counted, 9).astype(rows.dtype)}
    if name == "where an id is zero":
        moved["i"] = np.where(rows == -9, -10, moved["i"])
    np.testing.assert_array_equal(found[0]["y"], run(wider, moved)[0])


def test_a_dim_of_no_elements_gives_zeros(tmp_path: Path) -> None:
    _, optimized, kernel = fused(*CASES["symbolic dim"])
    z = np.ones((3, 2, 8), np.float32)
    fed: dict[str, np.ndarray] = {"t": np.zeros((3, 0, 8), np.float32), "k": np.arange(5), "z": z}
    (found,), _ = emulated_library.run(tmp_path / "run", ir.serde.serialize_model(optimized), [kernel], [fed])
    np.testing.assert_array_equal(found["y"], np.concatenate([np.zeros((3, 5, 8), np.float32), z], 1))


@pytest.mark.parametrize(
    ("place", "changed", "reason"),
    [
        (1, {"lookup": Lookup(9, Extent(9), Extent(64))}, "value 9 is no int32 or int64"),
        (1, {"lookup": Lookup(2, Extent(9), Extent(64))}, "value 2 is no int32 or int64"),
        (1, {"lookup": Lookup(0, Extent(9), Extent(0))}, "less than 1"),
        (1, {"terms": (Term(Extent(1), Extent(64), Extent(1)),) * 6}, "too many terms"),
        (0, {"lookup": Lookup(0, Extent(9), Extent(64))}, "depends on nothing, or on what is looked up"),
    ],
)
def test_lookups_that_break_a_rule(place: int, changed: dict[str, Any], reason: str) -> None:
    """Access 0 reads indices, and access 1 rows of 64 of a table of 9."""
    _, _, kernel = fused(*CASES["tables and the map before them"])
    assert isinstance(kernel.program, Program)
    index = kernel.program.index
    assert index is not None
    accesses = list(index.accesses)
    accesses[place] = dataclasses.replace(accesses[place], **changed)
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(kernel.program, index=dataclasses.replace(index, accesses=tuple(accesses))).verify()


def test_no_cpu_kernel_looks_up(tmp_path: Path) -> None:
    """The CPU provider runs the function's body; a kernels.json that says otherwise is refused."""
    _, optimized, kernel = fused(*CASES["rows"])
    assert not kernel.cpu
    library = artifact.copy_library(tmp_path)
    (tmp_path / "kernels.json").write_text(kernels_json.to_json([dataclasses.replace(kernel, cpu=True)], None))
    with pytest.raises(Exception, match="no CPU kernel looks indices up"):
        artifact.session(ir.to_proto(optimized), library)


def _rows_of_a_large_table(session: ort.InferenceSession) -> tuple[np.ndarray, np.ndarray]:
    """What a session gives for rows of a table of 3 * 2^30 elements, of which memory holds these rows, and the rows."""
    rows = 3 * 2**20
    table, ids = np.zeros((rows, 1024), np.int8), np.array([5, rows - 1, -2, 2**21, 2**21 - 1, rows])
    for k, row in enumerate(ids[:-1]):
        table[row] = (np.arange(1024) + k) % 100
    ones = np.ones((2, 1024), np.int8)
    (found,) = session.run(None, {"t": table, "i": ids, "z": ones})
    return found, np.concatenate([table[ids[:-1]], 0 * ones[:1], ones])


def test_a_table_of_more_than_2_to_the_31_elements(tmp_path: Path) -> None:
    """Offsets of rows have 64 bits beside indices of 32."""
    body = "g = Gather(t, i)  y = Concat<axis=0>(g, z)"
    _, optimized, kernel = fused("int8[R, 1024] t, int64[6] i, int8[2, 1024] z", "int8[8, 1024] y", body, "")
    proto = ir.to_proto(optimized)
    (found, expected), launched = emulated_library.used(tmp_path / "run", proto, [kernel], _rows_of_a_large_table)
    np.testing.assert_array_equal(found, expected)
    assert launched == {f"{kernel.name}_strided_RCVPP"}
