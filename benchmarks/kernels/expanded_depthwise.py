"""Depthwise convolutions behind a 1x1 convolution: time as one kernel and as two, after a check with float64.

    python -m benchmarks.kernels.expanded_depthwise prepare DIR --arch sm_90 [--sweep]     on any machine, without a GPU
    python -m benchmarks.kernels.expanded_depthwise run DIR --out FILE [--seconds N]

All run as in a session, through the library. apart: the same graph, where the 1x1 convolution and its activation are a
kernel of cuDNN or cuBLASLt. copy: of the narrow input and the result, read and written once. together: one kernel, also
where the rule of kinds/depthwise/expanded.py would keep two ("rule" says what it would do). `--sweep` also compiles and
times other tiles.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import onnx

from benchmarks.cases.expanded_depthwise import CASES, ExpandedCase
from benchmarks.kernels import depthwise
from benchmarks.kernels.scan import calling
from benchmarks.support.arguments import main_over_cases, named
from benchmarks.support.gpu_timing import all_of, copy_microseconds
from tests.support.wrong_bodies import with_wrong_bodies

_LABELS = ("together", "apart", "copy", "MB", "rule")


def prepare(folder: pathlib.Path, arch: str, sweep: bool, only: str) -> None:
    """Write every case's models with their kernels' calls, and one library."""
    import onnx_ir as ir

    from benchmarks.support.collection import Collection, renamed
    from benchmarks.support.fusing import fuse, outlined
    from onnxopt.kinds.depthwise import expanded
    from onnxopt.kinds.depthwise.kind import DepthwiseKind

    folder.mkdir(parents=True)
    collection = Collection()
    tiles: dict[str, dict[str, str]] = {}  # by case: kernels with another tile
    rules: dict[str, bool] = {}
    for case in named(CASES, only):
        model = ir.serde.deserialize_model(case.model())
        rules[case.name] = len(fuse(model).regions) == 1
        with mock.patch.object(expanded, "pays", return_value=True):
            (kernel,) = outlined(model, fuse(model))
        name = collection.add(kernel)
        onnx.save(calling(with_wrong_bodies(ir.to_proto(model)), name), folder / f"{case.name}.together.onnx")
        with mock.patch.object(DepthwiseKind, "find_early", return_value=[]):
            model = ir.serde.deserialize_model(case.model())
            names = {other.name: collection.add(other) for other in outlined(model, fuse(model))}
            onnx.save(renamed(ir.to_proto(model), names), folder / f"{case.name}.apart.onnx")
        others = list(kernel.kind.alternatives(kernel)) if sweep and case.is_swept else []
        for variant in others:
            label = variant.symbol.rsplit("_", 1)[1]
            of_tile = f"{kernel.name}_by_{label}"
            moved = dataclasses.replace(variant, symbol=f"{of_tile}_entry")
            collection.kernels[of_tile] = dataclasses.replace(kernel, name=of_tile, variants=(moved,))
            tiles.setdefault(case.name, {})[label] = of_tile
        print(case.name, rules[case.name], *(v.symbol.rsplit("_", 1)[1] for v in (*kernel.variants, *others)))
    (folder / "tiles.json").write_text(json.dumps({"tiles": tiles, "rules": rules}))
    collection.write_library(folder, [arch])
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"{len(collection.kernels)} kernels, {size / 1e3:.0f} KB")


def measure(case: ExpandedCase, folder: pathlib.Path) -> dict[str, Any]:
    """Everything about one case; what fails is recorded as text beside what worked."""
    measured = depthwise.Measured(case, folder)  # type: ignore[arg-type]
    known = json.loads((folder / "tiles.json").read_text())
    row: dict[str, Any] = {"MB": round(case.bytes() / 1e6, 2), "rule": known["rules"][case.name]}
    steps: dict[str, Callable[[], float]] = {
        "together": lambda: measured.time(".together"),
        "apart": lambda: measured.time(".apart"),
        "copy": lambda: copy_microseconds(case.bytes(), len(measured.inputs)),
    }
    for label, kernel in known["tiles"].get(case.name, {}).items():
        whole = onnx.load(folder / f"{case.name}.together.onnx")
        onnx.save(calling(whole, kernel), folder / f"{case.name}.{label}.onnx")
        steps[label] = lambda label=label: measured.time(f".{label}")  # type: ignore[misc]
    return row | all_of(steps)


def table(rows: dict[str, Any]) -> str:
    """The rows as text, times in us."""
    lines = [f"{'case':40} {'rule':>5} {'MB':>7} {'copy':>7} {'apart':>7} {'together':>8}  other tiles, fastest first"]
    for name, row in rows.items():
        others = {k: v for k, v in row.items() if k not in _LABELS and isinstance(v, float)}
        said = ", ".join(f"{k} {v}" for k, v in sorted(others.items(), key=lambda kv: kv[1]))
        numbers = " ".join(f"{str(row[k])[:60]:>7}" for k in ("MB", "copy", "apart", "together"))
        lines.append(f"{name:40} {row['rule']!s:>5} {numbers}  {said}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main_over_cases(__doc__, CASES, prepare, measure, table))
