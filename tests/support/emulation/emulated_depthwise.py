"""Depthwise kernels on the CPU: launches as the library would make them, and the device code run by g++."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from cases.depthwise import Case, fused
from cases.models import numpy_dtype
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from tests.support.emulation import emulated
from tests.support.emulation.library_programs import launch_program

HOPPER = (9, 227 << 10)  # compute capability's major number, bytes of shared memory of a block
_ALIGNED = 256
_POISON = 77.0
_C_TYPES = {"float32": "float", "float16": "unsigned short", "bfloat16": "unsigned short"}


@dataclasses.dataclass(frozen=True)
class Launch:
    """Blocks of a launch, 0 where the entry point does not fit; the words of its grid; result's height and width, pads
    above and left."""

    blocks: int
    grid: tuple[int, ...]
    window: tuple[int, int, int, int]


def launches(
    kernel: Kernel, x: tuple[int, int, int, int], gpu: tuple[int, int] = HOPPER, aligned: int = _ALIGNED
) -> tuple[int, list[Launch]]:
    """The entry point that the library chooses for a call, and the launch of each."""
    row = {**kernel.program.to_json(), "variants": [dataclasses.asdict(v) for v in kernel.variants]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(row))
        file.flush()
        command = [launch_program("depthwise"), file.name, *map(str, (*x[:3], *gpu, aligned))]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stdout)
    first, *rows = done.stdout.splitlines()
    numbers = [tuple(map(int, r.split())) for r in rows]
    return int(first), [Launch(n[0], n[1:10], (n[10], n[11], n[12], n[13])) for n in numbers]


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
    std::vector<%(type)s> y(%(count)d);
    DepthwiseParams p{{%(inputs)s}, y.data() + %(shift)d, %(numbers)s, {{%(inner)s}, {%(middle)s}, {%(outer)s}}};
    %(runs)s
  }
"""
_RUN = """
    std::memset(y.data(), 0xff, y.size() * sizeof(y[0]));
    p.grid = {{%(inner)s}, {%(middle)s}, {%(outer)s}};
    emulation::launch(%(blocks)d, %(threads)d, [&] { %(symbol)s(p); });
    emulation::write("%(file)s", y);
"""


def results(folder: Path, cases: list[Case], shift: int = 0) -> dict[tuple[Case, str], tuple[np.ndarray, np.ndarray]]:
    """For every case and entry point that fits it: what the kernel writes, and the result in float64.

    shift: elements by which the first input and the result lie behind an address that suits every access.
    """
    calls, kernels, wanted = [], {}, {}
    for number, case in enumerate(cases):
        (kernel,) = fused(case).kernels
        kernels[kernel.name] = kernel
        feeds = case.feeds()
        expected = case.expected(feeds)
        calls.append(_call(folder, number, case, kernel, feeds, expected.size, shift))
        for k, launch in enumerate(launches(kernel, case.x)[1]):
            if launch.blocks:
                wanted[case, kernel.variants[k].symbol] = (folder / f"y{number}_{k}", expected)
    source = generate.generate(list(kernels.values()))
    emulated.run(folder, _MAIN % {"source": source, "calls": "".join(calls)}, "-Og")
    return {
        key: (np.fromfile(file, numpy_dtype(key[0].dtype))[shift:].reshape(expected.shape), expected)
        for key, (file, expected) in wanted.items()
    }


def _call(
    folder: Path, number: int, case: Case, kernel: Kernel, feeds: dict[str, np.ndarray], count: int, shift: int
) -> str:  # fmt: skip
    (region,) = fused(case).plan.regions
    constants = case.constants()
    stored = numpy_dtype(case.dtype)
    reads, names = [], []
    for k, value in enumerate(region.inputs):
        array = feeds[value.name] if value.name in feeds else constants[str(value.name)].astype(stored)
        before = shift if k == 0 else 0
        array = np.concatenate([np.zeros(before, array.dtype), array.ravel()])
        array.tofile(folder / f"x{number}_{k}")
        reads.append(f'auto x{k} = emulation::read<{_C_TYPES[case.dtype]}>("x{number}_{k}", {array.size});')
        names.append(f"x{k}.data() + {before}")
    _, every = launches(kernel, case.x)
    fitting = [(k, launch) for k, launch in enumerate(every) if launch.blocks]
    runs = []
    for k, launch in fitting:
        variant = kernel.variants[k]
        runs.append(
            _RUN % {
                "blocks": launch.blocks, "threads": variant.threads, "symbol": variant.symbol, "file": f"y{number}_{k}",
                **_grid(launch),
            }
        )  # fmt: skip
    n, h, w, _ = case.x
    first = fitting[0][1]
    return _CALL % {
        "reads": "\n    ".join(reads), "type": _C_TYPES[case.dtype], "count": count + shift, "shift": shift,
        "inputs": ", ".join(names),
        "numbers": ", ".join(map(str, (n, h, w, case.channels, *first.window))), "runs": "".join(runs), **_grid(first),
    }  # fmt: skip


def _grid(launch: Launch) -> dict[str, str]:
    words = [", ".join(map(str, launch.grid[k : k + 3])) for k in (0, 3, 6)]
    return dict(zip(("inner", "middle", "outer"), words, strict=True))
