"""Index forms that are spelled in CUDA source: the same numbers as the terms in kernels.json, whatever the sizes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from cases.models import fuse, outline
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.pointwise import index_forms
from onnxopt.kinds.pointwise.access_modes import columns
from onnxopt.program.extents import product
from onnxopt.program.indexing import Indexing
from onnxopt.program.pointwise import Program
from tests.fuzz.graphs import Graph
from tests.kinds.pointwise.test_index_regions import ONE_KERNEL
from tests.support.emulation import emulated
from tests.support.graphs import graph

SYMBOLIC = {
    "rotary embedding of packed projections": (
        "float16[N, S, 96] x, float[1, 1, S, 8] cos, float[1, 1, S, 8] sin", "float16[N, 4, S, 8] y",
        "r = Reshape(x, s5)  p = Slice(r, zero, one, two)  k = Squeeze(p, two)  t = Transpose<perm=[0,2,1,3]>(k)  "
        "f = Cast<to=1>(t)  a = Mul(f, cos)  h = Slice(f, zero, half, last)  g = Slice(f, half, big, last)  "
        "n = Neg(g)  c = Concat<axis=3>(n, h)  b = Mul(c, sin)  z = Add(a, b)  y = Cast<to=10>(z)",
        "int64[5] s5 = {0, 0, 3, 4, 8}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, "
        "int64[1] half = {4}, int64[1] big = {9223372036854775807}, int64[1] last = {3}",
    ),
    "rotary embedding of a slice": (
        "float[N, S, 48] x, float[1, S, 1, 8] cos, float[1, S, 1, 8] sin", "float[N, S, 4, 8] y",
        "k = Slice(x, zero, q, two)  r = Reshape(k, s4)  a = Mul(r, cos)  h = Slice(r, zero, half, last)  "
        "g = Slice(r, half, big, last)  n = Neg(g)  c = Concat<axis=3>(n, h)  b = Mul(c, sin)  y = Add(a, b)",
        "int64[4] s4 = {0, 0, 4, 8}, int64[1] zero = {0}, int64[1] two = {2}, int64[1] q = {32}, int64[1] half = {4}, "
        "int64[1] big = {9223372036854775807}, int64[1] last = {3}",
    ),
    "columns of unknown number": (
        "float[N, 12, S] x", "float[N, S, 12] y", "a = Neg(x)  y = Transpose<perm=[0,2,1]>(a)", "",
    ),
    "rows of unknown number": (
        "float[N, S, 12] x", "float[N, 12, S] y", "a = Neg(x)  y = Transpose<perm=[0,2,1]>(a)", "",
    ),
    "both unknown": ("float[3, N, S] x", "float[3, S, N] y", "a = Neg(x)  y = Transpose<perm=[0,2,1]>(a)", ""),
    "order turned around": ("float[N, 5, S] x", "float[S, 5, N] y", "a = Neg(x)  y = Transpose(a)", ""),
    "runs of unknown length": (
        "float[N, 1, S] x, float[N, 3, S] z", "float[N, 3, S] y",
        "a = Neg(x)  e = Expand(a, s)  y = Add(e, z)", "int64[3] s = {1, 3, 1}",
    ),
    "cells of unknown length": (
        "float[4, N] x, float[N, 4, S] z", "float[N, 4, S] y",
        "t = Transpose(x)  u = Unsqueeze(t, two)  y = Add(u, z)", "int64[1] two = {2}",
    ),
    "parts along a known axis": (
        "float[N, 3, S] x, float[N, 5, S] z", "float[N, S, 8] y",
        "a = Neg(x)  c = Concat<axis=1>(a, z)  t = Transpose<perm=[0,2,1]>(c)  y = Abs(t)", "",
    ),
    "backwards": (
        "float[N, 7, S] x", "float[N, 4, S] y", "a = Neg(x)  y = Slice(a, s, e, ax, st)",
        "int64[1] s = {6}, int64[1] e = {-8}, int64[1] ax = {1}, int64[1] st = {-2}",
    ),
}  # fmt: skip
CASES = {name: case for name, case in (ONE_KERNEL | SYMBOLIC).items() if name != "split to outputs"}
SIZES = (1, 3, 8)
SEEDS, MIN_KERNELS = 40, 5  # random graphs, and kernels with symbolic forms among theirs
_MAIN = """
%s
using namespace onnxopt;
template <typename Index>
Divisor<Index> divisor(unsigned long long d) {
  if constexpr (sizeof(Index) == 8) {
    return {d};
  } else {
    unsigned shift = 0;
    while ((1ull << shift) < d) ++shift;
    return {unsigned(d), unsigned(((((1ull << shift) - d) << 32) / d) + 1), shift};
  }
}
struct Numbers {
  long long div, mod, stride;
};
int wrong = 0;
const char* kernel = "";
void expect(bool holds, const char* what, int form, unsigned long long i) {
  if (!holds && wrong++ < 9) std::printf("%%s: %%s %%d at %%llu\\n", kernel, what, form, i);
}
template <typename Index>
long long as_signed(Index n) {
  return sizeof(Index) == 4 ? (long long)(int)n : (long long)n;
}
// at, and of an access the stretch; kAcross: of one that a tile reads along columns, what is said of its rows.
template <typename Op, int kForm, bool kAccess, bool kAcross, typename P, typename Index>
void check(const P& params, const std::vector<Numbers>& terms, Index count, Index rows) {
  for (Index i = 0; i < count; ++i) {
    long long sum = 0;
    for (const Numbers& t : terms) sum += (long long)(i / Index(t.div) %% Index(t.mod)) * t.stride;
    const Index at = Op::template at<kForm>(params, i);
    expect(as_signed(at) == sum, "at", kForm, i);
    if constexpr (kAcross) {
      if (i < rows) expect(Op::template across<kForm>(params, i) == at, "across", kForm, i);
    }
    if constexpr (kAccess) {
      const auto here = Op::template stretch<kForm>(params, i);
      const int known = Op::known_step[kForm];
      expect(known < 0 || Index(known) == here.step, "known_step", kForm, i);
      for (Index j = 0; j < here.left && i + j < count; ++j) {
        const Index there = Op::template at<kForm>(params, Index(i + j));
        expect(there == Index(at + j * here.step), "stretch", kForm, i);
      }
    }
  }
}
template <typename Index>
void all() {
  const auto term = [](Numbers n) {
    return Term<Index>{divisor<Index>(n.div), divisor<Index>(n.mod), Index(n.stride)};
  };
%s
}
int main() {
  all<unsigned>();
  all<unsigned long long>();
  return wrong > 0;
}
"""


def _kernel(name: str) -> Kernel:
    inputs, outputs, body, constants = CASES[name]
    model = graph(inputs, outputs, body, constants=constants)
    (kernel,) = outline(model, fuse(model))
    return kernel


def _index(kernel: Kernel) -> Indexing:
    assert isinstance(kernel.program, Program)
    assert kernel.program.index is not None
    return kernel.program.index


def _main(kernels: Sequence[Kernel]) -> str:
    """A program that ends with 0 where all forms of these kernels are right, at all SIZES of their symbols."""
    checks = []
    for kernel in kernels:
        index = _index(kernel)
        symbols = [symbol for symbol, _, _ in index.symbols]
        for row in itertools.product(SIZES, repeat=len(symbols)):
            checks += _checks(kernel, index, dict(zip(symbols, row, strict=True)))
    return _MAIN % (generate.generate(kernels), "\n".join(checks))


def _checks(kernel: Kernel, index: Indexing, sizes: Mapping[str, int]) -> Iterator[str]:
    accesses, conditions = len(index.accesses), len(index.conditions)
    outputs = len(index.shapes)
    count = product(index.shapes[0]).value(sizes)
    yield f'  {{\n    kernel = "{kernel.name}";\n    Params<Index, {accesses}, {outputs}, {conditions}> params{{}};'
    numbers = [
        [f"{{{t.div.value(sizes)}, {t.mod.value(sizes)}, {t.stride.value(sizes)}}}" for t in form]
        for form in index.forms
    ]
    for k, form in enumerate(numbers):
        place = f"input[{k}]" if k < accesses else f"condition[{k - accesses}]"
        yield from (f"    params.{place}.term[{t}] = term({n});" for t, n in enumerate(form))
    for k, form in enumerate(numbers):
        column = columns(index.forms[k]) if k < accesses else None
        is_access = str(k < accesses and bool(form)).lower()
        rows = column.div.value(sizes) if column is not None else 0
        yield (
            f"    check<{kernel.name}, {k}, {is_access}, {str(column is not None).lower()}>"
            f"(params, {{{', '.join(form)}}}, Index({count}), Index({rows}));"
        )
    yield "  }"


def test_forms_give_what_the_terms_say(tmp_path: Path) -> None:
    """Of all CASES in one program, which says what is wrong of which kernel."""
    kernels = {kernel.name: kernel for kernel in map(_kernel, CASES)}
    emulated.run(tmp_path, _main(list(kernels.values())))


def test_forms_of_random_graphs(tmp_path: Path) -> None:
    kernels: dict[str, Kernel] = {}
    for seed in range(SEEDS):
        model = ir.serde.deserialize_model(Graph(seed, floats=("float32",)).model())
        for kernel in outline(model, fuse(model)):
            program = kernel.program
            if isinstance(program, Program) and program.index is not None and program.index.symbols_used():
                kernels[kernel.name] = kernel
    assert len(kernels) >= MIN_KERNELS
    emulated.run(tmp_path, _main(list(kernels.values())))


def test_rotation_of_unknown_sizes_divides_by_one_number_that_is_not_known() -> None:
    """Heads, their size and the width of the projections are constants; the sequence is divided by once for all."""
    index = _index(_kernel("rotary embedding of packed projections"))
    text = "\n".join(line for line in index_forms.of_kernel(index) if "kForm ==" in line and "Stretch" not in line)
    text = text[: text.index("{Index(")]  # at
    assert set(re.findall(r"(?:quotient|remainder)\([^,]*, ([\w.\[\]]*)\)", text)) == {"params.input[0].term[1].mod"}
    assert "/ 4" in text and "% 8" in text and "* 96" in text


def test_a_symbolic_outermost_dim_needs_no_parameter() -> None:
    index = _index(_kernel("dynamic batch"))
    assert not [line for line in index_forms.of_kernel(index) if "params." in line]
