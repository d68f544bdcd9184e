"""Rowwise CUDA kernels with index operations, run on the CPU by g++ and threads, against ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast
from unittest import mock

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.rowwise import access_order
from onnxopt.program.cuda_text.statements import INDEX
from onnxopt.program.indexing import Condition, Term
from onnxopt.program.rowwise import RowProgram
from tests.kinds.rowwise.test_join import CASES as JOINED
from tests.support.emulation import emulated
from tests.support.graphs import graph
from tests.support.kinds.rowwise_models import session

CASES = {
    "rotary": JOINED["query norm, heads, rotary embedding"][:4],
    "sink": ("float[3,7,64] x, float[3,7,1] k", "float[3,7,65] y", *JOINED["scores with a sink"][2:4]),
    "padded": ("float[3,9,50] x", "float[3,9,64] y", *JOINED["padded scores"][2:4]),
    "class token": (
        "float[2,9,40] x, float[2,1,40] k, float[10,40] p, float[40] g", "float[2,10,40] y",
        "a = Concat<axis = 1>(k, x) z = Add(a, p) y = LayerNormalization(z, g)", "",
    ),
    "two streams": (
        "float[2,7,96] a, float[2,5,96] b, float[32] g, float[32] h", "float[2,12,3,32] y",
        *JOINED["norms of two streams"][2:4],
    ),
    "two norms": (
        "float[2,7,96] a, float[2,5,96] b, float[32] g, float[32] h", "float[2,12,3,32] y",
        *JOINED["different norms of two streams"][2:4],
    ),
    "modulated": JOINED["parts of a modulation"][:4],
    "gated": ("float[6,96] x", "float[6,1] y", *JOINED["gated product and its mean"][2:4]),
    "rolled back": (
        "float[2,4,3,4,24] x, float[24] g", "float[8,12,24] y", *JOINED["a map of unknown size, rolled back"][2:4],
    ),
}  # fmt: skip
# Kernels that are generated without knowing these sizes.
DYNAMIC = {"rolled back": JOINED["a map of unknown size, rolled back"][:4]}
_MAIN = """
%(source)s
using namespace onnxopt;
using Index = %(index)s;
template <typename I>
Divisor<I> divisor(unsigned number, unsigned multiplier, unsigned shift) {
  if constexpr (sizeof(I) == 4) return {number, multiplier, shift};
  else return {number};
}
int main() {
  %(files)s
  std::vector<float> y(%(stored)d, -1e30f);
  const RowParams<Index, %(leaves)d, 1> params{%(rows)d, %(columns)d, %(inner)d, {y.data()}, {%(data)s}, {%(inputs)s}};
  emulation::launch(%(blocks)d, %(threads)d, [&] { %(call)s(params); });
  emulation::write("y", y);
}
"""


def _kernel(inputs: str, outputs: str, body: str, constants: str) -> tuple[ir.Model, Kernel]:
    model = graph(inputs, outputs, body, constants=constants, opset=23)
    optimized = model.clone()
    with mock.patch.object(access_order, "splits_vectors", return_value=False):  # slow is no reason not to be right
        (kernel,) = outline(optimized, fuse(optimized))
    assert cast(RowProgram, kernel.program).index is not None
    return model, kernel


def _viewed(value: ir.Value) -> ir.Value:
    """The input of the model that a value is, or is a Reshape of."""
    node = value.producer()
    return value if node is None or node.inputs[0] is None else node.inputs[0]


def _divisor(number: int) -> str:
    """As program/divisor.h makes it for 32 bits; in 64 bits the number alone counts."""
    shift = (number - 1).bit_length()
    return f"divisor<Index>({number}u, {((((1 << shift) - number) << 32) // number + 1) % 2**32}u, {shift}u)"


def _terms(terms: tuple[Term, ...]) -> str:
    rows = [f"{{{_divisor(t.div.factor)}, {_divisor(t.mod.factor)}, Index({t.stride.factor}ll)}}" for t in terms]
    return f"{len(terms)}, %s, {{{', '.join(rows)}}}"


def _leaves(program: RowProgram, names: list[str], width: int) -> list[str]:
    """Every leaf as an Input, with the flags that the host would give it for vectors of this width."""
    index = program.index
    assert index is not None
    leaves = []
    for access in index.accesses:
        offset, terms = sum(e.factor for e in access.offset), access.terms
        strides = [t.stride.factor for t in terms[1:]]
        inner = bool(terms) and terms[0].div.factor == terms[0].stride.factor == 1
        flags = 0
        if inner and not any(n % width for n in (terms[0].mod.factor, offset, *strides)):
            flags = 6  # kCell | kInner
        elif all(t.div.factor % width == 0 for t in terms):
            flags = 2  # kCell
        leaves.append(f"{{{names[access.input]}.data() + ({offset}), {_terms(terms) % flags}}}")
    for condition in index.conditions:
        leaves.append(f"{{nullptr, {_terms(condition.terms) % (2 if _is_uniform(condition, width) else 0)}}}")
    return leaves


def _is_uniform(condition: Condition, width: int) -> bool:
    bounds = (condition.low - condition.offset, condition.high - condition.offset)
    numbers = (*(e.factor for bound in bounds for e in bound.parts), condition.terms[0].mod.factor)
    inner = condition.terms[0].div.factor == condition.terms[0].stride.factor == 1
    return len(condition.terms) == 1 and inner and all(n % width == 0 for n in numbers)


@pytest.mark.parametrize("index", sorted(INDEX.values()))
@pytest.mark.parametrize(
    ("case", "call", "threads", "rows"),
    [
        ("rotary", "held 4, 2, 16, 64, 128", 64, 4),
        ("rotary", "held 8, 1, 16, 64, 0", 64, 4),
        ("rotary", "looped 4, 2, 64, 1", 64, 1),
        ("rotary", "ragged 4, 2, 32, 64, 0", 64, 2),
        ("sink", "held 1, 3, 32, 64, 65", 64, 2),
        ("sink", "ragged 4, 1, 32, 64, 65", 64, 2),
        ("sink", "looped 4, 2, 64, 1", 64, 1),
        ("padded", "held 4, 1, 16, 64, 64", 64, 4),
        ("padded", "held 8, 1, 8, 64, 0", 64, 8),
        ("padded", "ragged 4, 1, 32, 64, 0", 64, 2),
        ("padded", "piped 4, 1, 64, 1, 64, 0u", 64, 3),
        ("class token", "held 4, 1, 16, 64, 40", 64, 4),
        ("class token", "ragged 8, 1, 8, 64, 0", 64, 8),
        ("class token", "looped 4, 1, 64, 1", 64, 1),
        ("gated", "held 4, 2, 8, 64, 48", 64, 8),
        ("rolled back", "held 4, 1, 8, 64, 24", 64, 8),
        ("rolled back", "ragged 8, 1, 4, 64, 0", 64, 16),
        ("rolled back", "looped 4, 1, 64, 1", 64, 1),
    ],
)
def test_layouts(tmp_path: Path, case: str, call: str, threads: int, rows: int, index: str) -> None:
    """rows: of the domain that one block runs."""
    model, kernel = _kernel(*CASES[case])
    generated = _kernel(*DYNAMIC[case])[1] if case in DYNAMIC else kernel
    program = cast(RowProgram, kernel.program)
    original = session(ir.to_proto(model).SerializeToString())
    rng = np.random.default_rng(0)
    feeds = {i.name: rng.normal(1, 2, i.shape).astype(np.float32) for i in original.get_inputs()}
    (expected,) = original.run(None, feeds)
    with mock.patch.object(access_order, "splits_vectors", return_value=False):
        names = [_viewed(v).name for v in fuse(model).regions[0].inputs]
    for name, value in feeds.items():
        value.tofile(tmp_path / name)
    outer, columns, inner = (e.factor for e in program.domain)
    template, arguments = call.split(" ", 1)
    width = int(arguments.split(",", 1)[0])
    blocks = -(-outer // rows)
    leaves = _leaves(program, [str(n) for n in names], width)
    letters = access_order.modes(program)
    modes = ", ".join(f"'{m if template != 'looped' or m in 'FK' else '*'}'" for m in letters)
    main = _MAIN % {
        "index": index,
        "source": generate.generate([generated]), "leaves": len(leaves), "inputs": ", ".join(leaves),
        "data": ", ".join(leaf[1:].split(",")[0] for leaf in leaves),
        "files": "  ".join(f'auto {n} = emulation::read<float>("{n}", {feeds[str(n)].size});' for n in names),
        "stored": expected.size, "rows": outer * inner, "columns": columns, "inner": inner, "blocks": blocks,
        "threads": threads, "call": f"{template}<{generated.name}, Index, {arguments}, {modes}>",
    }  # fmt: skip
    emulated.run(tmp_path, main)
    found = np.fromfile(tmp_path / "y", np.float32).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("bits", INDEX)
def test_a_part_that_ends_with_its_dim_is_every_index_from_its_first_on(bits: int) -> None:
    """A condition holds where index - low, in as many bits, is below the extent. Emulation may read elsewhere."""
    _, kernel = _kernel(*DYNAMIC["rolled back"])
    source = generate.generate([kernel])
    lows, extents = (re.search(rf"long long {name}\[\] = {{(.*)}};", source) for name in ("low", "extent"))
    assert lows is not None and extents is not None
    bounds = [(int(low), int(n, 0)) for low, n in zip(lows[1].split(","), extents[1].split(","), strict=True)]
    ends = [low for low, extent in bounds if extent > 2]
    assert ends == [2, 2]
    for low, extent in bounds:
        limit = 2**bits
        for index in (0, low - 1, low, low + 1, low + 2, 2**31 - 1):
            holds = (index - low) % limit < extent % limit
            assert holds == (index >= low and (extent > 2 or index < low + extent))
