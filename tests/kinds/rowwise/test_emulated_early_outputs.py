"""Outputs of a rowwise kernel that are stored before anything is reduced: which they are, and that they may lie where
an input does. Device code runs on the CPU as in test_emulated.py."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from onnxopt.program.rowwise import RowProgram
from tests.support.emulation import emulated
from tests.support.graphs import graph
from tests.support.kinds.rowwise_models import session

# name: outputs, body, and which of the outputs need no reduction
_CASES = {
    "gate and its mean": (
        "float[21,197] y, float[21,1] z", "s = Add(x, g) y = Sigmoid(s) z = ReduceMean(y, axes)", ["y"],
    ),
    "sum and its norm": ("float[21,197] y, float[21,197] z", "y = Add(x, g) z = Softmax(y)", ["y"]),
    "softmax and its maximum": ("float[21,197] y, float[21,1] z", "y = Softmax(x) z = ReduceMax(y, axes)", []),
}  # fmt: skip
_MAIN = """
%(source)s
using namespace onnxopt;
using Index = unsigned long long;
int main() {
  const Index rows = 21, columns = 197, count = rows * columns;
  auto x = emulation::read<float>("x", count), g = emulation::read<float>("g", columns);
  std::vector<float> z(%(stored)d, -1e30f);
  Input<Index> flat{x.data(), 1, kFlat, {{{1}, {count}, 1}}};
  Input<Index> along{g.data(), 1, 0, {{{1}, {columns}, 1}}};
  const RowParams<Index, 2, 2> params{rows, columns, 1, {x.data(), z.data()}, {x.data(), g.data()}, {flat, along}};
  emulation::launch(%(blocks)d, 64, [&] { %(call)s(params); });
  emulation::write("y", x);
  emulation::write("z", z);
}
"""


def _kernel(case: str) -> tuple[ir.Model, Kernel]:
    outputs, body, _ = _CASES[case]
    model = graph("float[21,197] x, float[197] g", outputs, body, constants="int64[1] axes = {1}")
    optimized = model.clone()
    (kernel,) = outline(optimized, fuse(optimized))
    return model, kernel


@pytest.mark.parametrize("case", _CASES)
def test_outputs_that_need_no_reduction(case: str) -> None:
    model, kernel = _kernel(case)
    mask = sum(1 << k for k, v in enumerate(model.graph.outputs) if v.name in _CASES[case][2])
    assert f"kEarlyOutputs = {hex(mask)}u" in generate.generate([kernel])


@pytest.mark.parametrize("call", ["held 1, 7, 32, 64, 197", "ragged 4, 4, 16, 64, 197", "ragged 4, 2, 32, 64, 0"])
@pytest.mark.parametrize("case", [name for name, (*_, early) in _CASES.items() if early])
def test_stored_where_an_input_lies(tmp_path: Path, case: str, call: str) -> None:
    model, kernel = _kernel(case)
    assert len(cast(RowProgram, kernel.program).inputs) == 2
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(0, 2, (21, 197)).astype(np.float32), "g": rng.normal(0, 1, 197).astype(np.float32)}
    expected = session(ir.to_proto(model).SerializeToString()).run(None, feeds)
    for name, value in feeds.items():
        value.tofile(tmp_path / name)
    layout, arguments = call.split(" ", 1)
    lanes = int(arguments.split(",")[2])
    main = _MAIN % {
        "source": generate.generate([kernel]), "stored": expected[1].size, "blocks": -(-21 * lanes // 64),
        "call": f"{layout}<{kernel.name}, Index, {arguments}, 'F', 'K'>",
    }  # fmt: skip
    emulated.run(tmp_path, main)
    for name, wanted in zip("yz", expected, strict=True):
        found = np.fromfile(tmp_path / name, np.float32).reshape(wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
