"""Models under torch.compile: one process for each model and mode, compiled side by side, timed alone."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

import torch

from benchmarks.cases import torch_decode
from benchmarks.support import skeletons
from benchmarks.support.workers import Job, Workers

CHANNELS_LAST, CUDNN_ATTENTION = "channels_last", "cuDNN attention"
MODES = ("reduce-overhead", "default", "max-autotune", CHANNELS_LAST)
DYNAMIC = {"bert": ("batch", "seq"), "vit": ("batch",), "llama": ("batch", "seq"), "llama_decode": ("past", "batch")}
_ROUNDS, _RUNS = 5, 40


def graph_of(name: str) -> tuple[str, dict[str, int]]:
    """The exported graph that a name stands for, and the sizes of its dynamic dims."""
    model, _, sizes = name.partition("@")
    if not sizes:
        return model, {}
    return f"{model}_dyn", dict(zip(DYNAMIC[model], map(int, sizes.split("x")), strict=False))


def net_of(name: str) -> tuple[Any, Any]:
    """A model in torch on the GPU, and its input."""
    harness, (exported, sizes) = skeletons.harness(), graph_of(name)
    model = exported.removesuffix("_dyn")
    if model == "llama_decode":
        batch = sizes.get("batch", 1)
        net = torch_decode.build(batch, sizes.get("past", 512))
        return net.cuda(), torch.full((batch, 1), 7, device="cuda")
    import torch_models

    x = torch.from_numpy(harness.sample_input(model)).cuda()
    if sizes:  # of the same kind and dtype, with these leading dims
        shape = (*sizes.values(), *x.shape[len(sizes) :])
        x = x.reshape(-1).repeat(-(-math.prod(shape) // x.numel()))[: math.prod(shape)].reshape(shape)
    return torch_models.build(model).cuda(), x


def compiled(net: Any, mode: str) -> Any:
    """The module as torch.compile makes it in one of MODES, or in the mode "dynamic".

    channels_last: reduce-overhead, with the weights of convolutions in that layout. "cuDNN attention":
    reduce-overhead, to be called within `attention_of`.
    """
    if mode == "dynamic":
        return torch.compile(net, dynamic=True)
    if mode == CHANNELS_LAST:
        return torch.compile(net.to(memory_format=torch.channels_last), mode="reduce-overhead", dynamic=False)
    return torch.compile(net, mode="reduce-overhead" if mode == CUDNN_ATTENTION else mode, dynamic=False)


def attention_of(mode: str) -> contextlib.AbstractContextManager[Any]:
    """In which a module of a mode is compiled and called: cuDNN's attention first where the mode asks for that."""
    if mode != CUDNN_ATTENTION:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    others = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *others], set_priority=True)


def input_for(mode: str, x: Any) -> Any:
    """The input in the layout of the mode. ValueError for channels_last where the input is no batch of images."""
    if mode != CHANNELS_LAST:
        return x
    if x.ndim != 4:
        raise ValueError(f"channels_last is a layout of images, the input has {x.ndim} dims")
    return x.contiguous(memory_format=torch.channels_last)


def work(names: str, mode: str) -> None:
    """A worker: compile, say so, wait for a line, then time. Speaks JSON lines. names: joined by +, of one model."""
    harness, start, finite = skeletons.harness(), time.perf_counter(), True
    with torch.inference_mode():
        nets: dict[str, Any] = {}
        runs: dict[str, Any] = {}
        for name in names.split("+"):
            net, x = net_of(name)
            try:
                x = input_for(mode, x)
            except ValueError as error:
                print(json.dumps({"failed": str(error)}), flush=True)
                return
            key = name if name.startswith("llama_decode") else name.partition("@")[0]  # a cache is part of the module
            if key not in nets:
                nets[key] = compiled(net, mode)
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


def workers(waiting: Iterable[tuple[str, str]], cache: str, log: TextIO) -> Workers[tuple[str, str]]:
    """Workers for models (or several names joined by +) in modes."""
    cores = os.cpu_count() or 16

    def job(name: str, mode: str) -> Job:
        threads = max(2, cores // 3 if mode == "max-autotune" else 2)  # that has many kernels
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
        }  # fmt: skip
        return Job((sys.executable, "-m", "benchmarks.support.torch_peers", name, mode), environment)

    return Workers({(name, mode): job(name, mode) for name, mode in waiting}, log)


def torch_rows(
    workers: Workers[tuple[str, str]], deadline: float, rows: dict[str, dict[str, Any]], beside: Iterable[Any]
) -> None:
    """Milliseconds of every worker into rows[model]["torch.compile MODE"], or why there are none.

    Nothing is timed before what goes on beside is done.
    """
    ready = dict(workers.ready(deadline))
    concurrent.futures.wait(list(beside))
    for (names, mode), said in ready.items():
        label, every = f"torch.compile {mode}", names.split("+")
        found: dict[str, Any] = dict.fromkeys(every, said.get("failed", "its output is not finite"))
        if said.get("finite"):
            rows[every[0]][f"{label} seconds until ready"] = said["ready"]
            try:
                found = {name: round(ms, 4) for name, ms in workers.answer((names, mode))["ms"].items()}
            except Exception as error:  # noqa: BLE001
                found = dict.fromkeys(every, f"failed: {type(error).__name__}: {error}"[:200])
        for name, value in found.items():
            rows[name][label] = value
        print(names, label, *found.values(), flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:3])
