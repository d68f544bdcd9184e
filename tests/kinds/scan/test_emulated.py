"""CUDA kernels of scans, run on the CPU by g++ and threads (emulation/cuda.h), against sums in float64 or integers.

Every way to share rows among threads, each way of summing up: what is tested is the device code itself, its barriers
and its tails. Rounding of 16-bit dtypes needs a GPU.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.codegen import generate
from tests.support.emulation import emulated
from tests.support.kinds import scan_models

_C_TYPES = {"float32": "float", "int64": "long long", "int32": "int"}
_THREADS = 64
_PART_COLUMNS = 512  # of a row that is split
_MAIN = """
%(source)s
using namespace onnxopt;
using Index = unsigned int;
Divisor<Index> by(Index divisor) {  // as cuda_variant.cc has it
  unsigned shift = 0;
  while ((1ull << shift) < divisor) ++shift;
  return {divisor, static_cast<Index>((1ull << 32) * ((1ull << shift) - divisor) / divisor + 1), shift};
}
int main() {
  const Index count = %(count)d, rows = %(rows)d, columns = %(columns)d, inner = %(inner)d;
  auto x = emulation::read<%(type)s>("x", count), g = emulation::read<%(type)s>("g", columns);
  auto q = emulation::read<%(type)s>("q", rows);
  std::vector<%(type)s> y(count, 77), z(count, 77);
  const bool aligned = %(aligned)s;
  Input<Index> flat{x.data(), 1, aligned ? kFlat | kCell | kInner : 0u, {{by(1), by(count), 1}}};
  Input<Index> along{g.data(), 1, aligned ? kCell | (inner == 1 ? kInner : 0u) : 0u, {{by(inner), by(columns), 1}}};
  Input<Index> row{q.data(), 2, 0u, {{by(1), by(inner), inner == 1 ? 0u : 1u},
                                     {by(columns * inner), by(rows / inner), inner}}};
  const RowParams<Index, 3, 2> params{
      rows, columns, inner, {z.data(), y.data()}, {x.data(), g.data(), q.data()}, {flat, along, row}};
  static unsigned char scratch[1 << 16];
  const SplitParams<Index, 3, 2> split_params{{scratch, %(parts)d, %(part_columns)d}, params};
  %(launches)s
  emulation::write("y", y);
  emulation::write("z", z);
}
"""
_DENSE = [
    ("held 4, 2, 8, {t}, false", 60, "FK*"),
    ("held 4, 1, 32, {t}, false", 128, "FK*"),
    ("held 4, 2, 64, {t}, false", 504, "FK*"),
    ("held 1, 3, 4, {t}, false", 11, "***"),
    ("held 4, 2, 8, {t}, true", 57, "FK*"),
    ("held 4, 1, 4, {t}, true", 5, "FK*"),
    ("held 4, 2, 64, {t}, true", 391, "FK*"),
    ("looped 4, 2, {t}", 2048, "FK*"),
    ("looped 4, 1, {t}", 1021, "FK*"),
    ("looped 4, 1, {t}", 700, "***"),
    ("split 4, 1, {t}", 1400, "FK*"),
    ("split 4, 2, {t}", 1021, "FK*"),
]
_STRIDED = [
    ("strided 4, 3, {t}", (2, 40, 8), "F**"),
    ("strided 1, 8, {t}", (3, 17, 50), "F**"),
    ("strided 2, 2, {t}", (1, 33, 130), "***"),
]


def _run(tmp_path: Path, dims: tuple[int, ...], dtype: str, flags: tuple[int, int], call: str, modes: str) -> None:
    case = scan_models.scan(dims, 1, dtype, *flags)
    (kernel,) = case.fused.kernels
    x, g, q = case.feeds["x"], case.feeds["g"], case.feeds["q"]
    columns, inner = dims[1], int(np.prod(dims[2:]))
    rows = x.size // columns
    template, arguments = call.format(t=_THREADS).split(" ", 1)
    width = int(arguments.split(",", 1)[0])
    lanes = int(arguments.split(",")[2]) if template == "held" else _THREADS
    blocks = -(-rows * lanes // _THREADS)
    if template == "strided":
        blocks = dims[0] * -(-inner // (32 * width))
    parts = -(-columns // _PART_COLUMNS)
    function = f"scan_{template}<{kernel.name}, Index, {arguments}"
    letters = ", ".join(f"'{m}'" for m in modes)
    calls = [f"{function}, {letters}>(params)"]
    if template == "split":
        blocks *= parts
        calls = [f"{function}, {k}, {letters}>(split_params)" for k in range(2)]
    for name, array in (("x", x), ("g", g), ("q", q)):
        array.tofile(tmp_path / name)
    main = _MAIN % {
        "source": generate.generate([kernel]), "count": x.size, "rows": rows, "columns": columns, "inner": inner,
        "type": _C_TYPES[dtype], "aligned": "true" if (inner if inner > 1 else columns) % width == 0 else "false",
        "parts": parts, "part_columns": _PART_COLUMNS,
        "launches": " ".join(f"emulation::launch({blocks}, {_THREADS}, [&] {{ {c}; }});" for c in calls),
    }  # fmt: skip
    emulated.run(tmp_path, main)
    for name, expected in case.expected().items():
        found = np.fromfile(tmp_path / name, dtype).reshape(dims)
        scan_models.check(found, expected, case.limit(name))


@pytest.mark.parametrize("number", range(len(_DENSE)), ids=[f"{c[0]} of {c[1]}" for c in _DENSE])
def test_rows(tmp_path: Path, number: int) -> None:
    """In turn reverse and exclusive."""
    call, columns, modes = _DENSE[number]
    flags = (number % 2, 1 - number % 2)
    _run(tmp_path, (21 if columns < 600 else 3, columns), "float32", flags, call, modes)


@pytest.mark.parametrize("flags", [(0, 0), (1, 1)], ids=["plain", "both"])
@pytest.mark.parametrize(("call", "dims", "modes"), _STRIDED, ids=[f"{c[0]} of {c[1]}" for c in _STRIDED])
def test_strided_rows(tmp_path: Path, call: str, dims: tuple[int, ...], modes: str, flags: tuple[int, int]) -> None:
    _run(tmp_path, dims, "float32", flags, call, modes)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("call", ["held 2, 2, 64, {t}, false", "looped 2, 1, {t}", "split 2, 1, {t}"])
def test_integers_wrap(tmp_path: Path, call: str, dtype: str) -> None:
    _run(tmp_path, (3, 240 if call.startswith("held") else 1100), dtype, (0, 1), call, "FK*")
