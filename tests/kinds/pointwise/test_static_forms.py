"""Index forms that are spelled with constants in CUDA source: the same numbers as the terms in kernels.json."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from onnxopt.kinds.pointwise.cuda import lines
from onnxopt.program.extents import product
from onnxopt.program.pointwise import Program
from tests.kinds.pointwise.test_index_regions import ONE_KERNEL
from tests.support.fusing import fuse, outline
from tests.support.graphs import graph

NAMES = [name for name, (inputs, *_) in ONE_KERNEL.items() if "N" not in inputs and name != "split to outputs"]
_MAIN = """#include <cstdint>
#include <cstdio>
#define __device__
struct Op {
%s
};
int main() {
  for (uint32_t i = 0; i < %d; ++i) {
    std::printf("%s\\n", %s);
  }
}
"""


@pytest.mark.parametrize("name", NAMES)
def test_constants_give_what_the_terms_say(name: str, tmp_path: Path) -> None:
    inputs, outputs, body, constants = ONE_KERNEL[name]
    model = graph(inputs, outputs, body, constants=constants)
    (kernel,) = outline(model, fuse(model))
    assert isinstance(kernel.program, Program) and kernel.program.index is not None
    index, text = kernel.program.index, lines(kernel)
    first = next(k for k, line in enumerate(text) if "Index at(Index i)" in line) - 1
    last = next(k for k in range(first, len(text)) if text[k] == "  }")
    count = product(index.shapes[0]).factor
    calls = ", ".join(f"int32_t(Op::at<{k}>(i))" for k in range(len(index.forms)))
    source = _MAIN % ("\n".join(text[first : last + 1]), count, " ".join(["%d"] * len(index.forms)), calls)
    (tmp_path / "forms.cc").write_text(source)
    subprocess.run(["g++", "-std=c++17", "-w", "-o", tmp_path / "forms", tmp_path / "forms.cc"], check=True)
    printed = subprocess.run([tmp_path / "forms"], check=True, capture_output=True, text=True).stdout.splitlines()
    for i, row in enumerate(printed):
        expected = [
            sum(i // t.div.factor % t.mod.factor * t.stride.factor for t in terms) for terms in index.forms
        ]  # fmt: skip
        assert [int(n) for n in row.split()] == expected
    assert len(printed) == count
