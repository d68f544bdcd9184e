"""Every form of a product on the GPU against float64: dtypes, transposes, epilogues, batches, odd and empty shapes.

benchmarks/kernels/gemms.py runs it before it times anything.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

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
DTYPES = ("float16", "bfloat16", "float32")


def kernel_name(dtype: str, epilogue: str, transposed: str) -> str:
    """The name of the fused function of a form; eight hex digits end it, as in every artifact."""
    number = list(EPILOGUES).index(epilogue) * 16 + list(TRANSPOSED).index(transposed)
    return f"Gemm_{dtype}_{epilogue}_{transposed}_{number:08x}"


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
    "two rows": ((2, 200), (200, 37)),
    "rows of three matrices": ((3, 1, 1000), (1000, 9)),
    "four rows": ((4, 5632), (5632, 64)),
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
    return (*shape[:-2], shape[-1], shape[-2]) if transposed else shape


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
    return 2 * step * magnitude + summing * magnitude.max() + (gelu if activation == "gelu_tanh" else 1e-30)


def check_form(library: str, dtype: str, epilogue: str, transposed: str, tf32: bool, device: str) -> dict[str, Any]:
    """The worst error over all shapes, in multiples of the limit, and the faults."""
    import onnxruntime as ort
    import torch

    from benchmarks.support.gpu_timing import bound, disagreement, poisoned

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


def check(
    library: str,
    out: dict[str, Any],
    seconds: float,
    device: str = "cuda",
    transposed: Collection[str] = tuple(TRANSPOSED),
) -> None:
    """Check every form with these transposes for at most so many seconds, and print the faults."""
    started = time.perf_counter()
    for tf32, dtype in ((False, "float16"), (False, "bfloat16"), (False, "float32"), (True, "float32")):
        for epilogue in EPILOGUES:
            for turned in transposed:
                label = f"{dtype}{' tf32' if tf32 else ''} {epilogue} {turned}"
                if time.perf_counter() - started > seconds:
                    out.setdefault("not reached", []).append(label)
                    continue
                out[label] = check_form(library, dtype, epilogue, turned, tf32, device)
    rows = {k: v for k, v in out.items() if isinstance(v, dict)}
    faults = [(k, *f) for k, v in rows.items() for f in v["faults"]]
    print(f"check: {len(rows)} forms, {sum(v['runs'] for v in rows.values())} runs, {len(faults)} faults, "
          f"{len(out.get('not reached', ()))} forms not reached, {time.perf_counter() - started:.0f} s")  # fmt: skip
    for fault in faults[:25]:
        print("  ", fault)
