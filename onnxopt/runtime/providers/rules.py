"""Configurations by rule, from what a model computes and what a GPU can do. `tune` refines them by measurement.

Every option has its reason in "why". An option that does nothing for the model is not listed.
"""

from __future__ import annotations

from typing import Any

from onnxopt.runtime.gpus import Gpu
from onnxopt.runtime.providers.facts import Facts
from onnxopt.runtime.sessions import CPU, CUDA, WITHOUT_INTEGER_KERNELS, WITHOUT_OPTIMIZERS

_LEVEL = {"graph_optimization_level": "ORT's own fusions run around ours; fused functions are opaque to them"}
_WITHOUT_INTEGER_KERNELS, _ = WITHOUT_INTEGER_KERNELS
_BINDING = (
    "Bind every input and output to buffers on the device that stay where they are, set these provider options, and "
    "run with the binding. Give each set of shapes and buffers a run option gpu_graph_id of its own (0, 1, ...); -1 "
    "runs without a graph. A plain run with other buffers would replay over the old ones: never set the option for it. "
    "onnxopt.load(artifact, cuda_graph=True) does all of this but the binding."
)


def cpu(facts: Facts) -> dict[str, Any]:
    """The CPU EP. Its defaults are right for a model that has the machine to itself."""
    config, why = {}, {}
    if facts.float8_codes:
        config[_WITHOUT_INTEGER_KERNELS] = "1"
        why[_WITHOUT_INTEGER_KERNELS] = "1.31 makes integer kernels of products of float8 codes, and then refuses them"
    if facts.trapping_optimizers:
        config[WITHOUT_OPTIMIZERS] = ";".join(facts.trapping_optimizers)
        why[WITHOUT_OPTIMIZERS] = "1.24 to 1.31 can end the process at a product of float16 after a Transpose"
    return {
        "provider": CPU,
        "provider_options": {},
        "session_options": {"graph_optimization_level": "all", "intra_op_num_threads": 0},
        "session_config": config,
        "why": {
            **_LEVEL,
            "intra_op_num_threads": "0 is one thread a physical core; set it where several sessions share the machine",
            **why,
        },
    }


def cuda(facts: Facts, gpu: Gpu | None = None) -> dict[str, Any]:
    """The CUDA EP for this model, on one GPU of the catalogue or, without one, on any."""
    options, why = _provider_options(facts, gpu)
    config = {"session.use_device_allocator_for_initializers": "1"}
    why["session.use_device_allocator_for_initializers"] = "weights outside the arena do not fragment it"
    if not facts.blocking:
        config["session.intra_op.allow_spinning"] = "0"
        why["session.intra_op.allow_spinning"] = "nothing heavy runs on the CPU, and spinning threads take its cores"
    if facts.dequantized_constants:
        config[_WITHOUT_INTEGER_KERNELS] = "1"
        why[_WITHOUT_INTEGER_KERNELS] = (
            "dequantizes constants once, at load, not in every run; what it switches off are the CPU's integer kernels"
        )
    configuration: dict[str, Any] = {
        "provider": CUDA,
        "provider_options": options,
        "session_options": {"graph_optimization_level": "all"},
        "session_config": config,
        "cuda_graph": cuda_graph(facts),
        "why": {**_LEVEL, **why},
    }
    if gpu is not None:
        configuration["gpu"] = {"key": gpu.key, "name": gpu.name, "compute_capability": gpu.compute_capability}
    return configuration


def _provider_options(facts: Facts, gpu: Gpu | None) -> tuple[dict[str, str], dict[str, str]]:
    """Options and their reasons."""
    rows = {
        "arena_extend_strategy": ("kSameAsRequested", "doubling the arena wastes up to half of the GPU's memory"),
        "do_copy_in_default_stream": ("1", "copies in a stream of their own race with kernels"),
        "enable_cuda_graph": (
            "0",
            "a plain session.run with other buffers would be answered from the old ones; see cuda_graph",
        ),
    }
    if facts.convolutions:
        rows |= _convolutions(facts)
    if facts.float32_products and gpu is not None:
        rows["use_tf32"] = (
            ("1", "as by ORT's default, float32 products run on TF32 tensor cores and round to 10 bits; 0 is exact")
            if gpu.has_tf32
            else ("0", f"{gpu.name} has no TF32")
        )
    return {k: v for k, (v, _) in rows.items()}, {k: w for k, (_, w) in rows.items()}


def _convolutions(facts: Facts) -> dict[str, tuple[str, str]]:
    """Options for the convolutions that ONNX Runtime runs itself, with their reasons."""
    rows = {
        "cudnn_conv_algo_search": (
            ("HEURISTIC", "asks cuDNN's quick heuristic, as every new shape asks anew; no release since 1.20 times")
            if facts.dynamic
            else ("EXHAUSTIVE", "asks cuDNN's more careful heuristic, once a shape; no release since 1.20 times")
        ),
        "cudnn_conv_use_max_workspace": ("1", "the fastest convolution algorithms need workspace"),
    }
    if not facts.convolutions_2d or not facts.dtypes & {"float16", "float32"}:
        return rows
    if facts.refused_nhwc:
        reason = f"1.31 refuses {facts.refused_nhwc} under prefer_nhwc and fuse_conv_bias"
        return rows | {"prefer_nhwc": ("0", reason), "fuse_conv_bias": ("0", reason)}
    if facts.float32_depthwise:
        reason = "cuDNN's depthwise convolutions of float32 in NHWC take several times those in NCHW"
        return rows | {"prefer_nhwc": ("0", reason), "fuse_conv_bias": ("0", "goes with prefer_nhwc")}
    if facts.computes_shapes:
        reason = "under prefer_nhwc, 1.31 computes shapes on the device, with copies that no CUDA graph can hold"
        return rows | {"prefer_nhwc": ("0", reason), "fuse_conv_bias": ("0", "goes with prefer_nhwc")}
    return rows | {
        "prefer_nhwc": (
            "1",
            "convolutions read NHWC, which onnxopt's kernels around them do too; goes with fuse_conv_bias",
        ),
        "fuse_conv_bias": ("1", "without it, ONNX Runtime adds each bias with a kernel of its own"),
    }


def cuda_graph(facts: Facts) -> dict[str, Any]:
    """Whether the model can run as a CUDA graph, which nodes prevent it, and what to do to have one."""
    if facts.blocking:
        return {
            "qualifies": False,
            "blocking": [{"node": node, "reason": reason} for node, reason in facts.blocking],
        }
    return {"qualifies": True, "blocking": [], "provider_options": {"enable_cuda_graph": "1"}, "how": _BINDING}
