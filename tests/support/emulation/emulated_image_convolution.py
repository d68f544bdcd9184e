"""Image convolutions on the CPU: launches as the library would make them, and the device code run by g++."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from cases.image_convolution import Case, fused
from cases.models import numpy_dtype
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from tests.support.emulation import emulated
from tests.support.emulation.library_programs import launch_program

_HOPPER = 227 << 10  # bytes of shared memory of a block
_UNITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned"}
_RESIDENT = 7  # blocks, so that each has several tiles


@dataclasses.dataclass(frozen=True)
class Launch:
    """Blocks of a launch, 0 where the entry point does not fit, and the numbers of its parameters behind y."""

    blocks: int
    numbers: tuple[int, ...]

    @property
    def plain(self) -> int:
        return self.numbers[8]


def launches(
    kernel: Kernel,
    case: Case,
    resident: int = _RESIDENT,
    aligned: int = 256,
    shared: int = _HOPPER,
    tf32: bool = True,
) -> tuple[int, list[Launch]]:
    """The entry point that the library chooses for a call, and the launch of each."""
    row = {**kernel.program.to_json(), "variants": [dataclasses.asdict(v) for v in kernel.variants]}
    n, _, h, w = case.x
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(row))
        file.flush()
        command = [
            launch_program("image_convolution"),
            file.name,
            *map(str, (n, h, w, resident, aligned, shared, int(tf32))),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stdout)
    first, *rows = done.stdout.splitlines()
    numbers = [tuple(map(int, r.split())) for r in rows]
    return int(first), [Launch(n[0], n[1:]) for n in numbers]


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
    std::vector<%(unit)s> y(%(count)d + 1);
    %(runs)s
  }
"""
_RUN = """
    std::memset(y.data(), 0xff, y.size() * sizeof(y[0]));
    {
      ImageConvolutionParams p{{%(inputs)s}, y.data() + %(shift)d, %(numbers)s, {%(of_row)s}, {%(of_image)s}};
      emulation::launch(%(blocks)d, %(threads)d, [&] { %(symbol)s(p); });
      emulation::write("%(file)s", y);
    }
"""


def results(
    folder: Path, cases: list[Case], every: bool = False, aligned: int = 256
) -> dict[tuple[Case, str], tuple[np.ndarray, np.ndarray]]:  # fmt: skip
    """For every case and entry point: what the kernel writes, and the result in float64.

    every: also with the entry points that `tune` measures. aligned: of the result, 2 or more.
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
        calls.append(_call(folder, number, case, kernel, feeds, expected.size, aligned))
        for k, variant in enumerate(kernel.variants):
            wanted[case, variant.symbol] = (folder / f"y{number}_{k}", expected)
    source = generate.generate(list(kernels.values()))
    emulated.run(folder, _MAIN % {"source": source, "calls": "".join(calls)}, "-Og")
    shift = int(aligned < 16)
    return {
        key: (np.fromfile(file, numpy_dtype(key[0].dtype))[shift:][: expected.size].reshape(expected.shape), expected)
        for key, (file, expected) in wanted.items()
    }


def _call(
    folder: Path, number: int, case: Case, kernel: Kernel, feeds: dict[str, np.ndarray], count: int, aligned: int
) -> str:  # fmt: skip
    (region,) = fused(case).plan.regions
    stored = numpy_dtype(case.dtype)
    constants = {k: a.astype(stored) for k, a in case.constants().items()} | case.of_front()
    reads, names = [], []
    for k, value in enumerate(region.inputs):
        array = feeds[value.name] if value.name in feeds else constants[str(value.name)]
        array.tofile(folder / f"x{number}_{k}")
        unit = _UNITS[array.itemsize]
        reads.append(f'auto x{k} = emulation::read<{unit}>("x{number}_{k}", {array.size});')
        names.append(f"x{k}.data()")
    runs = []
    for k, launch in enumerate(launches(kernel, case, aligned=aligned)[1]):
        assert launch.blocks
        text = [str(n) for n in launch.numbers]
        runs.append(
            _RUN % {
                "inputs": ", ".join(names), "shift": int(aligned < 16), "numbers": ", ".join(text[:9]),
                "of_row": ", ".join(text[9:12]), "of_image": ", ".join(text[12:15]), "blocks": launch.blocks,
                "threads": kernel.variants[k].threads, "symbol": kernel.variants[k].symbol, "file": f"y{number}_{k}",
            }
        )  # fmt: skip
    return _CALL % {
        "reads": "\n    ".join(reads),
        "count": count,
        "unit": _UNITS[stored.itemsize],
        "runs": "".join(runs),
    }
