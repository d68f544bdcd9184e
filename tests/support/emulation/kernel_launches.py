"""Kernels of cases on the CPU: launches as the library would make them, and the device code run by g++."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cases.models import Fused, numpy_dtype
from cases.table import Row
from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from tests.support.emulation import emulated
from tests.support.emulation.library_programs import launch_program

_ALIGNED = 256
_COMPUTE_LONG = ("flash_attention", "image_convolution")  # kinds whose cases run longer than g++ compiles


@dataclasses.dataclass(frozen=True)
class Gpu:
    """major: of the compute capability. shared: bytes of shared memory that a block can have. resident: blocks that run
    at once, few, so that each has several tiles. tf32: whether float32 products may round their operands."""

    major: int = 9
    multiprocessors: int = 132
    shared: int = 227 << 10
    resident: int = 7
    tf32: bool = True


HOPPER, AMPERE = Gpu(), Gpu(8, 108, 163 << 10)


@dataclasses.dataclass(frozen=True)
class Launch:
    """Blocks of a launch, 0 where the entry point does not fit; bytes of scratch; the bytes of the parameters."""

    blocks: int
    scratch: int
    parameters: bytes


def launches(
    kernel: Kernel, sizes: Sequence[int], gpu: Gpu = HOPPER, aligned: int = _ALIGNED, constants: int = 0
) -> tuple[int, list[Launch]]:
    """The entry point that the library chooses for a call, and the launch of each. ValueError where it refuses them.

    sizes: of the call, as kernel_launches.cc reads them. aligned: bytes that addresses are multiples of,
    but for those of the constants, a bit an input.
    """
    row = {**kernel.program.to_json(), "variants": [v.to_json() for v in kernel.variants]}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(row))
        file.flush()
        numbers = (aligned, constants, gpu.major, gpu.multiprocessors, gpu.shared, gpu.resident, int(gpu.tf32), *sizes)
        command = [launch_program(), kernel.kind.name, file.name, *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stdout)
    first, *rows = done.stdout.splitlines()
    return int(first), [Launch(int(b), int(s), bytes.fromhex(p)) for b, s, p in (row.split() for row in rows)]


def chosen(kernel: Kernel, sizes: Sequence[int], gpu: Gpu = HOPPER, aligned: int = _ALIGNED) -> str:
    """The entry point that the library chooses, without the kernel's name; nothing where none fits."""
    first, every = launches(kernel, sizes, gpu, aligned)
    return name_of(kernel, first) if first < len(every) else ""


def name_of(kernel: Kernel, k: int) -> str:
    """An entry point's name without the kernel's."""
    return kernel.variants[k].symbol.removeprefix(f"{kernel.name}_")


_MAIN = """
#include "kernel_launches.h"
#include "matrix_words.h"
%(source)s
using namespace onnxopt;
int main() {
%(calls)s
}
"""
_CALL = """
  {
    emulation::Call call("%(name)s", {%(inputs)s}, %(result)d, %(aligned)d, %(constants)d);
    %(runs)s
  }
"""
_RUN = """
    {
      const auto p = call.parameters<%(type)s>(%(number)d, %(scratch)d);
      %(launches)s
      call.keep(%(number)d);
    }
"""


def results(
    folder: Path, row: Row, fused: Callable[[Any], Fused], entry: Callable[[Kernel, int], str] | None = None
) -> dict[tuple[Any, str], tuple[np.ndarray, np.ndarray]]:
    """For every case of a row and entry point that fits it: what the kernel writes, and the result in float64.

    entry: what is called in place of an entry point. Entry points of clusters and warpgroups are left out: nothing here
    stands in for these. Where several are launched one after the other, the result is that of the first.
    """
    entry = entry or (lambda kernel, k: kernel.variants[k].symbol)
    calls, kernels, files = [], dict[str, Kernel](), dict[tuple[Any, str], tuple[Path, np.ndarray]]()
    for number, case in enumerate(row.cases):
        found = fused(case)
        (kernel,) = found.kernels
        if row.every:
            every = (*kernel.variants, *kernel.kind.alternatives(kernel))
            kernel = dataclasses.replace(kernel, variants=tuple({v.symbol: v for v in every}.values()))
        kernels[kernel.name] = kernel
        feeds = row.feeds(case)
        values = {**(case.computed() if hasattr(case, "computed") else {}), **feeds}
        expected = case.expected(feeds)
        constants = _constants(found)
        every = launches(kernel, case.sizes(), aligned=row.aligned, constants=constants)[1]
        runs = {k: launch for k, launch in enumerate(every) if launch.blocks and _is_first(kernel, k)}
        for k, launch in runs.items():
            (folder / f"p{number}_{k}").write_bytes(launch.parameters)
        calls.append(
            _CALL % {
                "name": number, "inputs": ", ".join(map(str, _write_inputs(folder, number, found, values))),
                "result": expected.size * numpy_dtype(case.stored).itemsize, "aligned": row.aligned,
                "constants": constants,
                "runs": "".join(_run(kernel, k, launch, entry) for k, launch in runs.items()),
            }
        )  # fmt: skip
        files |= {(case, name_of(kernel, k)): (folder / f"y{number}_{k}", expected) for k in runs}
    source = generate.generate(list(kernels.values()))
    optimization = "-Og" if kernel.kind.name in _COMPUTE_LONG else "-O0"
    emulated.run(folder, _MAIN % {"source": source, "calls": "".join(calls)}, optimization)
    return {
        key: (np.fromfile(file, numpy_dtype(key[0].stored)).reshape(expected.shape), expected)
        for key, (file, expected) in files.items()
    }


def _is_first(kernel: Kernel, k: int) -> bool:
    """Whether the CPU can run an entry point, and it is the first of those that are launched one after the other."""
    variant = kernel.variants[k]
    return (
        getattr(variant, "cluster", 1) == 1
        and getattr(variant, "launch", 0) == 0
        and getattr(variant, "warpgroups", None) is None
    )


def _constants(found: Fused) -> int:
    """A bit for each of a region's inputs that is a constant."""
    (region,) = found.plan.regions
    return sum(1 << k for k, value in enumerate(region.inputs) if value.const_value is not None)


def _write_inputs(folder: Path, number: int, found: Fused, values: Mapping[str, np.ndarray]) -> list[int]:
    """Write a region's inputs into files; returns their bytes."""
    (region,) = found.plan.regions
    sizes = []
    for k, value in enumerate(region.inputs):
        array = values[str(value.name)] if value.const_value is None else value.const_value.numpy()
        array.tofile(folder / f"x{number}_{k}")
        sizes.append(array.nbytes)
    return sizes


def _run(kernel: Kernel, k: int, launch: Launch, entry: Callable[[Kernel, int], str]) -> str:
    """Launches of entry point k and of those that follow it."""
    passes = [k]
    while passes[-1] + 1 < len(kernel.variants) and getattr(kernel.variants[passes[-1] + 1], "launch", 0) > 0:
        passes.append(passes[-1] + 1)
    text = " ".join(
        f"emulation::launch({launch.blocks}, {kernel.variants[n].threads}, [&] {{ {entry(kernel, n)}(p); }});"
        for n in passes
    )
    params = f"{''.join(word.title() for word in kernel.kind.name.split('_'))}Params"
    return _RUN % {"type": params, "number": k, "scratch": launch.scratch, "launches": text}
