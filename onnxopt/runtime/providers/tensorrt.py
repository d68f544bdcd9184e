"""Configurations for TensorRT: it takes the whole plain graph, so neither the library nor fused functions are used.

Paths are relative to the artifact folder; "path_options" names the options that hold one.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxopt.errors import UsageError
from onnxopt.graph import signature, write
from onnxopt.graph.signature import Sizes
from onnxopt.runtime import releases
from onnxopt.runtime.gpus import Gpu
from onnxopt.runtime.providers import rules
from onnxopt.runtime.providers.facts import Facts
from onnxopt.runtime.sessions import CUDA

TENSORRT = "TensorrtExecutionProvider"
PORTABLE_MODEL = "model.portable.onnx"
MODELS = (PORTABLE_MODEL, write.MODEL_FILE)
_USUAL_RELEASE = "10"  # what ORT 1.18 to 1.31 link
# Options that ORT refuses before this release; the others that are used here are known from 1.21 on. Read from the
# providers' libraries of 1.21.1, 1.22.0, 1.23.2, 1.26.0 and 1.31.1.
SINCE = {"trt_bf16_enable": "1.23"}
# Sizes a dim takes: least, usual, most.
_BATCH, _SPACE, _OTHER = (1, 8, 32), (64, 224, 512), (1, 128, 512)


def refusal(facts: Facts) -> str:
    """Why no TensorRT configuration can be written for a model; "" where one can."""
    for tensor in facts.inputs:
        if tensor.dims is None:
            return f"the rank of input {tensor.name} is not declared, so that it has no shape profile"
        if tensor.dtype == "string" or tensor.kind != "tensor":
            return f"input {tensor.name} is a {tensor.kind} of {tensor.dtype}, which TensorRT does not take"
    return ""


def tensorrt(facts: Facts, gpu: Gpu, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The TensorRT EP on one GPU, with the CUDA EP as its fallback. shapes: the usual sizes, as optimize takes them."""
    release = linked_release() or _USUAL_RELEASE
    cache = f"tensorrt_cache/{gpu.arch}-trt{release}"
    built_for = f"an engine serves one architecture and one TensorRT: these are for {gpu.arch} and TensorRT {release}"
    rows = {
        "trt_engine_cache_enable": ("1", "building an engine takes minutes, loading one seconds"),
        "trt_engine_cache_path": (f"{cache}/engines", built_for),
        "trt_timing_cache_enable": ("1", "a second build reuses the timings: 384 s became 42 s for a diffusion UNet"),
        "trt_timing_cache_path": (f"{cache}/timing", "timings hold for one architecture and one TensorRT, too"),
        "trt_cuda_graph_enable": ("0", "fixed buffers are needed, as for the CUDA EP"),
    }
    if release == "10":
        rows |= {
            flag: ("1", f"the model is {dtype}, and TensorRT 10 computes so only where it may")
            for dtype, flag in (("float16", "trt_fp16_enable"), ("bfloat16", "trt_bf16_enable"))
            if dtype in facts.dtypes
        }
    rows |= _profiles(facts, shapes)
    fallback = rules.cuda(facts, gpu)
    newer = [SINCE[option] for option in rows if option in SINCE]
    return {
        "provider": TENSORRT,
        "provider_options": {k: v for k, (v, _) in rows.items()},
        "session_options": {"graph_optimization_level": "all"},
        "session_config": {},
        "model": list(MODELS),
        "library": False,
        "path_options": ["trt_engine_cache_path", "trt_timing_cache_path"],
        "fallback_providers": [{"provider": CUDA, "provider_options": fallback["provider_options"]}],
        "gpu": fallback["gpu"],
        **({"onnxruntime": max(newer, key=releases.parts)} if newer else {}),
        "why": {
            "graph_optimization_level": "what TensorRT leaves to the CUDA EP is optimized by ORT",
            "model": "the first of these that is there: TensorRT fuses plain nodes by itself",
            "library": "a fused function would cut TensorRT's graph in two",
            **{k: why for k, (_, why) in rows.items()},
        },
    }


def _profiles(facts: Facts, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[str, str]]:
    """min, opt and max shapes of every input with a dynamic dim; none where all are static."""
    if not facts.dynamic:
        return {}
    dynamic = [t for t in facts.inputs if any(signature.symbol_of(t, axis) for axis in range(len(t.dims or ())))]
    why = "TensorRT needs all dynamic inputs in each profile; sizes outside of it are refused or built again"
    named = {}
    for kind, sizes in zip(("min", "opt", "max"), _sizes(facts, shapes), strict=True):
        text = ",".join(f"{t.name}:{'x'.join(str(d) for d in signature.resolve(t, sizes))}" for t in dynamic)
        named[f"trt_profile_{kind}_shapes"] = (text, why)
    return named


def _sizes(facts: Facts, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Sizes, Sizes, Sizes]:
    """Least, usual and greatest size of every dynamic dim; one that `shapes` gives is the usual one."""
    try:
        pinned = signature.pin(facts.inputs, shapes)
    except UsageError:  # shapes of another stage's inputs
        pinned = {}
    batch, space = signature.roles(facts.inputs)
    smallest, usual, largest = {}, {}, {}
    for name in signature.symbols(facts.inputs):
        low, middle, high = _BATCH if name in batch else _SPACE if name in space else _OTHER
        if name in space:
            low, middle, high = (max(size // space[name], 1) for size in (low, middle, high))
        usual[name] = pinned.get(name, middle)
        smallest[name], largest[name] = min(low, usual[name]), max(high, usual[name])
    return smallest, usual, largest


@functools.cache
def linked_release() -> str | None:
    """The major release of TensorRT that the ORT at hand is linked with, None where it has no TensorRT EP."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parent / "capi" / "libonnxruntime_providers_tensorrt.so"
    try:
        linked = re.search(rb"libnvinfer\.so\.(\d+)", library.read_bytes())
    except OSError:
        return None
    return linked[1].decode() if linked else None
