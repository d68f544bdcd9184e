"""One layer of a mixture of experts as transformers exports it, made, optimized and timed on the GPU machine.

    python -m benchmarks.models.mixtures [--out OUT.json]      about 40 s

Needs torch, and what the tests marked gpu need there. Outputs are compared with those of ONNX Runtime's CUDA provider
before anything is timed. ONNX Runtime reads back where the rows of each expert end, so it runs without a CUDA graph.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from benchmarks.support.gpu_timing import bound, session
from cases.experts import Case

CASES = {
    "32 experts of 2048 x 768, 4 chosen": Case(1, 32, 4, 2048, 768, "float16"),
    "8 experts of 2048 x 4096, 2 chosen": Case(1, 8, 2, 2048, 4096, "float16"),
}
TOKENS = (1, 16, 512)
_RUNS = 20


def measure(case: Case, folder: pathlib.Path) -> dict[str, Any]:
    """Milliseconds of ONNX Runtime and of onnxopt, with a CUDA graph and without."""
    import torch

    import onnxopt

    onnx.save(case.model(), folder / "model.onnx")
    onnxopt.optimize(folder / "model.onnx", folder / "made", archs=("native",), verify=False)
    library = str(next((folder / "made" / "lib").glob("libonnxopt_ops*.so")))
    optimized = str(folder / "made" / "model.onnx")
    rows: dict[str, Any] = {}
    for tokens in TOKENS:
        feeds = dataclasses.replace(case, tokens=tokens).feeds()
        inputs = {k: torch.from_numpy(v).cuda() for k, v in feeds.items()}
        row, expected = rows.setdefault(f"{tokens} tokens", {}), None
        for label, model, ops, graph in (
            ("ORT", str(folder / "model.onnx"), None, False),
            ("onnxopt", optimized, library, False),
            ("onnxopt, CUDA graph", optimized, library, True),
        ):
            y = torch.full_like(inputs["x"], float("nan"))
            try:
                run = bound(session(model, ops, "cuda", cuda_graph=graph), inputs, {"y": y})
                run()
                found = y.float().cpu().numpy()
                expected = found if expected is None else expected
                error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
                row[label] = round(_milliseconds(run), 3) if error < 2e-3 else f"differs by {error:.1e}"
            except Exception as error:  # noqa: BLE001 - the others are worth having
                row[label] = f"{type(error).__name__}: {error}"[:200]
    return rows


def _milliseconds(run: Callable[[], None]) -> float:
    times = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=None)
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = measure(case, pathlib.Path(folder))
        for tokens, row in rows[name].items():
            print(f"{name}, {tokens}: {row}", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
