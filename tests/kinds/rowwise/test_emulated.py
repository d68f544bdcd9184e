"""Rowwise CUDA kernels, run on the CPU by g++ and threads (emulation/cuda.h), against ONNX Runtime.

Every way to share rows among threads, also those that no exported model happens to take on a GPU: what is tested is the
device code itself, its barriers and its tails. Rounding of 16-bit dtypes and clusters of blocks need a GPU.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.rowwise.entry_points import SPLIT
from onnxopt.kinds.rowwise.kind import ROWWISE
from tests.support import sampling
from tests.support.emulation import emulated
from tests.support.graphs import graph

# name: inputs, body, constants
BODIES = {
    "softmax": ("x, float[{row}] g", "a = Softmax<axis = {axis}>(x)  y = Mul(a, g)", ""),
    "variance": (
        "x, float[{row}] g",
        "m = ReduceMean(x, axes)  c = Sub(x, m)  q = Mul(c, c)  v = ReduceMean(q, axes)  e = Add(v, small)  s = Sqrt(e)"
        "  n = Div(c, s)  y = Mul(n, g)",
        "int64[1] axes = {{{axis}}}, float small = {{0.00001}}",
    ),
    "sum": ("x, float[{row}] g", "a = Mul(x, g)  y = ReduceSum(a, axes)", "int64[1] axes = {{{axis}}}"),
}  # fmt: skip
_PART_COLUMNS = 512  # of a row that is split
_MAIN = """
%(source)s
using namespace onnxopt;
using Index = unsigned long long;
int main() {
  const Index count = %(count)d, rows = %(rows)d, columns = %(columns)d, inner = %(inner)d;
  auto x = emulation::read<float>("x", count), g = emulation::read<float>("g", columns);
  std::vector<float> y(%(stored)d, -1e30f);
  Input<Index> flat{x.data(), 1, %(aligned)s ? kFlat | kCell | kInner : 0u, {{{1}, {count}, 1}}};
  Input<Index> along{g.data(), 1, %(aligned)s ? kCell | (inner == 1 ? kInner : 0u) : 0u, {{{inner}, {columns}, 1}}};
  const RowParams<Index, 2, 1> params{rows, columns, inner, {y.data()}, {x.data(), g.data()}, {flat, along}};
  static unsigned char scratch[1 << 16];
  const SplitParams<Index, 2, 1> split_params{{scratch, %(parts)d, %(part_columns)d}, params};
  %(launches)s
  emulation::write("y", y);
}
"""


def _kernel(body: str, dims: tuple[int, ...], axis: int) -> tuple[ir.Model, str, Kernel]:
    """A model of one rowwise region, its CUDA text and its kernel."""
    inputs, nodes, constants = (t.format(row=",".join(_row(dims, axis)), axis=axis) for t in BODIES[body])
    model = graph(f"float[{','.join(map(str, dims))}] {inputs}", "float[] y", nodes, constants=constants)
    optimized = model.clone()
    (kernel,) = outline(optimized, fuse(optimized))
    assert kernel.kind is ROWWISE
    return model, generate.generate([kernel]), kernel


def _row(dims: tuple[int, ...], axis: int) -> list[str]:
    return [str(dims[axis]), *("1" for _ in dims[axis + 1 :])]


def _run(
    tmp_path: Path,
    body: str,
    dims: tuple[int, ...],
    axis: int,
    call: str,
    threads: int,
    rows: int,
    modes: str = "'*', '*'",
) -> None:
    """call: template and its arguments after Op and Index; rows: of the domain that one block runs."""
    model, source, kernel = _kernel(body, dims, axis)
    rng = np.random.default_rng(sum(dims))
    x = rng.normal(3, 2, dims).astype(np.float32)
    g = rng.normal(1, 0.5, (dims[axis], *(1 for _ in dims[axis + 1 :]))).astype(np.float32)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x, "g": g})
    template, arguments = call.split(" ", 1)
    width = int(arguments.split(",", 1)[0])
    inner = int(np.prod(dims[axis + 1 :]))
    blocks = -(-x.size // dims[axis] // rows)
    if "strided" in template:
        side = threads // int(arguments.split(",")[2 if template == "strided" else 1])
        blocks = x.size // dims[axis] // inner * -(-inner // (side * width))
    function = f"{template}<{kernel.name}, Index, {arguments}"
    calls = [f"{function}, {modes}>(params)"]
    parts = -(-dims[axis] // _PART_COLUMNS)
    if template in SPLIT:  # a launch for every stage and one for what is stored
        blocks *= parts
        calls = [f"{function}, {k}, {modes}>(split_params)" for k in range(len(kernel.program.stages) + 1)]
    aligned = (inner if inner > 1 else dims[axis]) % width == 0
    x.tofile(tmp_path / "x")
    g.tofile(tmp_path / "g")
    main = _MAIN % {
        "source": source, "count": x.size, "rows": x.size // dims[axis], "columns": dims[axis], "inner": inner,
        "stored": expected.size, "aligned": "true" if aligned else "false", "parts": parts,
        "part_columns": _PART_COLUMNS,
        "launches": " ".join(f"emulation::launch({blocks}, {threads}, [&] {{ {c}; }});" for c in calls),
    }  # fmt: skip
    emulated.run(tmp_path, main)
    found = np.fromfile(tmp_path / "y", np.float32).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("body", "columns"), [("softmax", 64), ("variance", 1000), ("sum", 1021), ("variance", 1021)])
def test_looped_rows(tmp_path: Path, body: str, columns: int) -> None:
    _run(tmp_path, body, (3, columns), 1, "looped 4, 2, 64, 1", threads=64, rows=1)


@pytest.mark.parametrize("body", sorted(BODIES))
def test_looped_ragged_rows(tmp_path: Path, body: str) -> None:
    _run(tmp_path, body, (5, 1021), 1, "looped 4, 2, 64, 1", threads=64, rows=1, modes="'F', 'K'")


@pytest.mark.parametrize(("body", "columns"), sampling.values(itertools.product(sorted(BODIES), (1021, 700))))
def test_split_rows(tmp_path: Path, body: str, columns: int) -> None:
    _run(tmp_path, body, (3, columns), 1, "split 4, 1, 64", threads=64, rows=1, modes="'F', 'K'")


@pytest.mark.parametrize(
    ("body", "dims"),
    [("softmax", (2, 17, 8)), ("variance", (2, 40, 3, 50)), ("sum", (1, 33, 129)), ("variance", (1, 33, 129))],
    ids=str,
)
def test_strided_rows(tmp_path: Path, body: str, dims: tuple[int, ...]) -> None:
    _run(tmp_path, body, dims, 1, f"strided {4 if dims[-1] % 4 == 0 else 1}, 0, 2, 64", threads=64, rows=1)
    _run(tmp_path, body, dims, 1, f"strided {4 if dims[-1] % 4 == 0 else 1}, 20, 2, 64", threads=64, rows=1)
    _run(tmp_path, body, dims, 1, f"strided {4 if dims[-1] % 4 == 0 else 1}, 5, 8, 64", threads=64, rows=1)


@pytest.mark.parametrize(
    ("body", "dims"),
    [("softmax", (2, 1030, 8)), ("variance", (2, 1500, 3, 5)), ("sum", (1, 2048, 12)), ("softmax", (1, 513, 65))],
    ids=str,
)
def test_split_strided_rows(tmp_path: Path, body: str, dims: tuple[int, ...]) -> None:
    width = 4 if dims[-1] % 4 == 0 else 1
    _run(tmp_path, body, dims, 1, f"split_strided {width}, 16, 64", threads=64, rows=1)


@pytest.mark.parametrize(("body", "lanes"), [("variance", 4), ("softmax", 32), ("variance", 64)])
def test_held_rows(tmp_path: Path, body: str, lanes: int) -> None:
    columns = 4 * lanes * 2 - 4  # two vectors a lane, of which the last lane has one
    _run(tmp_path, body, (21, columns), 1, f"held 4, 2, {lanes}, 64, 0", threads=64, rows=64 // lanes)


@pytest.mark.parametrize(
    ("body", "lanes", "columns", "unroll", "known"),
    [
        ("softmax", 4, 13, 1, 0), ("variance", 16, 49, 1, 0), ("softmax", 32, 197, 2, 0), ("variance", 64, 391, 2, 0),
        ("variance", 8, 5, 1, 0), ("softmax", 16, 197, 4, 197), ("variance", 16, 197, 4, 197),
        ("variance", 8, 95, 4, 95),
    ],
)  # fmt: skip
def test_ragged_rows(tmp_path: Path, body: str, lanes: int, columns: int, unroll: int, known: int) -> None:
    call = f"ragged 4, {unroll}, {lanes}, 64, {known}"
    _run(tmp_path, body, (21, columns), 1, call, threads=64, rows=64 // lanes, modes="'F', 'K'")


@pytest.mark.parametrize(("body", "mask"), [("softmax", 1), ("sum", 3), ("variance", 1), ("variance", 3)])
def test_piped_rows(tmp_path: Path, body: str, mask: int) -> None:
    _run(tmp_path, body, (21, 500), 1, f"piped 4, 2, 64, 1, 0, {mask}u", threads=64, rows=4, modes="'F', 'K'")


@pytest.mark.parametrize(
    ("body", "mask", "depth"), [("softmax", 0, 3), ("variance", 1, 1), ("softmax", 3, 1), ("variance", 3, 3)]
)
def test_ring_rows(tmp_path: Path, body: str, mask: int, depth: int) -> None:
    _run(tmp_path, body, (21, 500), 1, f"ring 4, 2, 64, 1, 0, {mask}u, {depth}", threads=64, rows=4, modes="'F', 'K'")


_ACROSS = """
#include "device/shifted.cuh"
using namespace onnxopt;
int main() {
  alignas(16) static uint16_t memory[64];
  for (int i = 0; i < 64; ++i) memory[i] = static_cast<uint16_t>(1000 + i);
  int wrong = 0;
  for (unsigned begin = 8; begin < 24; ++begin) {
    for (unsigned columns = 1; columns < 30; ++columns) {
      for (int k = -7; k < static_cast<int>(columns); ++k) {
        const auto found = load_across<uint16_t, 8>(memory + begin, static_cast<uint32_t>(k), columns);
        for (int j = 0; j < 8; ++j) {
          const bool inside = k + j >= 0 && k + j < static_cast<int>(columns);
          wrong += inside && found.at[j] != 1000 + static_cast<int>(begin) + k + j;
        }
      }
    }
  }
  std::printf("%d", wrong);
  return wrong != 0;
}
"""


def test_vectors_across_aligned_ones(tmp_path: Path) -> None:
    """Wherever the data and the vector begin, every element that is one of the columns is the right one."""
    emulated.run(tmp_path, _ACROSS)
