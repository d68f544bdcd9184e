"""Every other way to run the transformers, beside onnxopt's, in one call on the GPU.

    python -m benchmarks.gpu.peers prepare DIR --arch sm_90     on any machine, without a GPU; needs .gpu/
    python -m benchmarks.gpu.peers run DIR --out OUT.json       on the GPU machine, with 16 cores: about 250 s

torch.compile in three modes; ONNX Runtime on the exported graph, on what onnxruntime.transformers.optimizer and
onnxscript's ort_fusions make of it, and on onnxopt's. float16, inputs and outputs on the device. torch workers compile
eight at a time, each in a process of its own, and wait; when all are ready or the time for it is over, each is timed
alone. max-autotune thus measures its candidates while others do, which may cost it the best choice: nothing else fits
the time. A peer that does not become ready is reported as such. ONNX Runtime's sessions are opened meanwhile, and
timed when no worker is left.

NAME@SIZES is the dynamic graph at those sizes, as bert@1x37, vit@5, llama_decode@1024x4 (DYNAMIC); torch compiles for
that shape alone, but for the mode "dynamic", which is torch.compile(dynamic=True). gpu.dynamic has ONNX Runtime at
several shapes in one session.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gc
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any, TextIO

from benchmarks.gpu.models import compare
from benchmarks.support import skeletons
from benchmarks.support.arguments import command
from benchmarks.support.gpu_timing import library, session

MODELS = ("bert", "vit", "whisperenc", "llama", "llama_decode", "llama_decode@4096")
DYNAMIC = {"bert": ("batch", "seq"), "vit": ("batch",), "llama": ("batch", "seq"), "llama_decode": ("past", "batch")}
MODES = ("reduce-overhead", "default", "max-autotune")
OPTIMIZERS = ("ort_fusions", "transformers.optimizer")
# As onnxruntime.transformers.optimizer wants to know them: the kind of model, its heads and its width.
_KINDS = {
    "bert": ("bert", 12, 768), "vit": ("vit", 12, 768), "whisperenc": ("bart", 8, 512), "llama": ("gpt2", 16, 2048),
}  # fmt: skip
_AT_ONCE = 8  # workers that compile
_ROUNDS, _RUNS = 5, 40


def prepare(folder: pathlib.Path, arch: str, names: list[str]) -> None:
    """onnxopt's graphs and library, and those of the other optimizers, without weights."""
    from benchmarks.gpu import models as gpu_models

    exported = list(dict.fromkeys(graph_of(name)[0] for name in names))
    gpu_models.prepare(folder, arch, exported)
    for name in (n for n in exported if n in _KINDS):
        for optimizer in OPTIMIZERS:
            source = skeletons.original(name)
            try:
                changed = _optimized(source, name, optimizer)
                size = skeletons.strip(changed, source, folder / f"{name}.{optimizer}.onnx.xz")
                print(f"{name} {optimizer}: {len(source.graph.node)} -> {len(changed.graph.node)}, {size} bytes")
            except Exception as error:  # noqa: BLE001 - a peer that cannot do a model is a result
                (folder / f"{name}.{optimizer}.failed").write_text(f"{type(error).__name__}: {error}"[:300])
                print(f"{name} {optimizer}: {type(error).__name__}: {error}"[:300])
            gc.collect()


def graph_of(name: str) -> tuple[str, dict[str, int]]:
    """The exported graph that a name stands for, and the sizes of its dynamic dims."""
    model, _, sizes = name.partition("@")
    if not sizes:
        return model, {}
    return f"{model}_dyn", dict(zip(DYNAMIC[model], map(int, sizes.split("x")), strict=False))


def _optimized(source: Any, name: str, optimizer: str) -> Any:
    if optimizer == "ort_fusions":
        import onnx_ir as ir
        from onnxscript.rewriter.ort_fusions import optimize_for_ort

        model, _ = optimize_for_ort(ir.serde.deserialize_model(source))
        return ir.serde.serialize_model(model)
    import onnx
    from onnxruntime.transformers import optimizer as transformers_optimizer

    kind, heads, hidden = _KINDS[name]
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "model.onnx"
        onnx.save(source, path)
        changed = transformers_optimizer.optimize_model(
            str(path), model_type=kind, num_heads=heads, hidden_size=hidden, use_gpu=True, opt_level=0
        )
        return changed.model


def net_of(name: str) -> tuple[Any, Any]:
    """A model in torch on the GPU, and its input."""
    import torch

    harness, (exported, sizes) = skeletons.harness(), graph_of(name)
    model = exported.removesuffix("_dyn")
    if model == "llama_decode":
        from benchmarks.cases import torch_decode

        batch = sizes.get("batch", 1)
        net = torch_decode.build(batch, sizes.get("past", 512))
        return net.cuda(), torch.full((batch, 1), 7, device="cuda")
    import torch_models

    x = torch.from_numpy(harness.sample_input(model)).cuda()
    if sizes:  # of the same kind and dtype, with these leading dims
        x = x.reshape(-1).repeat(8)[: math.prod(shape := (*sizes.values(), *x.shape[len(sizes) :]))].reshape(shape)
    return torch_models.build(model).cuda(), x


def work(names: str, mode: str) -> None:
    """A worker: compile, say so, wait for a line, then time. Speaks JSON lines. names: joined by +, of one model."""
    import torch

    harness, start, finite = skeletons.harness(), time.perf_counter(), True
    with torch.inference_mode():
        nets: dict[str, Any] = {}
        runs: dict[str, Any] = {}
        for name in names.split("+"):
            net, x = net_of(name)
            key = name if name.startswith("llama_decode") else name.partition("@")[0]  # a cache is part of the module
            if key not in nets:
                static: dict[str, Any] = {"mode": mode, "dynamic": False}
                nets[key] = torch.compile(net, **({"dynamic": True} if mode == "dynamic" else static))
            runs[name] = lambda f=nets[key], x=x: f(x)
            for _ in range(4):
                y = runs[name]()
            torch.cuda.synchronize()
            finite = finite and bool(torch.isfinite(y).all())
        print(json.dumps({"ready": round(time.perf_counter() - start, 1), "finite": finite}), flush=True)
        sys.stdin.readline()
        best = {
            name: min(harness.milliseconds(run, _RUNS, warmup=6, repeats=1) for _ in range(_ROUNDS))
            for name, run in runs.items()
        }
    print(json.dumps({"ms": best}), flush=True)


class Workers:
    """One process for each model (or several names joined by +) and mode, some compiling at once; the next begins
    when one is ready."""

    def __init__(self, waiting: list[tuple[str, str]], cache: str, log: TextIO) -> None:
        self._log = log
        self._environment = {
            **os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        self.processes: dict[tuple[str, str], subprocess.Popen[str]] = {}
        self._waiting = list(waiting)

    def _start(self) -> tuple[str, str]:
        name, mode = self._waiting.pop(0)
        line = [sys.executable, "-m", "benchmarks.gpu.peers", "work", name, mode]
        threads = max(2, (os.cpu_count() or 16) // 3 if mode == "max-autotune" else 2)  # that has many kernels
        environment = {**self._environment, "TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
        pipe = subprocess.PIPE
        self.processes[name, mode] = subprocess.Popen(
            line, stdin=pipe, stdout=pipe, stderr=self._log, text=True, env=environment
        )
        return name, mode

    def wait(self, deadline: float) -> dict[tuple[str, str], dict[str, Any]]:
        """What each said when it was ready; those that are not by then are ended, and say so."""
        import selectors

        found: dict[tuple[str, str], dict[str, Any]] = {}
        selector = selectors.DefaultSelector()
        while (left := deadline - time.perf_counter()) > 0:
            while self._waiting and len(self.processes) - len(found) < _AT_ONCE:
                key = self._start()
                selector.register(self.processes[key].stdout, selectors.EVENT_READ, key)  # type: ignore[arg-type]
            if len(found) == len(self.processes):
                break
            for event, _ in selector.select(left):
                selector.unregister(event.fileobj)
                line = self.processes[event.data].stdout.readline()  # type: ignore[union-attr]
                found[event.data] = json.loads(line) if line.startswith("{") else {"failed": "it ended; see the log"}
        for key, process in self.processes.items():
            if key not in found:
                process.kill()
                found[key] = {"failed": "ran out of time: not compiled when the workers were stopped"}
        for key in self._waiting:
            found[key] = {"failed": "ran out of time: not begun when the workers were stopped"}
        return found

    def time(self, key: tuple[str, str]) -> dict[str, float]:
        """Milliseconds a run of every name, alone on the GPU."""
        process = self.processes[key]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        line = process.stdout.readline()  # its end is not waited for: a CUDA context takes a second to go
        milliseconds: dict[str, float] = json.loads(line)["ms"]
        return milliseconds


def torch_rows(workers: Workers, deadline: float, rows: dict[str, dict[str, Any]], beside: Iterable[Any]) -> None:
    """Milliseconds of every worker into rows[model]["torch.compile MODE"], or why there are none.

    Nothing is timed before what goes on beside is done.
    """
    ready = workers.wait(deadline)
    concurrent.futures.wait(list(beside))
    for (names, mode), said in ready.items():
        label, every = f"torch.compile {mode}", names.split("+")
        found: dict[str, Any] = dict.fromkeys(every, said.get("failed", "its output is not finite"))
        if said.get("finite"):
            rows[every[0]][f"{label} seconds until ready"] = said["ready"]
            try:
                found = {name: round(ms, 4) for name, ms in workers.time((names, mode)).items()}
            except Exception as error:  # noqa: BLE001
                found = dict.fromkeys(every, f"failed: {type(error).__name__}: {error}"[:200])
        for name, value in found.items():
            rows[name][label] = value
        print(names, label, *found.values(), flush=True)


def ort_sessions(
    name: str, folder: pathlib.Path, row: dict[str, Any], libraries: dict[str, str] | None = None
) -> dict[str, Any]:
    """A session for every form of a graph, as functions that run them once; those that disagree are left out.

    libraries: several to compare under onnxopt's graph, by their label; by default the folder's.
    """
    harness = skeletons.harness()
    exported, sizes = graph_of(name)
    source = skeletons.original(exported)
    given = skeletons.sample_inputs(source, exported, **sizes)
    exact = source.SerializeToString()
    forms: dict[str, tuple[bytes, str | None, bool]] = {"ORT": (exact, None, False)}
    forms["ORT + CUDA graph"] = (exact, None, True)
    for optimizer in OPTIMIZERS:
        path = folder / f"{name}.{optimizer}.onnx.xz"
        if path.exists():
            forms[f"ORT after {optimizer}"] = (skeletons.restore(path, source).SerializeToString(), None, True)
        elif (failed := path.with_name(f"{name}.{optimizer}.failed")).exists():
            row[f"ORT after {optimizer}"] = failed.read_text()
    ours = skeletons.restore(folder / f"{exported}.onnx.xz", source).SerializeToString()
    forms |= {label: (ours, path, True) for label, path in (libraries or {"onnxopt": library(folder)}).items()}
    del source
    expected, bounds = None, {}
    for label, (model, ops, graph) in forms.items():
        try:
            bound = harness.Bound(session(model, ops, "cuda", cuda_graph=graph), given)
            for _ in range(3):
                bound()
            found = bound.outputs[0].numpy()
            expected = found if expected is None else expected
            check = compare(found, expected)
            row[f"{label} cosine"] = round(check["cosine"], 7)
            if check["agrees"]:
                bounds[label] = bound
            else:
                row[label] = f"disagrees with the original: cosine {check['cosine']:.6f}"
        except Exception as error:  # noqa: BLE001
            row[label] = f"failed: {type(error).__name__}: {error}"[:300]
    return bounds


def ort_times(bounds: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of every form, all in turn."""
    harness = skeletons.harness()
    times: dict[str, list[float]] = {label: [] for label in bounds}
    for _ in range(_ROUNDS):
        for label, run in bounds.items():
            times[label].append(harness.milliseconds(run, _RUNS, warmup=4, repeats=1))
    return {label: round(min(values), 4) for label, values in times.items()}


def run(folder: pathlib.Path, out: pathlib.Path | None, args: argparse.Namespace) -> None:
    start, names = time.perf_counter(), args.only
    rows: dict[str, dict[str, Any]] = {name: {} for name in names}

    def keep() -> None:
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))

    log = (out.with_suffix(".log") if out is not None else pathlib.Path(os.devnull)).open("w")
    with tempfile.TemporaryDirectory() as cache, concurrent.futures.ThreadPoolExecutor(1) as beside:
        # All models in the first mode first: where the time runs out, it does so mode by mode.
        workers = Workers([(name, mode) for mode in args.modes for name in names], cache, log)
        ort = [] if args.torch_only else names
        opened = {name: beside.submit(ort_sessions, name, folder, rows[name]) for name in ort}
        try:
            torch_rows(workers, start + args.seconds, rows, opened.values())
        finally:
            for process in workers.processes.values():
                process.kill()
    keep()
    for name in ort:
        try:
            # In the thread that captured the CUDA graphs: ONNX Runtime keeps them by thread.
            rows[name].update(beside.submit(ort_times, opened.pop(name).result()).result())
        except Exception as error:  # noqa: BLE001 - the other models' numbers are worth having
            rows[name]["ORT"] = f"failed: {type(error).__name__}: {error}"[:300]
        print(name, f"{time.perf_counter() - start:.0f} s", flush=True)
        keep()
        gc.collect()
    print(table(rows))


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Milliseconds as markdown; a peer without any is a dash, the JSON says why."""
    columns = ["ORT", "ORT + CUDA graph", *(f"ORT after {o}" for o in OPTIMIZERS)]
    columns += [*(f"torch.compile {m}" for m in MODES), "onnxopt"]
    lines = ["| model | " + " | ".join(columns) + " | best peer / onnxopt |", "|" + "---|" * (len(columns) + 2)]
    for name, row in rows.items():
        values = [row.get(c) for c in columns]
        numbers = [v for v in values[:-1] if isinstance(v, float)]
        ratio = f"{min(numbers) / values[-1]:.2f}" if numbers and isinstance(values[-1], float) else "-"
        cells = [f"{v:.3f}" if isinstance(v, float) else "-" for v in values]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:4])
        return
    parser, (prepared, ran) = command(__doc__)
    ran.add_argument("--out", type=pathlib.Path, default=None)
    ran.add_argument("--modes", nargs="*", default=list(MODES), help=f"of {', '.join((*MODES, 'dynamic'))}")
    ran.add_argument("--seconds", type=float, default=150.0, help="for the workers to compile in")
    ran.add_argument("--torch-only", action="store_true")
    for verb in (prepared, ran):
        verb.add_argument("--only", nargs="*", default=list(MODELS))
    args: argparse.Namespace = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.only)
    else:
        run(args.folder, args.out, args)


if __name__ == "__main__":
    main()
