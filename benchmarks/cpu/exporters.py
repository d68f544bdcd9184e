"""Small networks by every exporter of the package registries: attention found, launches, and left-over operators.

    python -m benchmarks cpu.exporters [NETWORK ...] [--files DIR] [--out FILE.json] [--recorded FILE.json]

The exporters run in .venv-exporters and .venv-paddle (`make exporters`). Each file is optimized as it is, and float32
files once more with --precision float16, and verified on the CPU; kernels are planned for sm_90 and not compiled.
Launches are those of the whole model, predicted, beside the fewest that any exporter's file of the network has in the
same dtype. --recorded prints the tables of figures that --out wrote. Exit code 1 where a file that ONNX Runtime opens
does not optimize.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx_ir.passes.common import InlinePass

from benchmarks.support.exporters.networks import NETWORKS
from onnxopt import text_table
from onnxopt.errors import OnnxoptError
from onnxopt.fusion import cost, eligibility, index_ops
from onnxopt.graph.shapes import shapes
from onnxopt.pipeline import flow
from onnxopt.pipeline.options import Options
from tests.support.fusing import compile_nothing

PYTHON, PADDLE = (pathlib.Path(f".venv-{name}/bin/python") for name in ("exporters", "paddle"))
_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention"})
_KINDS = ("attention", "flash_attention")
_MINUTES = 20  # that writing a network may take
_CLOSE = 1.1  # times the fewest launches, which exporters' files should not exceed


@dataclasses.dataclass(frozen=True)
class Row:
    """One file, optimized. launches, attentions: None where it failed, as `failed` says."""

    network: str
    exporter: str
    precision: str
    launches: int | None = None
    attentions: int | None = None
    seconds: float = 0.0
    verify: str = ""
    failed: str = ""
    left_over: dict[str, int] = dataclasses.field(default_factory=dict, hash=False)


def write(names: list[str], folder: pathlib.Path) -> None:
    """Let the exporters write the networks."""
    for name in names:
        python = PADDLE if NETWORKS[name].framework == "paddle" else PYTHON
        if not python.exists():
            sys.exit(f"{python}: the exporters are not installed; run: make exporters")
        print(f"exporting {name}", file=sys.stderr)
        command = [str(python), "-m", "benchmarks.support.exporters.write", name, str(folder)]
        subprocess.run(command, check=True, timeout=60 * _MINUTES, capture_output=True)


def rows_of(file: pathlib.Path) -> Iterator[Row]:
    """The rows of one file: as it is, and with float16 where it is a float32 model."""
    network, exporter = file.name.split(".")[:2]
    if file.suffix == ".failed":
        yield Row(network, exporter, "", failed=f"the exporter: {file.read_text('utf-8').strip()}")
        return
    if refused := _refused(file):
        yield Row(network, exporter, "", failed=f"ONNX Runtime: {refused}")
        return
    float32 = any(tensor.data_type == onnx.TensorProto.FLOAT for tensor in onnx.load(file).graph.initializer)
    row = Row(network, exporter, "")
    yield _optimized(file, row)
    if float32 and not is_half(row):
        yield _optimized(file, dataclasses.replace(row, precision="float16"))


def _refused(file: pathlib.Path) -> str:
    try:
        ort.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no common class
        return " ".join(str(error).split())[:160]
    return ""


def _optimized(file: pathlib.Path, row: Row) -> Row:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        compile_nothing(patch)
        started = time.perf_counter()
        try:
            options = Options(archs=("sm_90",), precision=row.precision or None)
            artifact = flow.optimize(file, pathlib.Path(scratch) / "artifact", options)
        except OnnxoptError as error:
            return dataclasses.replace(row, failed=" ".join(str(error).split())[:300])
        seconds = time.perf_counter() - started
        model = ir.load(artifact.path / "model.onnx")
    counts = collections.Counter(node.op_type for node in model.graph if not node.domain.startswith("onnxopt"))
    sites = sum(len(kernel.sites) for kernel in artifact.manifest.kernels if kernel.kind in _KINDS)
    return dataclasses.replace(
        row, launches=launches(model), seconds=round(seconds, 1),
        attentions=sites + sum(counts[name] for name in _ATTENTION), verify=artifact.manifest.verify.status,
        left_over=dict(counts.most_common()),
    )  # fmt: skip


def launches(model: ir.Model) -> int:
    """The kernels that a run of an artifact's model launches: its calls, and nodes that are not on the host or views.

    What is on the host follows from shapes, which are those of the functions' bodies.
    """
    inlined = InlinePass()(model.clone()).model
    host = {value.name for value in eligibility.host_values([inlined.graph], shapes.infer(inlined))}
    count = 0
    for node in model.graph:
        is_free = index_ops.is_view(node) or cost.is_free(node) or all(v.name in host for v in node.outputs)
        count += node.op_identifier() in model.functions or not is_free
    return count


def is_half(row: Row) -> bool:
    """Whether the exporter writes float16, which is not compared with a float32 file."""
    return "half" in row.exporter


def dtype(row: Row) -> str:
    """What the exporter writes: the dtype of values, and of weights where that is another one."""
    floats = "float16" if is_half(row) else "float32"
    return f"{floats}, int4" if "int4" in row.exporter else floats


def of_fewest(rows: list[Row]) -> dict[Row, float]:
    """The launches of every row that has them, over the fewest of its network, dtype of the file and precision."""
    fewest: dict[tuple[str, str, str], int] = {}
    counted = [(row, (row.network, dtype(row), row.precision), row.launches) for row in rows]
    for _, key, count in counted:
        if count is not None:
            fewest[key] = min(fewest.get(key, count), count)
    return {row: count / fewest[key] for row, key, count in counted if count is not None}


def report(rows: list[Row]) -> list[str]:
    """The table: a line a file, with how many times the fewest launches of its network it has."""
    times = of_fewest(rows)
    lines = []
    for row in rows:
        if row not in times:
            lines.append((row.network, row.exporter, dtype(row), row.precision, "", "", "", "", row.failed[:70]))
            continue
        found = f"{row.attentions} of {NETWORKS[row.network].attentions}"
        texts = (found, str(row.launches), f"{times[row]:.2f}", f"{row.seconds:.1f}", row.verify)
        lines.append((row.network, row.exporter, dtype(row), row.precision, *texts))
    titles = ("network", "exporter", "file", "precision", "attention", "launches", "of fewest", "s", "verify")
    return list(text_table.lines(titles, lines, left=("network", "exporter", "file", "precision", "verify")))


def summary(rows: list[Row]) -> list[str]:
    """The table of exporters: what each one's files have together."""
    times = of_fewest(rows)
    lines = []
    for exporter in dict.fromkeys(row.exporter for row in rows):
        own = [row for row in rows if row.exporter == exporter]
        done = [row for row in own if row in times]
        found, there = sum(row.attentions or 0 for row in done), sum(NETWORKS[row.network].attentions for row in done)
        ratios = sorted(times[row] for row in done)
        texts = ("", "") if not ratios else (f"{statistics.median(ratios):.2f}", f"{ratios[-1]:.2f}")
        above, failed = sum(ratio > _CLOSE for ratio in ratios), len(own) - len(done)
        lines.append((exporter, str(len(done)), f"{found} of {there}", *texts, str(above), str(failed)))
    titles = ("exporter", "rows", "attention", "median of fewest", "largest", f"above {_CLOSE}", "failed")
    return list(text_table.lines(titles, lines, left=("exporter",)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK", help="default: all")
    parser.add_argument("--files", type=pathlib.Path, help="a folder of files that were exported before")
    parser.add_argument("--out", type=pathlib.Path, help="write all figures there, as JSON")
    parser.add_argument("--recorded", type=pathlib.Path, help="print the tables of such a JSON, and run nothing")
    arguments: Any = parser.parse_args()
    if arguments.recorded is not None:
        recorded = [Row(**row) for row in json.loads(arguments.recorded.read_text("utf-8"))]
        print("\n".join((*report(recorded), "", *summary(recorded))))
        return 0
    names = arguments.networks or list(NETWORKS)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.files or pathlib.Path(scratch)
        if arguments.files is None:
            write(names, folder)
        files = sorted(
            p for p in folder.iterdir() if p.suffix in (".onnx", ".failed") and p.name.split(".")[0] in names
        )
        rows = [row for file in files for row in rows_of(file)]
    if arguments.out is not None:
        text = json.dumps([dataclasses.asdict(row) for row in rows], indent=1)
        arguments.out.write_text(text + "\n", "utf-8")
    print("\n".join((*report(rows), "", *summary(rows))))
    return int(any(row.failed and not row.failed.startswith(("the exporter", "ONNX Runtime")) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
