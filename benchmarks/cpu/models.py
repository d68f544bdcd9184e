"""Every model of models/ before and after onnxopt, as median times, their ratio and the noise.

    python -m benchmarks cpu.models [NAME ...] [--seconds 6]

Each model is optimized without GPU kernels. The original, the artifact and the original once more run in turn in one
process. The noise band is the range of the ratio of the original to itself in the same rounds.
"""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from typing import Any

import models
import onnxopt
from benchmarks.support import cpu_timing as timing
from benchmarks.support.arguments import of_cpu
from models.reference import Reference


def measure(name: str, folder: pathlib.Path, seconds: float) -> dict[str, Any]:
    """Optimize, compare and time one model. Disagreement is recorded, errors are raised."""
    path, reference = models.path(name), Reference.of(name)
    artifact = folder / name
    made = onnxopt.optimize(path, artifact, archs=(), verify=False)
    library = artifact / "lib" / "libonnxopt_ops.so"
    sessions = {
        "before": timing.session(path),
        "after": timing.session(artifact / "model.onnx", library if library.exists() else None),
        "again": timing.session(path),
    }
    feeds = dict(reference.feeds)
    worst = reference.worst(sessions["after"].run(None, feeds))
    row = {
        "fused": sum(len(k.sites) for k in made.manifest.kernels),
        "of_limit": worst,
        "agrees": worst <= 1,
    }
    times = timing.in_turn({k: lambda s=s: s.run(None, feeds) for k, s in sessions.items()}, seconds)
    shutil.rmtree(artifact)
    return {
        **row,
        "before_ms": timing.p50(times["before"]),
        "after_ms": timing.p50(times["after"]),
        "ratio": timing.p50(times["before"]) / timing.p50(times["after"]),
        "ratio_band": timing.ratio_band(times["before"], times["after"]),
        "band_AA": timing.ratio_band(times["before"], times["again"]),
        "runs": len(times["before"]),
    }


def slower(row: dict[str, Any]) -> bool:
    """Whether the model became slower by more than noise: the whole band of the ratio lies below that of A/A."""
    return bool(row["ratio_band"][1] < min(1.0, row["band_AA"][0]))


def run(seconds: float, only: list[str]) -> dict[str, Any]:
    """Measure the models, print them as a table, write results/cpu/cpu_models.json."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in only or _default_names():
            try:
                rows[name] = measure(name, pathlib.Path(folder), seconds)
            except Exception as error:  # noqa: BLE001 - one model that breaks something must not hide the others
                rows[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(name, rows[name], flush=True)
    header = ["model", "fused", "before ms", "after ms", "ratio", "its band", "A/A band", "runs", "verdict"]
    print(timing.markdown(header, [_cells(k, v) for k, v in rows.items()]))
    if not only:
        print(timing.save("cpu_models", rows))
    return rows


def _default_names() -> list[str]:
    """All trained models, and the exported ones of base size in float32: CPUs are not where float16 models run."""
    exported = [n for n in models.names("exported") if "_tiny" not in n and "_fp16" not in n]
    return [*models.names("trained", runnable=True), *exported]


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return [name, *["-"] * 7, row["error"][:200]]
    bands = ["{:.3f}..{:.3f}".format(*row[k]) for k in ("ratio_band", "band_AA")]
    verdict = "DISAGREES" if not row["agrees"] else "slower" if slower(row) else "ok"
    times = [f"{row['before_ms']:.3f}", f"{row['after_ms']:.3f}", f"{row['ratio']:.3f}"]
    return [name, str(row["fused"]), *times, *bands, str(row["runs"]), verdict]


if __name__ == "__main__":
    arguments = of_cpu(__doc__, seconds=3.0)
    run(arguments.seconds, arguments.names)
