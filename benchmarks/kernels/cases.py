"""The cases of a kind, each fused beside ONNX Runtime's own nodes, after a comparison with float64.

    python -m benchmarks kernels.cases pool [--row TEXT] [--every] [--out FILE]     on the GPU machine: onnxopt, torch

Tables of cases/ are of sizes that tests want; rows for GPUs have those of networks. --every: each entry point that a
row names is also timed alone.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch

from benchmarks.support import gpu_timing
from cases.table import Row, Table
from cases.tables import TABLES
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import Kernel
from onnxopt.runtime import sessions
from tests.conftest import device_arch
from tests.support import case_runs

Arrays = dict[str, np.ndarray]
_SETS = 8  # of buffers in rotation


def _on_device(array: np.ndarray) -> torch.Tensor:
    if array.dtype == np.dtype("bfloat16"):
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def _microseconds(model: pathlib.Path, library: str | None, feeds: Arrays, outputs: Arrays) -> float:
    """Of a run over buffers in rotation, in a CUDA graph."""
    stream = torch.cuda.Stream()
    session = gpu_timing.session(str(model), library, "cuda", stream=stream)
    sets = [tuple({k: _on_device(v) for k, v in of.items()} for of in (feeds, outputs)) for _ in range(_SETS)]
    return gpu_timing.microseconds_in_graph([gpu_timing.bound(session, *of, wait=False) for of in sets], stream)


def _without_graph(model: pathlib.Path, feeds: Arrays, outputs: Arrays, runs: int = 50) -> float:
    """Of a run of ONNX Runtime's nodes by the host's clock, where one of them runs on the CPU and no graph takes it."""
    session = gpu_timing.session(str(model), None, "cuda")
    run = gpu_timing.bound(session, *({k: _on_device(v) for k, v in of.items()} for of in (feeds, outputs)))
    for _ in range(5):
        run()
    start = time.perf_counter()
    for _ in range(runs):
        run()
    return (time.perf_counter() - start) / runs * 1e6


def _library(folder: pathlib.Path, kernels: Sequence[Kernel], fatbin: bytes | None) -> pathlib.Path:
    return write_library(folder, kernels_json.to_json(kernels, fatbin), fatbin)


def _measured(table: Table, row: Row, case: Any, model: pathlib.Path, libraries: dict[str, pathlib.Path]) -> Any:
    """Times by name: of ONNX Runtime's nodes, and of each library that takes the case."""
    plain = model.with_suffix(".plain.onnx")
    onnx.save(case.model(), plain)
    feeds = row.feeds(case)
    times: dict[str, Any] = {}
    for name, library in libraries.items():
        try:
            session = sessions.open_session(model, provider=sessions.CUDA, library=library)
            outputs = sessions.run(session, feeds)
        except sessions.RunError as error:
            times[name] = str(error)
            continue
        with np.errstate(all="ignore"):
            error = table.worst(case, outputs, case.expected(feeds))
        if not error <= 1 and name == "ours":
            return {"ours": f"{error:.3g} of the limit away from what is right"}
        steps = {name: functools.partial(_microseconds, model, str(library), feeds, outputs)}
        if name == "ours":
            steps["onnxruntime"] = functools.partial(_microseconds, plain, None, feeds, outputs)
        times |= gpu_timing.all_of(steps)
        if isinstance(times.get("onnxruntime"), str):
            del times["onnxruntime"]
            slow = functools.partial(_without_graph, plain, feeds, outputs)
            times |= gpu_timing.all_of({"onnxruntime, no CUDA graph": slow})
    return times


def measure(table: Table, row: Row, folder: pathlib.Path, every: bool) -> dict[str, Any]:
    """Microseconds of every case of a row by name."""
    runs = case_runs.of_row(table, row)
    own = [kernel for kernel in runs.kernels if generate.own_text(kernel)]
    fatbin = nvrtc.compile_cuda(generate.generate(own), [device_arch()]) if own else None
    libraries = {"ours": _library(folder / "ours", runs.kernels, fatbin)}
    for first in row.entry_points if every and table.single else ():
        libraries[first] = _library(folder / first, runs.only(first), fatbin)
    rows = {}
    for number, (proto, cases) in enumerate(runs.models):
        path = folder / f"model{number}.onnx"
        onnx.save(proto, path)
        for case in cases:
            rows[str(case)] = _measured(table, row, case, path, libraries)
            print(f"{json.dumps(rows[str(case)])}  {case}", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted({table.kind for table in TABLES}))
    parser.add_argument("--row", default="", help="of the rows only those with this in their names")
    parser.add_argument("--every", action="store_true", help="each entry point that a row names is also timed alone")
    parser.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every row")
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    for name, table, row in case_runs.rows(TABLES):
        if table.kind != arguments.kind or arguments.row not in row.name or row.changed or row.without_products:
            continue
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = measure(table, row, pathlib.Path(folder), arguments.every)
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
