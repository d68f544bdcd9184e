"""Mixtures of experts in float16: correctness, and time for every tile of blocks.

    python -m benchmarks.kernels.experts prepare DIR --arch sm_90    on any machine, without a GPU
    python -m benchmarks.kernels.experts run DIR --out OUT.json      on the GPU machine: torch; about 40 s

Each form of the two products is compared with float32 first. Tokens choose experts at random. grouped_us is torch's
grouped_mm between an argsort of the ids and adding up by index_add, outside of a CUDA graph, which it refuses;
loop_us two products of each expert that was chosen, whose ids are known beforehand, which ONNX Runtime has to read
back. read_gb_s counts the weights of chosen experts once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import lzma
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.kernels.products import Launches
from benchmarks.support.arguments import Rows, main_over_rows


class Model(NamedTuple):
    name: str
    experts: int
    chosen: int
    columns: int
    hidden: int


class Sides(NamedTuple):
    """As kinds/experts/cuda.py's Tile."""

    rows: int
    columns: int
    warps: int
    depth_bytes: int
    stages: int
    column_tiles: int = 1

    @property
    def name(self) -> str:
        return f"r{self.rows}c{self.columns}w{self.warps}d{self.depth_bytes}s{self.stages}t{self.column_tiles}"

    @property
    def shared(self) -> int:
        return self.stages * (self.depth_bytes // 2 * (self.columns * 2 + 16) + self.rows * (self.depth_bytes + 16))


MODELS = (Model("mixtral", 8, 2, 4096, 14336), Model("qwen3", 128, 8, 2048, 768))
FEW = (
    Sides(16, 128, 4, 128, 3), Sides(16, 128, 4, 128, 4), Sides(16, 256, 8, 64, 4), Sides(16, 256, 8, 128, 3),
)  # fmt: skip
SEVERAL = (Sides(32, 128, 4, 64, 4), Sides(32, 128, 4, 128, 3), Sides(32, 256, 8, 64, 4))
MANY = (
    Sides(128, 128, 8, 64, 3), Sides(64, 128, 4, 64, 4), Sides(64, 128, 4, 128, 3), Sides(64, 256, 8, 64, 4),
    Sides(128, 128, 4, 64, 3, 2), Sides(128, 128, 4, 64, 4, 2), Sides(128, 128, 4, 128, 3, 2),
    Sides(128, 256, 8, 64, 3, 2), Sides(128, 256, 8, 64, 4, 2), Sides(64, 128, 2, 64, 4, 2),
    Sides(256, 128, 8, 64, 3, 2),
)  # fmt: skip
FORMS = {"few": FEW, "several": SEVERAL, "many": MANY}
FORM_OF = {1: "few", 4: "few", 16: "few", 32: "several", 128: "many", 512: "many", 2048: "many"}
SPLITS = {
    "few": ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (2, 2), (2, 4), (2, 8), (4, 2), (4, 4), (4, 8), (4, 16)),
    "several": ((1, 1), (1, 2), (1, 4), (1, 8), (2, 4)),
    "many": ((1, 1), (1, 2)),
}
_THREADS = 256  # of the activation and the join


def prepare(folder: pathlib.Path, arch: str) -> None:
    from cases.experts import Case, fused
    from onnxopt.codegen import nvrtc
    from onnxopt.kinds.experts import cuda

    folder.mkdir(parents=True)
    (kernel,) = fused(Case(1, dtype="float16")).kernels
    lines = ['#include "experts/experts.cuh"', "namespace onnxopt {"]
    for model in MODELS:
        sizes = {f: getattr(model, f) for f in ("experts", "chosen", "columns", "hidden")}
        lines += cuda.struct(model.name, dataclasses.replace(kernel.program, **sizes))  # type: ignore[arg-type]
        for form, tiles in FORMS.items():
            for tile in tiles:
                for step, second in (("first", "false"), ("second", "true")):
                    call = f"run_{'many' if form == 'many' else 'few'}<{cuda.Tile(*tile).cuda('float16')}, {second}>"
                    lines += _entry(f"{model.name}_{form}_{tile.name}_{step}", 32 * tile.warps, model, call)
        for rows in sorted({tile.rows for tile in MANY}):
            lines += _entry(f"{model.name}_route{rows}", 1024, model, f"run_route<{rows}, 1024>")
        for step in ("activate", "join"):
            lines += _entry(f"{model.name}_{step}", _THREADS, model, f"run_{step}<{_THREADS}>")
    compiled = nvrtc.compiled("\n".join([*lines, "}  // namespace onnxopt"]), [arch])
    (folder / "experts.fatbin.xz").write_bytes(lzma.compress(compiled.fatbin))
    for symbol, usage in compiled.usage[arch].items():
        if usage.stack or usage.spilled:
            print(symbol, usage)


def _entry(symbol: str, threads: int, model: Model, call: str) -> list[str]:
    return [
        f'extern "C" __global__ void __launch_bounds__({threads})',
        f"{symbol}(const __grid_constant__ ExpertsParams p) {{ Experts<{model.name}>::{call}(p); }}",
    ]


class _Params(ctypes.Structure):  # ExpertsParams of experts/abi.h
    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("x", "ids", "factors", "first", "second", "no_bias", "no_other")),
        *((n, ctypes.c_void_p) for n in ("between", "sums", "y")),
        *((n, ctypes.c_void_p) for n in ("order", "tiles", "tile_count")),
        *((n, ctypes.c_void_p) for n in ("no_sorted", "no_products", "no_places")),
        ("splits", ctypes.c_int * 2),
        ("most_tiles", ctypes.c_int),
        ("rows", ctypes.c_int),
    )


class Layer:
    """A model's weights, and tokens with what they choose."""

    def __init__(self, model: Model) -> None:
        import torch

        self.model = model
        given: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
        self.first = torch.randn(model.experts, model.columns, 2 * model.hidden, **given) / model.columns**0.5
        self.second = torch.randn(model.experts, model.hidden, model.columns, **given) / model.hidden**0.5

        self.marks = torch.arange(model.experts, device="cuda")

    def choose(self, tokens: int) -> tuple[Any, Any, Any]:
        import torch

        x = torch.randn(tokens, self.model.columns, device="cuda", dtype=torch.float16)
        scores = torch.randn(tokens, self.model.experts, device="cuda").softmax(-1)
        factors, ids = scores.topk(self.model.chosen, dim=-1)
        return x, ids.contiguous(), (factors / factors.sum(-1, keepdim=True)).contiguous()

    def reference(self, x: Any, ids: Any, factors: Any) -> Any:
        """In float32, of sums that are rounded where the graph stores them."""
        import torch

        y = torch.zeros(x.shape, device="cuda")
        for e in ids.unique().tolist():
            token, choice = (ids == e).nonzero(as_tuple=True)
            gate, up = (x[token].float() @ self.first[e].float()).chunk(2, dim=-1)
            h = (torch.nn.functional.silu(gate) * up).half()
            part = (h.float() @ self.second[e].float()).half().float()
            y.index_add_(0, token, part * factors[token, choice, None])
        return y

    def loop(self, x: Any, groups: list[tuple[int, Any, Any]], factors: Any) -> Any:
        import torch

        y = torch.zeros(x.shape, device="cuda")
        for e, token, choice in groups:
            gate, up = (x[token] @ self.first[e]).chunk(2, dim=-1)
            part = (torch.nn.functional.silu(gate) * up) @ self.second[e]
            y.index_add_(0, token, part * factors[token, choice, None])
        return y.half()

    def grouped(self, x: Any, ids: Any, factors: Any) -> Any:
        import torch

        multiply: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        flat = ids.flatten()
        order = flat.argsort()
        token = order // self.model.chosen
        ends = torch.searchsorted(flat[order], self.marks, right=True).to(torch.int32)
        gate, up = multiply(x[token], self.first, offs=ends).chunk(2, dim=-1)
        part = multiply(torch.nn.functional.silu(gate) * up, self.second, offs=ends)
        y = torch.zeros(x.shape, device="cuda")
        return y.index_add_(0, token, part * factors.flatten()[order, None]).half()


def measure(ours: Launches, layer: Layer, tokens: int) -> dict[str, Any]:
    """Microseconds of every tile, all of which agree with float32, and of torch."""
    import torch

    from benchmarks.support.gpu_timing import all_of, microseconds_in_graph

    model, stream = layer.model, torch.cuda.Stream()
    x, ids, factors = layer.choose(tokens)
    expected = layer.reference(x, ids, factors)
    rows = tokens * model.chosen
    form = FORM_OF[tokens]
    half: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    between = torch.empty(rows, model.hidden, **half)
    most_sums = max(max(first * 2 * model.hidden, second * model.columns) for first, second in SPLITS[form])
    sums = torch.empty(rows * most_sums, device="cuda")
    y = torch.empty(tokens, model.columns, **half)
    times: dict[str, float] = {}
    for tile, splits in itertools.product(FORMS[form], SPLITS[form]):
        most = min(rows, model.experts) + (rows // tile.rows if form == "many" else 0)
        ints = torch.zeros(rows + 3 * most + 1, device="cuda", dtype=torch.int32)
        order = ints.data_ptr()
        params = _Params(
            *(t.data_ptr() for t in (x, ids, factors, layer.first, layer.second)), None, None,
            *(t.data_ptr() for t in (between, sums, y)),
            order, order + 4 * rows, order + 4 * (rows + 3 * most), None, None, None,
            (ctypes.c_int * 2)(*splits), most, rows,
        )  # fmt: skip
        name = f"{model.name}_{form}_{tile.name}"
        blocks = [-(-2 * model.hidden // tile.columns), -(-model.columns // tile.columns)]

        def once(params: Any = params, name: str = name, blocks: list[int] = blocks, tile: Sides = tile,
                 most: int = most, splits: tuple[int, int] = splits) -> None:  # fmt: skip
            on = stream.cuda_stream
            if form == "many":
                ours.launch(f"{model.name}_route{tile.rows}", 1, 1024, params, on)
            for k, step in enumerate(("first", "second")):
                count = most * blocks[k] * splits[k]
                ours.launch(f"{name}_{step}", count, 32 * tile.warps, params, on, tile.shared)
                if k == 0 and splits[0] > 1:
                    ours.launch(f"{model.name}_activate", -(-between.numel() // _THREADS), _THREADS, params, on)
            ours.launch(f"{model.name}_join", -(-y.numel() // (4 * _THREADS)), _THREADS, params, on)

        y.fill_(float("nan"))
        torch.cuda.synchronize()
        label = f"{tile.name}_{splits[0]}_{splits[1]}"
        times[label] = round(microseconds_in_graph([once], stream, at_least=8, replays=6), 1)
        error = ((y.float() - expected).norm() / expected.norm()).item()
        if not error < 2e-3:
            raise RuntimeError(f"{label}: wrong by {error:.1e}")
    best = sorted(times.items(), key=lambda t: t[1])
    groups = [(e, *(ids == e).nonzero(as_tuple=True)) for e in ids.unique().tolist()]
    peers: dict[str, Any] = {
        "loop_us": lambda: microseconds_in_graph(
            [lambda: layer.loop(x, groups, factors)], stream, at_least=4, replays=4
        ),
        "grouped_us": lambda: _in_stream(lambda: layer.grouped(x, ids, factors)),
    }
    read = len(groups) * 3 * model.hidden * model.columns * 2
    return {
        "best_us": best[0][1], "best": best[0][0], **all_of(peers), "read_gb_s": round(read / best[0][1] / 1e3),
        "tflops": round(6 * rows * model.hidden * model.columns / best[0][1] / 1e6), "all": dict(best),
    }  # fmt: skip


def _in_stream(call: Callable[[], object]) -> float:
    """Microseconds of a call, the least of several rounds of ten in a row."""
    import torch

    call()
    times = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(10):
            call()
        end.record()
        torch.cuda.synchronize()
        times.append(100 * begin.elapsed_time(end))
    return min(times)


def rows(folder: pathlib.Path) -> Rows:
    import torch

    torch.zeros(1, device="cuda")
    ours = Launches(lzma.decompress((folder / "experts.fatbin.xz").read_bytes()))
    for model in MODELS:
        layer = Layer(model)
        for tokens in FORM_OF:
            yield f"{model.name}, {tokens} tokens", functools.partial(measure, ours, layer, tokens)
        del layer
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main_over_rows(__doc__, prepare, rows))
