"""Other ways to run the models, beside onnxopt, in one call on the GPU.

    python -m benchmarks.models.peers prepare DIR --arch sm_90     on any machine, without a GPU; needs .gpu/
    python -m benchmarks.models.peers run DIR --out OUT.json       on the GPU machine, with 16 cores: about 250 s

The peers are torch.compile in three modes (for images also over channels_last tensors), and ONNX Runtime on several
graphs: the exported one, the same with the options prefer_nhwc and fuse_conv_bias where it has convolutions, the
results of onnxruntime.transformers.optimizer and of onnxscript's ort_fusions, and onnxopt's. All run in float16 with
inputs and outputs on the device.

torch workers compile eight at a time, each in its own process, and wait. When all are ready or their time is over, each
is timed alone. So max-autotune measures its candidates while other workers run, which may cost it the best choice;
there is no time for anything else. A peer that does not become ready is reported as such. ONNX Runtime's sessions are
opened meanwhile and timed when no worker is left.

NAME@SIZES is the dynamic graph at those sizes, such as bert@1x37, vit@5, llama_decode@1024x4 (DYNAMIC). torch compiles
for that shape alone, except in the mode "dynamic", which is torch.compile(dynamic=True). models.dynamic has ONNX
Runtime at several shapes in one session.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gc
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import onnx

from benchmarks.models.exports import compare
from benchmarks.support import skeletons
from benchmarks.support.arguments import command
from benchmarks.support.gpu_timing import library, session
from benchmarks.support.torch_peers import MODES, graph_of, torch_rows, workers

MODELS = ("bert", "vit", "whisperenc", "llama", "llama_decode", "llama_decode@4096")
OPTIMIZERS = ("ort_fusions", "transformers.optimizer")
# As onnxruntime.transformers.optimizer wants to know them: the kind of model, its heads and its width.
_KINDS = {
    "bert": ("bert", 12, 768), "vit": ("vit", 12, 768), "whisperenc": ("bart", 8, 512), "llama": ("gpt2", 16, 2048),
}  # fmt: skip
NHWC_LABEL = "ORT + CUDA graph, NHWC"
# ONNX Runtime's options for convolution networks, which belong together: NHWC Conv adds its bias only where fused.
_NHWC = {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
_ROUNDS, _RUNS = 5, 40


def prepare(folder: pathlib.Path, arch: str, names: list[str]) -> None:
    """onnxopt's graphs and library, and those of the other optimizers, without weights."""
    from benchmarks.models import exports as gpu_models

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


def _optimized(source: Any, name: str, optimizer: str) -> Any:
    if optimizer == "ort_fusions":
        import onnx_ir as ir
        from onnxscript.rewriter.ort_fusions import optimize_for_ort

        model, _ = optimize_for_ort(ir.serde.deserialize_model(source))
        return ir.serde.serialize_model(model)
    from onnxruntime.transformers import optimizer as transformers_optimizer

    kind, heads, hidden = _KINDS[name]
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "model.onnx"
        onnx.save(source, path)
        changed = transformers_optimizer.optimize_model(
            str(path), model_type=kind, num_heads=heads, hidden_size=hidden, use_gpu=True, opt_level=0
        )
        return changed.model


class Form(NamedTuple):
    """One way for ONNX Runtime to run a graph. options: of the CUDA provider, beside enable_cuda_graph."""

    model: bytes
    library: str | None = None
    cuda_graph: bool = True
    options: Mapping[str, str] = MappingProxyType({})


def ort_forms(
    name: str, source: onnx.ModelProto, folder: pathlib.Path, row: dict[str, Any], libraries: dict[str, str]
) -> dict[str, Form]:
    """Every way to run a graph by its label; `row` gets the reason where an optimizer could not do it.

    libraries: those to compare under onnxopt's graph, by their label.
    """
    exact = source.SerializeToString()
    forms = {"ORT": Form(exact, cuda_graph=False), "ORT + CUDA graph": Form(exact)}
    if any(node.op_type == "Conv" for node in source.graph.node):
        forms[NHWC_LABEL] = Form(exact, options=_NHWC)
    for optimizer in OPTIMIZERS:
        path = folder / f"{name}.{optimizer}.onnx.xz"
        if path.exists():
            forms[f"ORT after {optimizer}"] = Form(skeletons.restore(path, source).SerializeToString())
        elif (failed := path.with_name(f"{name}.{optimizer}.failed")).exists():
            row[f"ORT after {optimizer}"] = failed.read_text()
    ours = skeletons.restore(folder / f"{graph_of(name)[0]}.onnx.xz", source).SerializeToString()
    options = json.loads((folder / f"{graph_of(name)[0]}.plan.json").read_text())["options"]
    return forms | {label: Form(ours, path, options=options) for label, path in libraries.items()}


def ort_sessions(
    name: str, folder: pathlib.Path, row: dict[str, Any], libraries: dict[str, str] | None = None
) -> dict[str, Any]:
    """A session for every form of a graph, as functions that run them once; those that disagree are left out.

    libraries: as ort_forms has them; by default the folder's.
    """
    harness = skeletons.harness()
    exported, sizes = graph_of(name)
    source = skeletons.original(exported)
    given = skeletons.sample_inputs(source, exported, **sizes)
    forms = ort_forms(name, source, folder, row, libraries or {"onnxopt": library(folder)})
    del source
    expected, bounds = None, {}
    for label, form in forms.items():
        try:
            opened = session(form.model, form.library, "cuda", cuda_graph=form.cuda_graph, options=form.options)
            bound = harness.Bound(opened, given)
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


def run(
    folder: pathlib.Path,
    out: pathlib.Path | None,
    args: argparse.Namespace,
    open_sessions: Callable[[str, pathlib.Path, dict[str, Any]], dict[str, Any]] = ort_sessions,
    time_sessions: Callable[[dict[str, Any]], dict[str, float]] = ort_times,
) -> dict[str, dict[str, Any]]:
    """Milliseconds of every peer by model, printed as a table and kept in `out` as they come.

    open_sessions, time_sessions: of ONNX Runtime; both run in one thread, as it keeps captured CUDA graphs by thread.
    """
    start, names = time.perf_counter(), args.only
    rows: dict[str, dict[str, Any]] = {name: {} for name in names}

    def keep() -> None:
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))

    with (
        (out.with_suffix(".log") if out is not None else pathlib.Path(os.devnull)).open("w") as log,
        tempfile.TemporaryDirectory() as cache,
        concurrent.futures.ThreadPoolExecutor(1) as ort_thread,
    ):
        # All models in the first mode first: where the time runs out, it does so mode by mode.
        compiling = workers([(name, mode) for mode in args.modes for name in names], cache, log)
        ort = [] if args.torch_only else names
        opened = {name: ort_thread.submit(open_sessions, name, folder, rows[name]) for name in ort}
        try:
            torch_rows(compiling, start + args.seconds, rows, opened.values())
        finally:
            compiling.end()
        keep()
        for name in ort:
            try:
                rows[name].update(ort_thread.submit(time_sessions, opened.pop(name).result()).result())
            except Exception as error:  # noqa: BLE001 - the other models' numbers are worth having
                rows[name]["ORT"] = f"failed: {type(error).__name__}: {error}"[:300]
            print(name, f"{time.perf_counter() - start:.0f} s", flush=True)
            keep()
            gc.collect()
    print(table(rows))
    return rows


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Milliseconds as markdown; a peer without any is a dash, the JSON says why."""
    columns = ["ORT", "ORT + CUDA graph", NHWC_LABEL, *(f"ORT after {o}" for o in OPTIMIZERS)]
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
