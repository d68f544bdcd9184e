"""Small networks by every exporter of the package registries: attention found, launches, and left-over operators.

    python -m benchmarks cpu.exporters [NETWORK ...] [--files DIR] [--out FILE.json]

The exporters run in .venv-exporters (`make exporters`). Each file is optimized as it is, and float32 files once more
with --precision float16, and verified on the CPU; kernels are planned for sm_90 and not compiled. Launches are those of
the whole model, predicted, beside the fewest that any exporter's file of the network has. Exit code 1 where a file that
ONNX Runtime opens does not optimize.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
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

from benchmarks.support.exporters.networks import NETWORKS
from onnxopt import pipeline
from onnxopt.errors import OnnxoptError
from onnxopt.fusion import work
from onnxopt.graph.shapes import shapes
from onnxopt.pipeline import Options
from onnxopt.tools import text_table
from tests.support.fusing import compile_nothing

PYTHON = pathlib.Path(".venv-exporters/bin/python")
_ATTENTION = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedMultiHeadAttention"})
_KINDS = ("attention", "flash_attention")
_MINUTES = 20  # that writing a network may take


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
    left_over: dict[str, int] = dataclasses.field(default_factory=dict)


def write(names: list[str], folder: pathlib.Path) -> None:
    """Let the exporters write the networks."""
    if not PYTHON.exists():
        sys.exit(f"{PYTHON}: the exporters are not installed; run: make exporters")
    for name in names:
        print(f"exporting {name}", file=sys.stderr)
        command = [str(PYTHON), "-m", "benchmarks.support.exporters.write", name, str(folder)]
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
    for precision in ("", "float16") if float32 and "half" not in exporter else ("",):
        yield _optimized(file, Row(network, exporter, precision))


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
            artifact = pipeline.optimize(file, pathlib.Path(scratch) / "artifact", options)
        except OnnxoptError as error:
            return dataclasses.replace(row, failed=" ".join(str(error).split())[:300])
        seconds = time.perf_counter() - started
        model = ir.load(artifact.path / "model.onnx")
    counts = collections.Counter(node.op_type for node in model.graph if not node.domain.startswith("onnxopt"))
    sites = sum(len(kernel.sites) for kernel in artifact.manifest.kernels if kernel.kind in _KINDS)
    return dataclasses.replace(
        row, launches=work.launches(model, (), shapes.infer(model)), seconds=round(seconds, 1),
        attentions=sites + sum(counts[name] for name in _ATTENTION), verify=artifact.manifest.verify.status,
        left_over=dict(counts.most_common()),
    )  # fmt: skip


def report(rows: list[Row]) -> list[str]:
    """The table: a line a file, with how many times the fewest launches of its network it has."""
    fewest: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.launches is not None:
            key = (row.network, row.precision)
            fewest[key] = min(fewest.get(key, row.launches), row.launches)
    lines = []
    for row in rows:
        if row.launches is None:
            lines.append((row.network, row.exporter, row.precision, "", "", "", "", row.failed[:70]))
            continue
        times = row.launches / fewest[row.network, row.precision]
        found = f"{row.attentions} of {NETWORKS[row.network].attentions}"
        texts = (found, str(row.launches), f"{times:.2f}", f"{row.seconds:.1f}", row.verify)
        lines.append((row.network, row.exporter, row.precision, *texts))
    titles = ("network", "exporter", "precision", "attention", "launches", "of fewest", "s", "verify")
    return list(text_table.lines(titles, lines, left=("network", "exporter", "precision", "verify")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK", help="default: all")
    parser.add_argument("--files", type=pathlib.Path, help="a folder of files that were exported before")
    parser.add_argument("--out", type=pathlib.Path, help="write all figures there, as JSON")
    arguments: Any = parser.parse_args()
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
    print("\n".join(report(rows)))
    return int(any(row.failed and not row.failed.startswith(("the exporter", "ONNX Runtime")) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
