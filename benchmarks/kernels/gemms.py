"""GEMMs: correctness over many forms, then the GEMMs of real models, run in every available way.

    python -m benchmarks.kernels.gemms prepare DIR --arch sm_90      on any machine, without a GPU
    python -m benchmarks.kernels.gemms run DIR                       on the GPU machine: onnxruntime, numpy, torch, onnx

Each timed model holds several GEMMs with their own weights, like the layers of a network. So weights come from memory
and not from the cache. Many runs are captured in one CUDA graph.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from benchmarks.cases.gemm_forms import DTYPES, EPILOGUES, TRANSPOSED, Graph, check, kernel_name
from benchmarks.support.arguments import command

# name: rows, depth, columns, of the float16 products of shared/gpu's models; merged: Q, K, V or gate and up in one
PRODUCTS = {
    "bert proj": (1024, 768, 768),
    "bert qkv": (1024, 768, 2304),
    "bert fc1": (1024, 768, 3072),
    "bert fc2": (1024, 3072, 768),
    "vit proj": (3152, 768, 768),
    "vit qkv": (3152, 768, 2304),
    "vit fc1": (3152, 768, 3072),
    "vit fc2": (3152, 3072, 768),
    "llama proj": (512, 2048, 2048),
    "llama qkv": (512, 2048, 4096),
    "llama gate": (512, 2048, 5632),
    "llama gate+up": (512, 2048, 11264),
    "llama down": (512, 5632, 2048),
    "whisper proj": (6000, 512, 512),
    "whisper qkv": (6000, 512, 1536),
    "whisper fc1": (6000, 512, 2048),
    "whisper fc2": (6000, 2048, 512),
    "decode proj": (1, 2048, 2048),
    "decode gate+up": (1, 2048, 11264),
    "decode down": (1, 5632, 2048),
}
_WEIGHT_BYTES = 150e6  # of all weights of one timed model: more than the L2 cache holds
_SECONDS = {"check": 60.0, "time": 110.0, "tune": 50.0}


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Write the library with a kernel for every form, and one for bias and GELU together."""
    from benchmarks.support.collection import Collection
    from onnxopt.fusion.region import Kernel
    from onnxopt.kinds.gemm import few_rows
    from onnxopt.kinds.gemm.kind import GEMM
    from onnxopt.program.gemm import Gemm

    folder.mkdir(parents=True)
    collection = Collection()
    half = TensorProto.FLOAT16
    nodes = [helper.make_node("Add", ["x", "b"], ["s"]), helper.make_node("Gelu", ["s"], ["y"])]
    ends = [helper.make_tensor_value_info(n, half, s) for n, s in (("x", ["m", "n"]), ("b", ["n"]), ("y", ["m", "n"]))]
    graph = helper.make_graph(nodes, "bias_gelu", ends[:2], ends[2:])
    collection.optimize(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
    (bias_gelu,) = collection.kernels
    for dtype in DTYPES:
        for epilogue, fields in EPILOGUES.items():
            for name, (a, b) in TRANSPOSED.items():
                count = 2 + ("bias" in fields) + ("residual" in fields)
                meaning = Gemm((dtype,) * count, (dtype,), transpose_a=a, transpose_b=b, **fields)  # type: ignore[arg-type]
                meaning.verify()
                kernel = kernel_name(dtype, epilogue, name)
                code = few_rows.entry_points(kernel, meaning) if name == "NT" else ()
                collection.kernels[kernel] = Kernel(kernel, GEMM, ("MatMul",), meaning, code, ())
    collection.write_library(folder, [arch])
    (folder / "names.json").write_text(json.dumps({"bias_gelu": bias_gelu}))
    print(f"{len(collection.kernels)} kernels, {sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB")


# timing

Build = Callable[[Graph, str, str, str, str], str]  # (graph, x, weight, bias, residual) -> result


def _ours(epilogue: str, transposed: str = "NN") -> Build:
    fields = EPILOGUES[epilogue]

    def build(graph: Graph, x: str, weight: str, bias: str, residual: str) -> str:
        operands = [x, weight] + [bias] * ("bias" in fields) + [residual] * ("residual" in fields)
        return graph.node(kernel_name("float16", epilogue, transposed), operands, "onnxopt")

    return build


def _then(first: Build, op: str, *names: str, domain: str = "") -> Build:
    def build(graph: Graph, x: str, weight: str, bias: str, residual: str) -> str:
        values = {"bias": bias, "residual": residual}
        return graph.node(op, [first(graph, x, weight, bias, residual), *(values[n] for n in names)], domain)

    return build


def _matmul(graph: Graph, x: str, weight: str, bias: str, residual: str) -> str:
    return graph.node("MatMul", [x, weight])


def variants(bias_gelu: str) -> dict[str, tuple[Build, bool]]:
    """Ways to run a product: the nodes, and whether the weight lies transposed."""
    fused = {"op": bias_gelu, "domain": "onnxopt"}
    return {
        "ort": (_matmul, False),
        "ours": (_ours("plain"), False),
        "ours ^T": (_ours("plain", "NT"), True),
        "ort +bias": (_then(_matmul, "Add", "bias"), False),
        "ours +bias": (_ours("bias"), False),
        "ours +bias ^T": (_ours("bias", "NT"), True),
        "ort +bias+res": (_then(_then(_matmul, "Add", "bias"), "Add", "residual"), False),
        "ours +bias, ort +res": (_then(_ours("bias"), "Add", "residual"), False),
        "ours +bias+res": (_ours("bias_residual"), False),
        "ours +bias+res ^T": (_ours("bias_residual", "NT"), True),
        "ort +bias+gelu": (_then(_then(_matmul, "Add", "bias"), "Gelu"), False),
        "ours +bias, ort gelu": (_then(_ours("bias"), "Gelu"), False),
        "ort, chain bias+gelu": (_then(_matmul, fused["op"], "bias", domain=fused["domain"]), False),
        "ours, chain bias+gelu": (_then(_ours("plain"), fused["op"], "bias", domain=fused["domain"]), False),
        "ours +bias+tanh gelu": (_ours("bias_gelu"), False),
    }


def layers(product: str) -> int:
    _, k, n = PRODUCTS[product]
    return int(min(8, max(2, _WEIGHT_BYTES // (k * n * 2))))


def timed_model(product: str, build: Build, transposed: bool) -> bytes:
    """Several products, each with weights of its own, that all read one x and one residual."""
    m, k, n = PRODUCTS[product]
    rng = np.random.default_rng(3)
    graph = Graph()
    x, residual = graph.input("x", [m, k]), graph.input("residual", [m, n])
    value = (rng.standard_normal((n, k) if transposed else (k, n), dtype=np.float32) / np.sqrt(k)).astype(np.float16)
    for i in range(layers(product)):
        weight = graph.weight(f"w{i}", value)
        bias = graph.weight(f"b{i}", rng.standard_normal(n).astype(np.float16))
        graph.output(build(graph, x, weight, bias, residual), [m, n])
    return graph.bytes()


def time_variant(library: str, product: str, build: Build, transposed: bool) -> float:
    """Microseconds a product."""
    import torch

    from benchmarks.support.gpu_timing import bound, microseconds_in_graph, session

    m, k, n = PRODUCTS[product]
    stream = torch.cuda.Stream()
    run_in = session(timed_model(product, build, transposed), library, "cuda", stream=stream)
    inputs = {
        name: torch.randn(s, device="cuda", dtype=torch.float16) for name, s in (("x", (m, k)), ("residual", (m, n)))
    }
    wanted = {i.name for i in run_in.get_inputs()}
    outputs = {o.name: torch.empty((m, n), device="cuda", dtype=torch.float16) for o in run_in.get_outputs()}
    run = bound(run_in, {k: v for k, v in inputs.items() if k in wanted}, outputs, wait=False)
    return microseconds_in_graph([run], stream, at_least=3, replays=12) / layers(product)


def torch_times(product: str, compiled: bool) -> dict[str, float]:
    """Microseconds a product by torch: F.linear with bias, then residual or exact GELU; eager or compiled."""
    import torch

    from benchmarks.support.gpu_timing import microseconds_in_graph

    functional = torch.nn.functional
    m, k, n = PRODUCTS[product]
    half: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    weights = [torch.randn(n, k, **half) / k**0.5 for _ in range(layers(product))]
    x, bias, residual = torch.randn(m, k, **half), torch.randn(n, **half), torch.randn(m, n, **half)
    functions = {
        "linear +bias": lambda w: functional.linear(x, w, bias),
        "linear +bias+res": lambda w: functional.linear(x, w, bias) + residual,
        "linear +bias+gelu": lambda w: functional.gelu(functional.linear(x, w, bias)),
    }
    stream = torch.cuda.Stream()
    times = {}
    for label, function in functions.items():
        if compiled:
            torch._dynamo.reset()
            function = torch.compile(function, mode="max-autotune-no-cudagraphs", dynamic=False)
        run = lambda f=function: [f(w) for w in weights]  # noqa: E731
        times[label] = microseconds_in_graph([run], stream, at_least=3, replays=12) / len(weights)
    return times


def measure(
    library: str, names: dict[str, str], wanted: list[str], products: list[str], seconds: float
) -> dict[str, Any]:
    started = time.perf_counter()
    rows: dict[str, Any] = {}
    ways = variants(names["bias_gelu"])
    for product in products:
        row = rows[product] = {}
        for label, (build, transposed) in ways.items():
            if label not in wanted or ("gelu" in label and not _has_gelu(product)):
                continue
            if time.perf_counter() - started > seconds:
                row[label] = "not reached"
                continue
            try:
                row[label] = round(time_variant(library, product, build, transposed), 2)
            except Exception as error:  # noqa: BLE001
                row[label] = f"{type(error).__name__}: {error}"[:300]
    return rows


def _has_gelu(product: str) -> bool:
    return "fc1" in product or "gate" in product


def peers(rows: dict[str, Any], deadline: float) -> None:
    for compiled in (False, True):
        for product in rows if not compiled else [p for p in _COMPILED if p in rows]:
            label = "torch.compile" if compiled else "torch"
            if time.perf_counter() > deadline:
                rows[product][label] = "not reached"
                continue
            try:
                rows[product][label] = {k: round(v, 2) for k, v in torch_times(product, compiled).items()}
            except Exception as error:  # noqa: BLE001
                rows[product][label] = f"{type(error).__name__}: {error}"[:300]


def table(rows: dict[str, Any]) -> str:
    """Microseconds a product, one line each."""
    lines = []
    for product, row in rows.items():
        m, k, n = PRODUCTS[product]
        flat = {
            f"{k} {i}" if i else k: v
            for k, c in row.items()
            for i, v in (c.items() if isinstance(c, dict) else [("", c)])
        }
        cells = [f"{label} {v if not isinstance(v, str) else v[:60]}" for label, v in flat.items()]
        lines.append(f"{product} [{m}x{k}x{n}] {2 * m * k * n / 1e9:.2f} GF: " + "; ".join(cells))
    return "\n".join(lines)


def algorithms(path: pathlib.Path) -> str:
    """Of every product that was tuned: the heuristic's algorithm and the best of 32, by their time and their rate."""
    lines = ["| product | heuristic us | best us | heuristic TFLOP/s | best | gain |", "|" + "---|" * 6]
    for entry in json.loads(path.read_text())["entries"]:
        sizes = {w[0]: int(w[1:]) for w in entry["product"].split() if w[0] in "mnk" and w[1:].isdigit()}
        work = 2 * sizes["m"] * sizes["n"] * sizes["k"] / 1e6
        before, best = entry["heuristic_microseconds"], entry["microseconds"]
        rates = f"{work / before:.0f} | {work / best:.0f}"
        lines.append(f"| {entry['product']} | {before:.2f} | {best:.2f} | {rates} | {before / best - 1:.1%} |")
    return "\n".join(lines)


_COMPILED = ("bert fc1", "vit fc2", "llama down", "whisper fc1", "bert proj")  # each takes torch.compile ten seconds
TUNED = ("ours", "ours ^T", "ours +bias", "ours +bias ^T", "ours +bias+res", "ours +bias+res ^T")


def run(folder: pathlib.Path, out: pathlib.Path, stage: str, products: list[str], transposed: Sequence[str]) -> None:
    from benchmarks.support.gpu_timing import library as unpack

    started = time.perf_counter()
    names = json.loads((folder / "names.json").read_text())
    library = unpack(folder)
    if stage == "check":
        found: dict[str, Any] = {}
        check(library, found, _SECONDS["check"], transposed=transposed)
        (out / "forms.json").write_text(json.dumps(found, indent=1))
        return
    if stage == "tune":  # in a process of its own: the variable is read once
        rows = measure(library, names, list(TUNED), products, _SECONDS["tune"])
        (out / "tuned.json").write_text(json.dumps(rows, indent=1))
        print("tuned\n" + table(rows))
        print(algorithms(pathlib.Path(os.environ["ONNXOPT_GEMM_TUNE"])))
        return
    for step in _steps(library, names, products, out):
        try:
            step()
        except Exception:  # noqa: BLE001
            traceback.print_exc()
    environment = {**os.environ, "ONNXOPT_GEMM_TUNE": str(out / "gemm_algos.json")}
    command = [
        sys.executable,
        "-m",
        "benchmarks.kernels.gemms",
        "run",
        str(folder),
        "--out",
        str(out),
        "--stage",
        "tune",
        "--only",
        *products,
    ]
    subprocess.run(command, env=environment, timeout=_SECONDS["tune"] + 40, check=False)
    print(f"{time.perf_counter() - started:.0f} s")


def _steps(library: str, names: dict[str, str], products: list[str], out: pathlib.Path) -> Iterator[Callable[[], None]]:
    def correctness() -> None:
        found: dict[str, Any] = {}
        try:
            check(library, found, _SECONDS["check"])
        finally:
            (out / "forms.json").write_text(json.dumps(found, indent=1))

    def times() -> None:
        started = time.perf_counter()
        rows = measure(library, names, list(variants("")), products, _SECONDS["time"] - 25)
        (out / "products.json").write_text(json.dumps(rows, indent=1))
        peers(rows, started + _SECONDS["time"])
        (out / "products.json").write_text(json.dumps(rows, indent=1))
        print(table(rows), flush=True)

    yield correctness
    yield times


def main() -> None:
    parser, (_, ran) = command(__doc__)
    ran.add_argument("--out", type=pathlib.Path, default=pathlib.Path())
    ran.add_argument("--stage", default="all", choices=("all", "check", "tune"))
    ran.add_argument("--only", nargs="*", default=list(PRODUCTS), help="products to time")
    ran.add_argument("--transposed", nargs="*", default=list(TRANSPOSED), help="forms to check, in the stage check")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
    else:
        run(args.folder, args.out, args.stage, args.only, args.transposed)


if __name__ == "__main__":
    main()
