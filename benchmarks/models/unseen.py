"""Networks of timm that nothing was tuned for: exported, optimized and timed on the GPU machine, beside ONNX Runtime.

    python -m benchmarks.models.unseen NAME... [--batch 16] [--without KIND...] [--out OUT.json]

Needs torch, timm, onnxscript and what the tests marked gpu need there (build/gpu-tests). Weights are random; statistics
and biases of BatchNormalization are drawn, as trained models have them. Outputs are compared with those of ONNX
Runtime's CUDA provider before anything is timed. --without: also optimized without one of these kinds of kernels, to
see what the kind gains. Exit code 1 where an output differs or onnxopt fails.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import gc
import json
import multiprocessing
import pathlib
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.models.exports import compare
from benchmarks.support import skeletons
from benchmarks.support.gpu_timing import session

NAMES = (
    "mobilenetv2_100", "mobilenetv3_large_100", "densenet121", "resnext50_32x4d", "regnety_008", "inception_v3",
    "ghostnet_100", "tf_efficientnetv2_b0",
)  # fmt: skip
_PAIR = {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
_SIDE, _RUNS = 224, 30


def export(name: str, folder: pathlib.Path, batch: int, without: Sequence[str]) -> str:
    """Export and optimize one network, also without each of these kinds; "" or why that failed."""
    import timm
    import torch

    import onnxopt
    from onnxopt import kinds
    from onnxopt.pipeline import fused

    try:
        torch.manual_seed(0)
        net = timm.create_model(name, pretrained=False).eval()
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.7, 1.3)
                module.bias.data.normal_(0, 0.1)
        x = torch.randn(batch, 3, _SIDE, _SIDE, dtype=torch.float16)
        torch.onnx.export(net.half(), (x,), str(folder / f"{name}.onnx"), dynamo=True, opset_version=20, verbose=False)
        for kind in ("", *without):
            with mock.patch.object(fused, "KINDS", tuple(one for one in kinds.KINDS if one.name != kind)):
                onnxopt.optimize(folder / f"{name}.onnx", folder / f"{name}{kind}", archs=("sm_90",), verify=False)
    except Exception:  # noqa: BLE001 - the other networks are worth having
        return traceback.format_exc()[-600:]
    return ""


def measure(name: str, folder: pathlib.Path, batch: int, without: Sequence[str]) -> None:
    """Write to NAME.json the milliseconds of ONNX Runtime, of onnxopt, and of ONNX Runtime with its options for
    convolutions, then of onnxopt without each of these kinds; CUDA graphs. It is written after each, as ONNX
    Runtime may end the process.
    """
    harness = skeletons.harness()
    options = json.loads((folder / name / "providers" / "cuda.json").read_text())["provider_options"]
    options = {k: v for k, v in options.items() if k not in ("enable_cuda_graph", "do_copy_in_default_stream")}
    exported = str(folder / f"{name}.onnx")
    forms: dict[str, tuple[str, str | None, dict[str, str]]] = {
        "ORT": (exported, None, {}),
        "onnxopt": _artifact(folder / name, options),
        "ORT, both options": (exported, None, _PAIR),
        **{f"without {kind}": _artifact(folder / f"{name}{kind}", options) for kind in without},
    }
    x = np.random.default_rng(1).standard_normal((batch, 3, _SIDE, _SIDE), np.float32).astype(np.float16)
    row: dict[str, Any] = {}
    expected = None
    for label, (model, library, settings) in forms.items():
        row[label] = "ended the process"
        _row(name, folder).write_text(json.dumps(row))
        try:
            run = session(model, library, "cuda", cuda_graph=True, options=settings)
            bound = harness.Bound(run, {run.get_inputs()[0].name: x})
            bound()
            found = bound.outputs[0].numpy()
            expected = found if expected is None else expected
            row[f"{label} agrees"] = compare(found, expected)["agrees"]
            row[label] = round(harness.milliseconds(bound, _RUNS), 3)
        except Exception as error:  # noqa: BLE001
            row[label] = f"{type(error).__name__}: {error}"[:300]
        run = bound = None
        gc.collect()
        _row(name, folder).write_text(json.dumps(row))


def _artifact(folder: pathlib.Path, options: dict[str, str]) -> tuple[str, str, dict[str, str]]:
    return str(folder / "model.onnx"), str(folder / "lib" / "libonnxopt_ops.so"), options


def _row(name: str, folder: pathlib.Path) -> pathlib.Path:
    return folder / f"{name}.json"


def measured(
    name: str, folder: pathlib.Path, batch: int, without: Sequence[str], worker: concurrent.futures.Executor
) -> dict[str, Any]:
    """What `measure` wrote in the worker, whether or not that is still alive."""
    with contextlib.suppress(concurrent.futures.BrokenExecutor):
        worker.submit(measure, name, folder, batch, without).result()
    found: dict[str, Any] = json.loads(_row(name, folder).read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--without", nargs="*", default=[], metavar="KIND")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place, concurrent.futures.ProcessPoolExecutor(12, mp_context=spawn) as pool:
        folder = pathlib.Path(place)
        exported = {name: pool.submit(export, name, folder, args.batch, args.without) for name in args.names}
        worker = concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn)
        for name, done in exported.items():
            failed = done.result()
            rows[name] = {"failed": failed} if failed else measured(name, folder, args.batch, args.without, worker)
            if "ended the process" in rows[name].values():
                worker = concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn)
            print(name, rows[name], flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps(rows, indent=1))
        worker.shutdown()
    wrong = [name for name, row in rows.items() if row.get("onnxopt agrees") is not True]
    print(f"{len(rows) - len(wrong)} of {len(rows)} agree" + (f"; not {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
