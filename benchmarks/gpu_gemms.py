"""Products on the GPU: correctness over many forms, then the products of real models by every way of running them.

    python -m benchmarks.gpu_gemms prepare DIR --arch sm_90      on any machine, without a GPU
    python -m benchmarks.gpu_gemms run DIR                       on the GPU machine: onnxruntime, numpy, torch, onnx

Each timed model holds several products with weights of their own, as the layers of a network do, so that weights come
from memory and not from the cache; many runs are captured in one CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

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
ACTIVATIONS = ("none", "relu", "gelu_tanh")
EPILOGUES = {
    "plain": {},
    "bias": {"bias": 2},
    "residual": {"residual": 2},
    "bias_residual": {"bias": 2, "residual": 3},
    "relu": {"activation": "relu"},
    "bias_relu": {"bias": 2, "activation": "relu"},
    "bias_gelu": {"bias": 2, "activation": "gelu_tanh"},
    "gelu": {"activation": "gelu_tanh"},
    "bias_residual_relu": {"bias": 2, "residual": 3, "activation": "relu"},
    "scaled": {"alpha": 0.125, "bias": 2, "residual": 3, "beta": -0.5},
}
TRANSPOSED = {"NN": (False, False), "NT": (False, True), "TN": (True, False), "TT": (True, True)}
_DTYPES = ("float16", "bfloat16", "float32")
_WEIGHT_BYTES = 150e6  # of all weights of one timed model: more than the L2 cache holds
_SECONDS = {"check": 60.0, "time": 110.0, "tune": 50.0}


def kernel_name(dtype: str, epilogue: str, transposed: str) -> str:
    """The name of the fused function of a form; eight hex digits end it, as in every artifact."""
    number = list(EPILOGUES).index(epilogue) * 16 + list(TRANSPOSED).index(transposed)
    return f"Gemm_{dtype}_{epilogue}_{transposed}_{number:08x}"


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Write the library with a kernel for every form, and one for bias and GELU together."""
    from benchmarks.collection import Collection
    from onnxopt.gemm import Gemm
    from onnxopt.regions import Kernel, Kind

    folder.mkdir(parents=True)
    collection = Collection()
    half = TensorProto.FLOAT16
    nodes = [helper.make_node("Add", ["x", "b"], ["s"]), helper.make_node("Gelu", ["s"], ["y"])]
    ends = [helper.make_tensor_value_info(n, half, s) for n, s in (("x", ["m", "n"]), ("b", ["n"]), ("y", ["m", "n"]))]
    graph = helper.make_graph(nodes, "bias_gelu", ends[:2], ends[2:])
    collection.optimize(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
    (bias_gelu,) = collection.kernels
    for dtype in _DTYPES:
        for epilogue, fields in EPILOGUES.items():
            for name, (a, b) in TRANSPOSED.items():
                count = 2 + ("bias" in fields) + ("residual" in fields)
                meaning = Gemm((dtype,) * count, (dtype,), transpose_a=a, transpose_b=b, **fields)  # type: ignore[arg-type]
                meaning.verify()
                kernel = kernel_name(dtype, epilogue, name)
                collection.kernels[kernel] = Kernel(kernel, Kind.GEMM, ("MatMul",), meaning, (), ())
    collection.write_library(folder, [arch])
    (folder / "names.json").write_text(json.dumps({"bias_gelu": bias_gelu}))
    print(f"{len(collection.kernels)} kernels, {sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB")


# models


class Graph:
    """A model under construction, in one dtype, whose fused nodes call functions with a body of one Identity."""

    def __init__(self, dtype: str = "float16"):
        self.element = getattr(TensorProto, {"float32": "FLOAT"}.get(dtype, dtype.upper()))
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.functions: dict[str, int] = {}

    def input(self, name: str, dims: list[int | str] | None) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, self.element, dims))
        return name

    def weight(self, name: str, value: np.ndarray) -> str:
        tensor = TensorProto(name=name, data_type=self.element, dims=value.shape, raw_data=value.tobytes())
        self.initializers.append(tensor)
        return name

    def node(self, op: str, operands: list[str], domain: str = "", **attributes: Any) -> str:
        result = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [result], domain=domain, **attributes))
        if domain:
            self.functions[op] = len(operands)
        return result

    def output(self, name: str, dims: list[int | str] | None = None) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, self.element, dims))

    def bytes(self) -> bytes:
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("onnxopt", 1)]
        functions = []
        for name, count in self.functions.items():
            body = [helper.make_node("Identity", ["x0"], ["y0"])]
            operands = [f"x{k}" for k in range(count)]
            functions.append(helper.make_function("onnxopt", name, operands, ["y0"], body, opsets[:1]))
        graph = helper.make_graph(self.nodes, "g", self.inputs, self.outputs, self.initializers)
        return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9).SerializeToString()


# correctness

_M, _N, _K = 33, 40, 72
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {  # a, b before transposing
    "aligned": ((128, 256), (256, 384)),
    "large": ((1024, 768), (768, 3072)),
    "middling": ((_M, _K), (_K, _N)),
    "odd": ((37, 61), (61, 65)),
    "one row": ((1, 256), (256, 512)),
    "one row, odd": ((1, 61), (61, 33)),
    "one column": ((64, 96), (96, 1)),
    "depth 1": ((48, 1), (1, 56)),
    "depth 0": ((48, 0), (0, 56)),
    "no rows": ((0, 64), (64, 32)),
    "no columns": ((16, 64), (64, 0)),
    "rows of a batch": ((2, 3, _M, 64), (64, 48)),
    "batch": ((2, 3, 16, 32), (2, 3, 32, 24)),
    "batch, odd": ((3, 5, 7), (3, 7, 9)),
    "batch both ways": ((2, 1, 8, 16), (5, 16, 24)),
    "one a for all": ((8, 16), (6, 16, 24)),
    "batch of 0": ((0, 8, 16), (16, 24)),
}


def _turned(shape: tuple[int, ...], transposed: bool) -> tuple[int, ...]:
    return shape[:-2] + (shape[-1], shape[-2]) if transposed else shape


def _off(torch: Any, tensor: Any, elements: int) -> Any:
    """A copy of a tensor that starts some elements behind an aligned address."""
    store = torch.empty(tensor.numel() + elements, dtype=tensor.dtype, device=tensor.device)
    view = store[elements:].view(tensor.shape)
    view.copy_(tensor)
    return view


def _limit(dtype: str, tf32: bool, activation: str, magnitude: Any, depth: int) -> Any:
    """The error that is allowed for every element, from the sum of the magnitudes of what is added.

    Two roundings to storage, as some algorithms round the product before its epilogue: one fewer than the separate
    operators make.
    """
    step = {"float16": 2**-11, "bfloat16": 2**-8, "float32": 2**-24}[dtype]
    summing = (2**-11 if tf32 else 2**-23) * max(depth, 1) ** 0.5
    gelu = 1e-3 if dtype == "float16" else 5e-3 if dtype == "bfloat16" else 1e-5  # its tanh is the GPU's own
    return 2 * step * magnitude + summing * magnitude.max() + (gelu if activation == "gelu_tanh" else 0.0)


def check_form(library: str, dtype: str, epilogue: str, transposed: str, tf32: bool, device: str) -> dict[str, Any]:
    """The worst error over all shapes, in multiples of the limit, and the faults."""
    import onnxruntime as ort
    import torch

    from benchmarks.gpu_timing import bound, disagreement, poisoned

    fields = EPILOGUES[epilogue]
    graph = Graph(dtype)
    names = ["a", "b"] + [n for n in ("bias", "residual") if n in fields]
    operands = [graph.input(n, None) for n in names]
    graph.output(graph.node(kernel_name(dtype, epilogue, transposed), operands, "onnxopt"))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(library)
    cuda = ("CUDAExecutionProvider", {"use_tf32": "1" if tf32 else "0"})
    run_in = ort.InferenceSession(
        graph.bytes(), options, providers=[cuda if device == "cuda" else "CPUExecutionProvider"]
    )
    kind = getattr(torch, dtype)
    worst, faults, count = 0.0, [], 0
    for label, (a, b) in SHAPES.items():
        for offset in (0, 1) if label in ("aligned", "odd", "batch") else (0,):
            try:
                turn = TRANSPOSED[transposed]
                x = [torch.randn(_turned(s, t), device=device).to(kind) for s, t in zip((a, b), turn, strict=True)]
                p, q = (t.double().mT if turned else t.double() for t, turned in zip(x, turn, strict=True))
                alpha, beta = fields.get("alpha", 1.0), fields.get("beta", 1.0)
                y, magnitude = alpha * (p @ q), (alpha * (p @ q)).abs()
                if "bias" in fields:
                    x.append(torch.randn(y.shape[-1], device=device).to(kind))
                    y, magnitude = y + x[-1].double(), magnitude + x[-1].double().abs()
                if "residual" in fields:
                    x.append(torch.randn(y.shape, device=device).to(kind))
                    y, magnitude = y + beta * x[-1].double(), magnitude + (beta * x[-1].double()).abs()
                activation = fields.get("activation", "none")
                y = torch.relu(y) if activation == "relu" else y
                y = torch.nn.functional.gelu(y, approximate="tanh") if activation == "gelu_tanh" else y
                x = [_off(torch, t, offset) for t in x] if offset else x
                if y.numel() == 0:  # IO binding takes no empty tensors
                    if dtype == "bfloat16":
                        continue
                    (found,) = run_in.run(None, {n: t.cpu().numpy() for n, t in zip(names, x, strict=True)})
                    count += 1
                    if found.shape != tuple(y.shape):
                        faults.append([label, offset, f"shape {found.shape}"])
                    continue
                found = poisoned(y.shape, kind, device)
                found = _off(torch, found, offset) if offset else found
                bound(run_in, dict(zip(names, x, strict=True)), {run_in.get_outputs()[0].name: found})()
                if device == "cuda":
                    torch.cuda.synchronize()
                limit = _limit(dtype, tf32, activation, magnitude, p.shape[-1])
                error = disagreement((found.double() - y) / limit, torch.zeros_like(y), 0.0, 1.0)
                count += 1
                worst = max(worst, error)
                if error > 1:
                    faults.append([label, offset, error])
            except Exception as error:  # noqa: BLE001 - every other shape is worth having
                faults.append([label, offset, f"{type(error).__name__}: {error}"[:300]])
    return {"worst": worst, "runs": count, "faults": faults}


def check(library: str, out: dict[str, Any], device: str = "cuda") -> None:
    started = time.perf_counter()
    for tf32, dtype in ((False, "float16"), (False, "bfloat16"), (False, "float32"), (True, "float32")):
        for epilogue in EPILOGUES:
            for transposed in TRANSPOSED:
                label = f"{dtype}{' tf32' if tf32 else ''} {epilogue} {transposed}"
                if time.perf_counter() - started > _SECONDS["check"]:
                    out.setdefault("not reached", []).append(label)
                    continue
                out[label] = check_form(library, dtype, epilogue, transposed, tf32, device)
    rows = {k: v for k, v in out.items() if isinstance(v, dict)}
    faults = [(k, *f) for k, v in rows.items() for f in v["faults"]]
    print(f"check: {len(rows)} forms, {sum(v['runs'] for v in rows.values())} runs, {len(faults)} faults, "
          f"{len(out.get('not reached', ()))} forms not reached, {time.perf_counter() - started:.0f} s")  # fmt: skip
    for fault in faults[:25]:
        print("  ", fault)


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

    from benchmarks.gpu_timing import bound, microseconds_in_graph, session

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

    from benchmarks.gpu_timing import microseconds_in_graph

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


def measure(library: str, names: dict[str, str], wanted: list[str], seconds: float) -> dict[str, Any]:
    started = time.perf_counter()
    rows: dict[str, Any] = {}
    ways = variants(names["bias_gelu"])
    for product in PRODUCTS:
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
        for product in PRODUCTS if not compiled else ("bert fc1", "vit fc2", "llama down", "whisper fc1", "bert proj"):
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


TUNED = ("ours", "ours ^T", "ours +bias", "ours +bias+res", "ours +bias+res ^T")


def run(folder: pathlib.Path, out: pathlib.Path, stage: str) -> None:
    from benchmarks.gpu_timing import library as unpack

    started = time.perf_counter()
    names = json.loads((folder / "names.json").read_text())
    library = unpack(folder)
    if stage == "tune":  # in a process of its own: the variable is read once
        rows = measure(library, names, list(TUNED), _SECONDS["tune"])
        (out / "tuned.json").write_text(json.dumps(rows, indent=1))
        print("tuned\n" + table(rows))
        return
    for step in _steps(library, names, out):
        try:
            step()
        except Exception:  # noqa: BLE001
            traceback.print_exc()
    environment = {**os.environ, "ONNXOPT_GEMM_TUNE": str(out / "gemm_algos.json")}
    command = [sys.executable, "-m", "benchmarks.gpu_gemms", "run", str(folder), "--out", str(out), "--stage", "tune"]
    subprocess.run(command, env=environment, timeout=_SECONDS["tune"] + 40, check=False)
    print(f"{time.perf_counter() - started:.0f} s")


def _steps(library: str, names: dict[str, str], out: pathlib.Path) -> Iterator[Callable[[], None]]:
    def correctness() -> None:
        found: dict[str, Any] = {}
        try:
            check(library, found)
        finally:
            (out / "forms.json").write_text(json.dumps(found, indent=1))

    def times() -> None:
        started = time.perf_counter()
        rows = measure(library, names, list(variants("")), _SECONDS["time"] - 25)
        (out / "products.json").write_text(json.dumps(rows, indent=1))
        peers(rows, started + _SECONDS["time"])
        (out / "products.json").write_text(json.dumps(rows, indent=1))
        print(table(rows), flush=True)

    yield correctness
    yield times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    prepared = verbs.add_parser("prepare")
    prepared.add_argument("folder", type=pathlib.Path)
    prepared.add_argument("--arch", default="sm_90")
    ran = verbs.add_parser("run")
    ran.add_argument("folder", type=pathlib.Path)
    ran.add_argument("--out", type=pathlib.Path, default=pathlib.Path())
    ran.add_argument("--stage", default="all", choices=("all", "tune"))
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
    else:
        run(args.folder, args.out, args.stage)


if __name__ == "__main__":
    main()
