"""Attention of many queries on the CPU: launches as the library would make them, and the device code run by g++."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from pathlib import Path
from typing import cast

import numpy as np

from cases.flash_attention import Case, fused
from cases.models import numpy_dtype
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.flash_attention.entry_points import FlashVariant
from tests.support.emulation import emulated
from tests.support.emulation.library_programs import launch_program

_HOPPER = 227 << 10  # bytes of shared memory of a block
_RESIDENT = 7  # blocks, so that each has several sequences


@dataclasses.dataclass(frozen=True)
class Launch:
    """Blocks of a launch, 0 where the entry point does not fit, and the numbers of its parameters."""

    blocks: int
    numbers: tuple[str, ...]


def launches(
    kernel: Kernel, case: Case, resident: int = _RESIDENT, aligned: int = 256, shared: int = _HOPPER, major: int = 8
) -> tuple[int, list[Launch]]:
    """The entry point that the library chooses for a call, and the launch of each. major: compute capability."""
    row = {**kernel.program.to_json(), "variants": [dataclasses.asdict(v) for v in kernel.variants]}
    by_batch, by_head = case.bias or (False, False)
    period = case.period or (case.batch if by_batch else 1)
    by_query = int(case.shapes()["bias"][2] != 1) if case.bias else 1
    numbers = (case.batch, case.queries, case.keys, period, int(by_head), resident, aligned, shared, by_query, major)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(row))
        file.flush()
        command = [
            launch_program("flash_attention"), file.name, *map(str, numbers),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stdout)
    first, *rows = done.stdout.splitlines()
    return int(first), [Launch(int(r.split()[0]), tuple(r.split()[1:])) for r in rows]


_MAIN = """
#include "matrix_words.h"
%(source)s
using namespace onnxopt;
int main() {
%(calls)s
}
"""
_CALL = """
  {
    %(reads)s
    std::vector<unsigned short> y(%(count)d + 8);
    %(runs)s
  }
"""
_RUN = """
    std::memset(y.data(), 0x7e, y.size() * sizeof(y[0]));
    {
      FlashAttentionParams p{{%(q)s}, {%(k)s}, {%(v)s}, %(bias)s, %(sinks)s, y.data() + %(shift)d, %(numbers)s};
      emulation::launch(%(blocks)d, %(threads)d, [&] { %(symbol)s(p); });
      emulation::write("%(file)s", y);
    }
"""


def results(
    folder: Path, cases: list[Case], every: bool = False, aligned: int = 256, plain: bool = False
) -> dict[tuple[Case, str], tuple[np.ndarray, np.ndarray]]:
    """For every case and entry point that fits it: what the kernel writes, and the result in float64.

    Entry points for Hopper are left out: nothing here stands in for its products. every: also with the entry points
    that `tune` measures. aligned: bytes, of all tensors. plain: what runs where the GPU has no products of the dtype.
    """
    calls, kernels, wanted = [], {}, {}
    for number, case in enumerate(cases):
        (kernel,) = fused(case).kernels
        if every:
            others = tuple(kernel.kind.alternatives(kernel))
            kernel = dataclasses.replace(kernel, variants=(*kernel.variants, *others))
        kernels[kernel.name] = kernel
        feeds = case.feeds()
        expected = case.expected(feeds)
        made = launches(kernel, case, aligned=aligned)[1]
        on_warps = [v.warpgroups is None for v in cast(tuple[FlashVariant, ...], kernel.variants)]
        fits = [k for k, launch in enumerate(made) if launch.blocks and on_warps[k]]
        calls.append(_call(folder, number, case, kernel, feeds, expected.size, [(k, made[k]) for k in fits], plain))
        for k in fits:
            wanted[case, kernel.variants[k].symbol] = (folder / f"y{number}_{k}", expected)
    source = generate.generate(list(kernels.values()))
    emulated.run(folder, _MAIN % {"source": source, "calls": "".join(calls)}, "-Og")
    return {key: (_read(file, key[0].stored, expected), expected) for key, (file, expected) in wanted.items()}


def _read(file: Path, dtype: str, expected: np.ndarray) -> np.ndarray:
    """Results behind 16 bytes."""
    found = np.fromfile(file, numpy_dtype(dtype))
    return found[16 // found.itemsize :][: expected.size].reshape(expected.shape)


def _call(
    folder: Path, number: int, case: Case, kernel: Kernel, feeds: dict[str, np.ndarray], count: int,
    made: list[tuple[int, Launch]], plain: bool,
) -> str:  # fmt: skip
    (region,) = fused(case).plan.regions
    meaning = region.meaning
    reads = []
    for k, value in enumerate(region.inputs):
        constant = None if value.const_value is None else value.const_value.numpy().astype(numpy_dtype(case.dtype))
        array = feeds[str(value.name)] if constant is None else constant
        array.tofile(folder / f"x{number}_{k}")
        reads.append(f'auto x{k} = emulation::read<unsigned short>("x{number}_{k}", {array.size});')
    bias, sinks = ("nullptr" if k is None else f"x{k}.data()" for k in (meaning.bias, meaning.sinks))
    runs = []
    for k, launch in made:
        n = launch.numbers
        heads = {
            name: f"x{h.input}.data() + {h.first}, {', '.join(n[3 * i : 3 * i + 3])}"
            for i, (name, h) in enumerate(zip("qkv", (meaning.q, meaning.k, meaning.v), strict=True))
        }
        numbers = ", ".join([*n[9:-2], *(f"static_cast<float>({x})" for x in n[-2:])])
        runs.append(
            _RUN % {
                **heads, "bias": bias, "sinks": sinks, "shift": 8, "numbers": numbers, "blocks": launch.blocks,
                "threads": kernel.variants[k].threads, "symbol": _entry(kernel, k, plain), "file": f"y{number}_{k}",
            }
        )  # fmt: skip
    return _CALL % {"reads": "\n    ".join(reads), "count": count, "runs": "".join(runs)}


def _entry(kernel: Kernel, k: int, plain: bool) -> str:
    variant, meaning = kernel.variants[k], kernel.program
    if not plain:
        return variant.symbol
    tile = f"{meaning.width}, {meaning.values}, {variant.threads // 32}, {variant.keys}, {variant.stages}"
    of = f"{kernel.name}, FlashTile<{tile}, {variant.access}>"
    return f"[](const FlashAttentionParams& p) {{ FlashPlain<{of}>::run(p, FlashAttention<{of}>::place(p)); }}"
