"""Transformers that nothing was tuned for: exported, optimized and timed on the GPU machine, beside ORT and torch.

    python -m benchmarks.models.unseen_transformers NAME... [--modes reduce-overhead max-autotune] [--torch NAME...]
        [--out OUT.json]

Names: those of support/unseen_models.json, and of texts NAME_dynamic. Needs torch, transformers, onnxscript and what
the tests marked gpu need there (build/gpu-tests). Weights are random. Outputs are compared with those of ONNX
Runtime's CUDA provider before anything is timed; all run in CUDA graphs. Exit code 1 where an output differs or onnxopt
fails.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import gc
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import traceback
from typing import Any

from benchmarks.models.exports import compare
from benchmarks.support import skeletons
from benchmarks.support.gpu_timing import session
from benchmarks.support.unseen_models import MODELS, inputs_of, net_of

_RUNS, _ROUNDS = 40, 4


def export(name: str, folder: pathlib.Path) -> str:
    """Export and optimize one model; "" or why that failed."""
    import torch

    import onnxopt

    try:
        model = MODELS[name]
        given = {k: torch.from_numpy(v) for k, v in inputs_of(model).items()}
        sizes = {name: {0: "batch", 1: "tokens"} for name in given} if model.dynamic else None
        with torch.no_grad():
            torch.onnx.export(
                net_of(model), tuple(given.values()), str(folder / f"{name}.onnx"), dynamo=True, opset_version=20,
                input_names=list(given), dynamic_shapes=sizes, verbose=False,
            )  # fmt: skip
        onnxopt.optimize(folder / f"{name}.onnx", folder / name, archs=("sm_90",), verify=False)
    except Exception:  # noqa: BLE001 - the other models are worth having
        return traceback.format_exc()[-600:]
    return ""


def measure(name: str, folder: pathlib.Path) -> None:
    """Write to NAME.json the milliseconds of ONNX Runtime and of onnxopt, after each, as that may end the process."""
    harness = skeletons.harness()
    options = json.loads((folder / name / "providers" / "cuda.json").read_text())["provider_options"]
    options = {k: v for k, v in options.items() if k not in ("enable_cuda_graph", "do_copy_in_default_stream")}
    forms: dict[str, tuple[pathlib.Path, str | None, dict[str, str]]] = {
        "ORT": (folder / f"{name}.onnx", None, {}),
        "onnxopt": (folder / name / "model.onnx", str(folder / name / "lib" / "libonnxopt_ops.so"), options),
    }
    row: dict[str, Any] = {}
    expected, given = None, inputs_of(MODELS[name])
    for label, (path, library, settings) in forms.items():
        row[label] = "ended the process"
        _row(name, folder).write_text(json.dumps(row))
        try:
            plain = session(str(path), library, "cuda", options=settings).run(None, given)[0]
            expected = plain if expected is None else expected
            check = compare(plain, expected)
            row |= {f"{label} agrees": check["agrees"], f"{label} cosine": round(check["cosine"], 7)}
            bound = harness.Bound(session(str(path), library, "cuda", cuda_graph=True, options=settings), given)
            for _ in range(3):
                bound()
            row[label] = round(min(harness.milliseconds(bound, _RUNS, repeats=1) for _ in range(_ROUNDS)), 4)
        except Exception as error:  # noqa: BLE001
            row[label] = f"{type(error).__name__}: {error}"[:300]
        bound = None
        gc.collect()
        _row(name, folder).write_text(json.dumps(row))


def _row(name: str, folder: pathlib.Path) -> pathlib.Path:
    return folder / f"{name}.json"


def torch_milliseconds(name: str, mode: str) -> float | str:
    """Of torch.compile in a mode; or why that failed."""
    import torch

    try:
        model = MODELS[name]
        given = [torch.from_numpy(v).cuda() for v in inputs_of(model).values()]
        with torch.inference_mode():
            run = torch.compile(net_of(model).cuda(), mode=mode, dynamic=False)
            for _ in range(4):
                run(*given)
            torch.cuda.synchronize()
            times = [skeletons.harness().milliseconds(lambda: run(*given), _RUNS, repeats=1) for _ in range(_ROUNDS)]
        return round(min(times), 4)
    except Exception:  # noqa: BLE001
        return traceback.format_exc()[-300:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=list(MODELS), metavar="NAME")
    parser.add_argument("--modes", nargs="*", default=["reduce-overhead", "max-autotune"])
    parser.add_argument("--torch", nargs="*", default=[], help="the names that torch compiles too; all by default")
    parser.add_argument("--jobs", type=int, default=8, help="models that are exported at once")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {name: {} for name in args.names}
    with tempfile.TemporaryDirectory() as place, _pool(args.jobs) as pool:
        folder = pathlib.Path(place)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{place}/inductor"
        static = [name for name in args.torch or args.names if not MODELS[name].dynamic]
        compiled = [pool.submit(torch_milliseconds, name, mode) for mode in args.modes for name in static]
        exported = {name: pool.submit(export, name, folder) for name in args.names}
        failed = {name: done.result() for name, done in exported.items()}
        concurrent.futures.wait(compiled)  # for the cache alone: nothing else runs while models are timed
        for name in args.names:
            if failed[name]:
                rows[name]["failed"] = failed[name]
                continue
            with _pool() as worker:
                with contextlib.suppress(concurrent.futures.BrokenExecutor):
                    worker.submit(measure, name, folder).result()
                rows[name] |= json.loads(_row(name, folder).read_text())
            print(name, rows[name], flush=True)
            _keep(args.out, rows)
        for mode in args.modes:
            for name in static:
                with _pool() as worker:
                    rows[name][f"torch.compile {mode}"] = worker.submit(torch_milliseconds, name, mode).result()
                print(name, mode, rows[name][f"torch.compile {mode}"], flush=True)
                _keep(args.out, rows)
    wrong = [name for name, row in rows.items() if row.get("onnxopt agrees") is not True]
    print(f"{len(rows) - len(wrong)} of {len(rows)} agree" + (f"; not {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


def _pool(processes: int = 1) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))


def _keep(out: pathlib.Path | None, rows: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
