"""Which options of a provider configuration Triton's ONNX Runtime backend has, and under which names.

Source: the backend's own reading of config.pbtxt (triton-inference-server/onnxruntime_backend, src/onnxruntime.cc, and
its README). It passes every parameter of the accelerator "cuda" to the CUDA provider, refuses a model whose accelerator
"tensorrt" has a parameter outside its list, and takes four CUDA options from the model's own parameters only, two of
them as numbers: there its defaults overwrite what the accelerator says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, TypedDict

from onnxopt.errors import UsageError
from onnxopt.option_fields import option

DEVICES = ("auto", "gpu", "cpu")

_ALGO_SEARCH = {"EXHAUSTIVE": "0", "HEURISTIC": "1", "DEFAULT": "2"}
_ARENA = {"kNextPowerOfTwo": "0", "kSameAsRequested": "1"}
_CUDA_TOP_LEVEL: dict[str, dict[str, str] | None] = {
    "arena_extend_strategy": _ARENA,
    "cudnn_conv_algo_search": _ALGO_SEARCH,
    "do_copy_in_default_stream": None,
    "gpu_mem_limit": None,
}
_CUDA_LEFT_OUT = {
    "device_id": "Triton sets it from the instance group",
    "enable_cuda_graph": "a CUDA graph replays fixed addresses, and Triton hands over other buffers for each request",
    "has_user_compute_stream": "Triton sets it",
    "user_compute_stream": "Triton sets it",
}
_TENSORRT_RENAMED = {
    "trt_max_workspace_size": "max_workspace_size_bytes",
    "trt_int8_calibration_table_name": "int8_calibration_table_name",
    "trt_int8_use_native_calibration_table": "int8_use_native_calibration_table",
}
_TENSORRT_SAME = frozenset(
    "trt_" + key
    for key in (
        *(
            "auxiliary_streams",
            "build_heuristics_enable",
            "builder_optimization_level",
            "context_memory_sharing_enable",
        ),
        *("cuda_graph_enable", "detailed_build_log", "dla_core", "dla_enable", "dump_ep_context_model"),
        *("dump_subgraphs", "engine_cache_enable", "engine_cache_path", "engine_cache_prefix", "ep_context_embed_mode"),
        *("ep_context_file_path", "extra_plugin_lib_paths", "force_sequential_engine_build", "force_timing_cache"),
        *("layer_norm_fp32_fallback", "max_partition_iterations", "min_subgraph_size", "profile_max_shapes"),
        *("profile_min_shapes", "profile_opt_shapes", "sparsity_enable", "tactic_sources", "timing_cache_enable"),
        "timing_cache_path",
    )
)
_TENSORRT_PRECISION = {"trt_int8_enable": "INT8", "trt_fp16_enable": "FP16", "trt_bf16_enable": "BF16"}
_PATHS = ("trt_engine_cache_path", "trt_timing_cache_path")
_SESSION_OPTIONS = {
    "enable_cpu_mem_arena": "enable_mem_arena",
    "enable_mem_pattern": "enable_mem_pattern",
    "inter_op_num_threads": "inter_op_thread_count",
    "intra_op_num_threads": "intra_op_thread_count",
}
_EXECUTION_MODES = {"sequential": "0", "parallel": "1"}
_SESSION_CONFIG = ("session.use_device_allocator_for_initializers",)
GRAPH_LEVELS = {"all": 0, "basic": -1, "extended": 1, "disable_all": 2}


@dataclasses.dataclass(frozen=True)
class TritonOptions:
    """How Triton serves an artifact.

    settings: which file of providers/ to take. mount: e.g. /models in a container. tensorrt: on model.portable.onnx
    where the artifact has it, without the library. max_batch: where dim 0 of every input and output is the batch.
    """

    name: str | None = option(None, "Name of the model. Default: that of the original's file.", of=str)
    tensorrt: bool = option(False, "Run on the TensorRT provider, on the graph without fused functions.")
    max_batch: int = option(8, "Most requests that Triton runs together. Default: 8.", of=int)
    instances: int = option(1, "Sessions on each device. Default: 1.", of=int)
    device: str = option("auto", "Device to run on: auto, gpu or cpu. Default: auto.", of=str)
    settings: str | None = option(None, "File of providers/ to take, as h200. Default: cuda or cpu.", of=str)
    mount: str | None = option(
        None, "The repository's path as Triton sees it, as /models. Default: its path here.", of=str
    )

    def check(self) -> None:
        """UsageError for values that mean nothing, or do not fit together."""
        if self.max_batch < 1 or self.instances < 1:
            raise UsageError("the largest batch and the number of instances must be 1 or more")
        if self.device not in DEVICES:
            raise UsageError(f"no device {self.device!r}: choose {', '.join(DEVICES)}")
        if self.tensorrt and self.device == "cpu":
            raise UsageError("TensorRT needs a GPU: leave out the device, or TensorRT")


class TritonChanges(TypedDict, total=False):
    """The fields of `TritonOptions` as keywords, for type checkers; a test compares them."""

    name: str | None
    tensorrt: bool
    max_batch: int
    instances: int
    device: str
    settings: str | None
    mount: str | None


@dataclasses.dataclass
class BackendSettings:
    """parameters: of the model. accelerators: name to parameters, in the order of preference. graph_level: 0 is all of
    ORT's optimizations. left_out: settings that do not reach the backend, with the reason.
    """

    parameters: dict[str, str] = dataclasses.field(default_factory=dict)
    accelerators: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    graph_level: int = 0
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)

    def add_session(self, configuration: Mapping[str, Any]) -> None:
        """Session options and session configuration entries."""
        for key, value in configuration.get("session_options", {}).items():
            if key == "graph_optimization_level" and str(value) in GRAPH_LEVELS:
                self.graph_level = GRAPH_LEVELS[str(value)]
            elif key == "execution_mode" and str(value) in _EXECUTION_MODES:
                self.parameters[key] = _EXECUTION_MODES[str(value)]
            elif key in _SESSION_OPTIONS:
                self.parameters[_SESSION_OPTIONS[key]] = _text(value)
            else:
                self.left_out[key] = "the backend has no setting for it"
        for key, value in configuration.get("session_config", {}).items():
            if key in _SESSION_CONFIG:
                self.parameters[key] = _text(value)
            else:
                self.left_out[key] = "the backend passes no session configuration entries on"

    def add_cuda(self, provider_options: Mapping[str, Any]) -> None:
        self.accelerators["cuda"] = {}
        for key, value in provider_options.items():
            if key in _CUDA_LEFT_OUT:
                if key != "enable_cuda_graph" or _text(value) != "0":
                    self.left_out[key] = _CUDA_LEFT_OUT[key]
            elif key not in _CUDA_TOP_LEVEL:
                self.accelerators["cuda"][key] = _text(value)
            elif (codes := _CUDA_TOP_LEVEL[key]) is None:
                self.parameters[key] = _text(value)
            elif _text(value) in codes:
                self.parameters[key] = codes[_text(value)]
            else:
                self.left_out[key] = f"the backend knows no {value}; it takes {', '.join(codes)}"

    def add_tensorrt(self, provider_options: Mapping[str, Any], folder: PurePosixPath) -> None:
        """folder: where Triton sees the model's folder; caches whose path is relative go below it."""
        chosen = self.accelerators["tensorrt"] = {}
        for key, value in provider_options.items():
            text = _text(value)
            if key in _PATHS:
                chosen[key] = str(folder / text)
            elif key in _TENSORRT_PRECISION:
                if (
                    text == "1"
                    and chosen.setdefault("precision_mode", _TENSORRT_PRECISION[key]) != (_TENSORRT_PRECISION[key])
                ):
                    self.left_out[key] = f"the backend takes one precision, and {chosen['precision_mode']} came first"
            elif key in _TENSORRT_SAME or key in _TENSORRT_RENAMED:
                chosen[_TENSORRT_RENAMED.get(key, key)] = text
            else:
                self.left_out[key] = "not among the TensorRT options that the backend accepts"


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
