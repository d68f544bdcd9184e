"""Group norms on the CPU: launches as the library would make them, and the device code run by g++."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from pathlib import Path
from typing import cast

import numpy as np

from cases.group_norm import Case, fused
from cases.models import numpy_dtype
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.group_norm.entry_points import GroupNormVariant
from tests.support.emulation import emulated
from tests.support.emulation.library_programs import launch_program

HOPPER, AMPERE = (9, 132), (8, 108)  # compute capability's major number, multiprocessors
_ALIGNED = 256
_C_TYPES = {"float32": "float", "float16": "unsigned short", "bfloat16": "unsigned short"}


@dataclasses.dataclass(frozen=True)
class Launch:
    """Blocks of a launch, 0 where the entry point does not fit; bytes of scratch; what the parameters state."""

    blocks: int
    scratch: int
    slabs: int
    parts: int
    part_pixels: int


def launches(
    kernel: Kernel, samples: int, pixels: int, gpu: tuple[int, int] = HOPPER, aligned: int = _ALIGNED
) -> tuple[int, list[Launch]]:
    """The entry point that the library chooses for a call, and the launch of each."""
    row = {**kernel.program.to_json(), "variants": [dataclasses.asdict(v) for v in kernel.variants]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(row))
        file.flush()
        command = [launch_program("group_norm"), file.name, *map(str, (samples, pixels, *gpu, aligned))]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stdout)
    first, *rows = done.stdout.splitlines()
    return int(first), [Launch(*map(int, row.split())) for row in rows]


_MAIN = """
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
    %(runs)s
  }
"""
_RUN = """
    {
      std::memset(y.data(), 0xff, y.size() * sizeof(y[0]));
      std::vector<float> scratch(%(scratch)d / 4 + 1, 77.0f);
      const GroupNormParams p{{%(inputs)s}, y.data(), scratch.data(), %(numbers)s};
      %(launches)s
      emulation::write("%(file)s", y);
    }
"""


def results(folder: Path, cases: list[Case]) -> dict[tuple[Case, str], tuple[np.ndarray, np.ndarray]]:
    """For every case and entry point without a cluster that fits it: what the kernel writes, and the float64 result."""
    calls, kernels, wanted = [], {}, {}
    for number, case in enumerate(cases):
        (kernel,) = fused(case).kernels
        kernels[kernel.name] = kernel
        feeds = case.feeds()
        expected = case.expected(feeds)
        every = launches(kernel, case.x[0], case.x[1] * case.x[2])[1]
        variants = cast(tuple[GroupNormVariant, ...], kernel.variants)
        runs = [
            k for k, (v, launch) in enumerate(zip(variants, every, strict=True))
            if v.cluster == 1 and v.launch == 0 and launch.blocks
        ]  # fmt: skip
        calls.append(_call(folder, number, case, kernel, feeds, [(k, every[k]) for k in runs]))
        wanted |= {(case, variants[k].symbol): (folder / f"y{number}_{k}", expected) for k in runs}
    source = generate.generate(list(kernels.values()))
    emulated.run(folder, _MAIN % {"source": source, "calls": "".join(calls)}, "-Og")
    return {
        key: (np.fromfile(file, numpy_dtype(key[0].dtype)).reshape(expected.shape), expected)
        for key, (file, expected) in wanted.items()
    }


def _call(
    folder: Path, number: int, case: Case, kernel: Kernel, feeds: dict[str, np.ndarray], runs: list[tuple[int, Launch]]
) -> str:
    (region,) = fused(case).plan.regions
    arrays, stored = case.arrays(), numpy_dtype(case.dtype)
    reads, names, text = [], [], []
    for k, value in enumerate(region.inputs):
        array = feeds[value.name] if value.name in feeds else arrays[str(value.name)].astype(stored)
        array.tofile(folder / f"x{number}_{k}")
        reads.append(f'auto x{k} = emulation::read<{_C_TYPES[case.dtype]}>("x{number}_{k}", {array.size});')
        names.append(f"x{k}.data()")
    for k, launch in runs:
        variant = cast(GroupNormVariant, kernel.variants[k])
        symbols = [kernel.variants[k + n].symbol for n in range(2 if variant.layout == "split" else 1)]
        calls = [f"emulation::launch({launch.blocks}, {variant.threads}, [&] {{ {s}(p); }});" for s in symbols]
        numbers = (case.x[1] * case.x[2], launch.slabs, launch.parts, launch.part_pixels)
        text.append(
            _RUN % {
                "scratch": launch.scratch, "inputs": ", ".join(names), "numbers": ", ".join(map(str, numbers)),
                "launches": " ".join(calls), "file": f"y{number}_{k}",
            }
        )  # fmt: skip
    return _CALL % {
        "reads": "\n    ".join(reads), "type": _C_TYPES[case.dtype], "count": int(np.prod(case.x)),
        "runs": "".join(text),
    }  # fmt: skip
