"""One network of `models.networks`: exported, optimized, compiled by torch, compared and timed, in its own process.

    python -m benchmarks.support.network_worker NAME FOLDER [--device cpu] [--without-torch] [--exact] [--kinds]

A job of `workers`: it prepares, says so, waits for a line, and times. FOLDER/row.json is rewritten after each session,
as ONNX Runtime may end the process.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fcntl
import gc
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import onnxopt
from benchmarks.models.exports import compare
from benchmarks.support.gpu_timing import Tensors, bound, poisoned, session
from benchmarks.support.networks import built, named
from benchmarks.support.torch_peers import CHANNELS_LAST, CUDNN_ATTENTION, attention_of, compiled, input_for
from benchmarks.support.workers import answering
from onnxopt.artifact import manifest as manifests
from onnxopt.runtime.configuration import configuration_for
from onnxopt.runtime.sessions import WITHOUT_KINDS
from onnxopt.tools.tuning.knobs import CHANNELS_LAST as CHANNELS_LAST_KINDS

PAIR = {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
_CAPTURED = ("enable_cuda_graph", "do_copy_in_default_stream")  # options that a CUDA graph decides
_TIMING_CORES = 3
_CONVOLUTIONS = 4  # of two dims: more than the patches of a vision transformer
_RUNS, _ROUNDS, _ROUND_SECONDS = 40, 4, 0.3
_DTYPES = {"float": "float32", "double": "float64", **{d: d for d in ("float16", "bfloat16", "int64", "int32", "bool")}}


def milliseconds(run: Callable[[], object]) -> float:
    """The best round of several: of 40 runs each, fewer where they take long."""
    run()
    _wait()
    start = time.perf_counter()
    run()
    _wait()
    runs = max(2, min(_RUNS, int(_ROUND_SECONDS / (time.perf_counter() - start))))
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(runs):
            run()
        _wait()
        times.append((time.perf_counter() - start) / runs * 1e3)
    return round(min(times), 4)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass
class Worker:
    """folder: of this network alone. exact: without TF32, on all sides. kinds: also without each kind of kernels.

    Names of rows' cells are those of the sides.
    """

    name: str
    folder: pathlib.Path
    device: str
    exact: bool
    kinds: bool

    def __post_init__(self) -> None:
        self.row: dict[str, Any] = {"group": named(self.name).group}
        self.samples = None if self.device == "cuda" else 1
        self.exported, self.artifact = self.folder / "model.onnx", self.folder / "artifact"

    def keep(self, **cells: Any) -> None:
        self.row |= cells
        (self.folder / "row.json").write_text(json.dumps(self.row))

    def prepare(self) -> None:
        """Export and optimize, unless an earlier call did."""
        if (self.folder / "prepared").exists():
            return
        module, inputs = built(self.name, samples=self.samples)
        with torch.no_grad():
            torch.onnx.export(
                module, inputs, str(self.exported), dynamo=True, opset_version=20, verbose=False,
                input_names=[f"x{k}" for k in range(len(inputs))], dynamic_shapes=named(self.name).dynamic,
            )  # fmt: skip
        major, minor = torch.cuda.get_device_capability() if self.device == "cuda" else (9, 0)
        shutil.rmtree(self.artifact, ignore_errors=True)  # of a call that ended
        onnxopt.optimize(self.exported, self.artifact, archs=(f"sm_{major}{minor}",), verify=False)
        (self.folder / "prepared").touch()

    def expect(self) -> None:
        """The outputs of torch in float32 without TF32, and whether the network attends."""
        _allow_tf32(False)
        attention, called = torch.nn.functional.scaled_dot_product_attention, []

        def attend(*given: Any, **settings: Any) -> Any:
            called.append(True)
            return attention(*given, **settings)

        module, inputs = built(self.name, exact=True, samples=self.samples)
        with _alone(), torch.inference_mode(), mock.patch.object(torch.nn.functional, attention.__name__, attend):
            outputs = module.to(self.device)(*(x.to(self.device) for x in inputs))
        self.expected = [y.cpu() for y in (outputs if isinstance(outputs, tuple | list) else (outputs,))]
        self.attends = bool(called)
        self.inputs = tuple(x.to(self.device).contiguous() for x in built(self.name, samples=self.samples)[1])
        del module, outputs
        torch.cuda.empty_cache()  # many workers wait

    def sessions(self) -> Iterator[tuple[str, pathlib.Path, str | None, Mapping[str, str], Mapping[str, str]]]:
        """Label, model, library, provider options and session entries; what may end the process comes last."""
        tf32 = {"use_tf32": "0"} if self.exact else {}
        data = configuration_for(self.artifact).data
        options = {k: v for k, v in data.get("provider_options", {}).items() if k not in _CAPTURED}
        library = self.artifact / "lib" / "libonnxopt_ops.so"
        yield "ORT", self.exported, None, tf32, {}
        ours = str(library) if library.is_file() else None
        yield "onnxopt", self.artifact / "model.onnx", ours, options | tf32, data["session_config"]
        for label, kinds, beside in self.without:
            entries = data["session_config"] | {WITHOUT_KINDS: ",".join(kinds)}
            yield f"without {label}", self.artifact / "model.onnx", ours, options | beside | tf32, entries
        if self.device == "cuda" and "Conv" in _operators(self.exported):
            yield "ORT, both options", self.exported, None, PAIR | tf32, {}

    @property
    def without(self) -> list[tuple[str, list[str], dict[str, str]]]:
        """Kinds of kernels to give back to ONNX Runtime: a label, the kinds, and options for their place."""
        kinds = sorted({kernel.kind for kernel in manifests.load(self.artifact).kernels})
        if not self.kinds or len(kinds) < 2:
            return []
        together = [kind for kind in kinds if kind in CHANNELS_LAST_KINDS]
        rows = [(kind, [kind], dict[str, str]()) for kind in kinds]
        return rows + ([("channels last", together, PAIR)] if together and self.device == "cuda" else [])

    def time(self, label: str, model: pathlib.Path, library: str | None, options: Any, entries: Any) -> None:
        """Open a session, compare its outputs and time it; without a CUDA graph where that is refused."""
        for graph in (True, False) if self.device == "cuda" else (False,):
            self.keep(**{label: "ended the process"})
            try:
                opened = session(
                    str(model), library, self.device, cuda_graph=graph, options=options, entries=entries
                )  # fmt: skip
                given = dict(zip((i.name for i in opened.get_inputs()), self.inputs, strict=True))
                outputs = self.buffers(opened)
                _wait()  # ONNX Runtime's stream does not
                run = bound(opened, given, outputs, wait=False)  # torch's replays do not wait either
                for _ in range(3):
                    run()
                _wait()
                self.keep(**self.compared(label, outputs), **{label: milliseconds(run)})
                return
            except Exception as error:  # noqa: BLE001 - a side that fails is a result
                problem = f"{type(error).__name__}: {error}"[:300]
                self.keep(**{f"{label}, CUDA graph": problem} if graph else {label: problem})
            opened = run = outputs = None  # type: ignore[assignment]
            gc.collect()

    def buffers(self, opened: Any) -> Tensors:
        dtypes = [getattr(torch, _DTYPES[y.type.removeprefix("tensor(").rstrip(")")]) for y in opened.get_outputs()]
        rows = zip(opened.get_outputs(), self.expected, dtypes, strict=True)
        return {y.name: poisoned(x.shape, dtype, self.device) for y, x, dtype in rows}

    def compared(self, label: str, outputs: Tensors) -> dict[str, Any]:
        """Where ONNX Runtime's run does not agree, as of a detector that chooses rows, onnxopt's has to be as near."""
        pairs = zip(outputs.values(), self.expected, strict=True)
        found = [compare(y.cpu().float().numpy(), x.float().numpy()) for y, x in pairs]
        cosine, same_nan = min(one["cosine"] for one in found), all(one["same_nan"] for one in found)
        as_near = self.row.get("ORT agrees") is False and cosine > max(0.5, self.row["ORT cosine"] - 1e-3)
        agrees = all(one["agrees"] for one in found) or (same_nan and as_near)
        return {f"{label} cosine": round(cosine, 6), f"{label} agrees": agrees}

    def compile(self) -> dict[str, Callable[[], object]]:
        """What runs the network in each mode of torch.compile that may be its fastest."""
        _allow_tf32(not self.exact)
        module, _ = built(self.name)
        images = sum(isinstance(one, torch.nn.Conv2d) for one in module.modules()) >= _CONVOLUTIONS
        halves = named(self.name).dtype != "float32"
        modes = ["reduce-overhead", *[CHANNELS_LAST] * images, *[CUDNN_ATTENTION] * (self.attends and halves)]
        return {mode: ready for mode in modes if (ready := self.ready(mode, module)) is not None}

    def ready(self, mode: str, module: Any) -> Callable[[], object] | None:
        try:
            run = compiled(copy.deepcopy(module).to(self.device), mode)
            inputs = [input_for(mode, x) if x.ndim == 4 else x for x in self.inputs]

            def call() -> object:
                with attention_of(mode):
                    return run(*inputs)

            with torch.inference_mode():
                for _ in range(4):
                    call()
            _wait()
        except Exception:  # noqa: BLE001 - a mode that fails is a result
            self.keep(**{f"torch.compile {mode}": traceback.format_exc()[-300:]})
            return None
        return call


def _operators(path: pathlib.Path) -> set[str]:
    import onnx

    graph = onnx.load(path, load_external_data=False)
    return {node.op_type for node in graph.graph.node}


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """The GPU for this process alone, of all workers on this machine."""
    with (pathlib.Path(tempfile.gettempdir()) / "onnxopt-networks-gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _leave_cores(count: int) -> set[int]:
    """Run on all but the last few cores, which what is timed has for itself; the cores of before."""
    cores = os.sched_getaffinity(0)
    if len(cores) > 2 * count:
        os.sched_setaffinity(0, sorted(cores)[:-count])
    return cores


def _allow_tf32(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--kinds", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    worker = Worker(args.name, args.folder, args.device, args.exact, args.kinds)
    cores = _leave_cores(_TIMING_CORES)
    with answering() as answers:
        start = time.perf_counter()
        try:
            worker.prepare()
            worker.expect()
            torched = {} if args.without_torch or named(args.name).dynamic else worker.compile()
        except Exception:  # noqa: BLE001 - the other networks are worth having
            print(json.dumps({"failed": traceback.format_exc()[-600:]}), file=answers)
            return
        print(json.dumps({"ready": round(time.perf_counter() - start, 1)}), file=answers)
        if not sys.stdin.readline():
            return  # nobody waits for an answer
        os.sched_setaffinity(0, sorted(cores)[-_TIMING_CORES:] if len(cores) > 2 * _TIMING_CORES else cores)
        with _alone():
            with torch.inference_mode():
                for mode, call in torched.items():
                    worker.keep(**{f"torch.compile {mode}": milliseconds(call)})
            torched.clear()
            for one in worker.sessions():
                worker.time(*one)
        print(json.dumps({"done": True}), file=answers)


if __name__ == "__main__":
    main()
