"""export-triton: what becomes of provider and session options, for CUDA, for TensorRT and for one GPU's settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from onnxopt.artifact import layout
from onnxopt.artifact.export import triton
from onnxopt.artifact.export.triton_options import BackendSettings
from onnxopt.artifact.folder import hash_files
from onnxopt.errors import UsageError
from tests.support.artifacts import BATCHED, edit_manifest, make
from tests.support.fakes.triton_backend import Model, exported
from tests.support.small_models import write

pytestmark = pytest.mark.usefixtures("library")


def test_cuda_options_are_where_the_backend_looks(tmp_path: Path) -> None:
    """The values are those of providers/cuda.json, under the backend's names; enable_cuda_graph must not be passed."""
    model = Model(exported(tmp_path))
    (accelerator,) = model.config.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "cuda"
    codes = {"HEURISTIC": "1", "EXHAUSTIVE": "0", "kSameAsRequested": "1", "kNextPowerOfTwo": "0"}
    options = json.loads((tmp_path / "artifact/providers/cuda.json").read_text())["provider_options"]
    at_the_top = {"cudnn_conv_algo_search", "arena_extend_strategy", "do_copy_in_default_stream"} & set(options)
    assert len(at_the_top) >= 2
    for key in at_the_top:
        assert model.parameter(key) == codes.get(options[key], options[key])
    rest = {key: value for key, value in options.items() if key not in {*at_the_top, "enable_cuda_graph"}}
    assert dict(accelerator.parameters) == rest


def _options(**configuration: dict[str, Any]) -> BackendSettings:
    options = BackendSettings()
    options.add_session(configuration)
    return options


def test_session_options() -> None:
    options = _options(
        session_options={
            "graph_optimization_level": "extended",
            "intra_op_num_threads": 4,
            "enable_mem_pattern": False,
        },
        session_config={"session.use_device_allocator_for_initializers": "1", "session.intra_op.allow_spinning": "0"},
    )
    assert options.graph_level == 1
    assert options.parameters == {
        "intra_op_thread_count": "4",
        "enable_mem_pattern": "0",
        "session.use_device_allocator_for_initializers": "1",
    }
    assert set(options.left_out) == {"session.intra_op.allow_spinning"}


def test_cuda_options_that_triton_decides() -> None:
    options = BackendSettings()
    options.add_cuda(
        {
            "device_id": 3,
            "enable_cuda_graph": "1",
            "gpu_mem_limit": "100",
            "arena_extend_strategy": "new",
            "use_tf32": "0",
        }
    )
    assert options.accelerators == {"cuda": {"use_tf32": "0"}}
    assert options.parameters == {"gpu_mem_limit": "100"}
    assert set(options.left_out) == {"device_id", "enable_cuda_graph", "arena_extend_strategy"}
    assert "fixed addresses" in options.left_out["enable_cuda_graph"]


def test_tensorrt_options_are_those_that_the_backend_knows() -> None:
    options = BackendSettings()
    options.add_tensorrt(
        {
            "trt_fp16_enable": "1",
            "trt_int8_enable": "0",
            "trt_bf16_enable": "1",
            "trt_max_workspace_size": 1 << 30,
            "trt_engine_cache_path": "cache/sm_90",
            "trt_timing_cache_path": "/var/cache/trt",
            "trt_profile_min_shapes": "x:1x16",
            "trt_engine_hw_compatible": "1",
        },
        PurePosixPath("/models/m"),
    )
    assert options.accelerators["tensorrt"] == {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": str(1 << 30),
        "trt_engine_cache_path": "/models/m/cache/sm_90",
        "trt_timing_cache_path": "/var/cache/trt",
        "trt_profile_min_shapes": "x:1x16",
    }
    assert set(options.left_out) == {"trt_bf16_enable", "trt_engine_hw_compatible"}


def test_tensorrt_runs_without_the_library(tmp_path: Path) -> None:
    folder = exported(tmp_path, tensorrt=True, mount="/models")
    model = Model(folder)
    assert not model.config.model_operations.op_library_filename
    assert not (folder / "1" / "lib").exists()
    first, second = model.config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (first.name, second.name) == ("tensorrt", "cuda")
    assert first.parameters["trt_engine_cache_path"] == "/models/batched/tensorrt".replace("batched", folder.name)
    assert model.warm_up()


def test_tensorrt_takes_the_portable_graph(tmp_path: Path) -> None:
    made = make(tmp_path / "artifact", BATCHED)
    shutil.copy(write(tmp_path / "portable.onnx", BATCHED), made / layout.PORTABLE_MODEL)
    hashed = {n: f.model_dump() for n, f in hash_files(made).items()}
    edit_manifest(made, files=hashed)
    folder = triton.export_triton(made, tmp_path / "repository", tensorrt=True)
    assert (folder / "1" / "model.onnx").read_bytes() == (made / layout.PORTABLE_MODEL).read_bytes()
    assert Model(folder).warm_up()


def test_settings_of_one_gpu(tmp_path: Path) -> None:
    """As `optimize` writes them for the GPUs of its catalogue: NAME.json and NAME.tensorrt.json."""
    made = make(tmp_path / "artifact", BATCHED, ("sm_90",))
    part = {"session_options": {"execution_mode": "sequential"}, "session_config": {}}
    cuda = {"provider": "CUDAExecutionProvider", "provider_options": {"use_tf32": "0"}, **part}
    trt = {
        "provider": "TensorrtExecutionProvider",
        "provider_options": {"trt_profile_min_shapes": "x:1x16", "trt_engine_cache_path": "cache/sm_90"},
        "fallback_providers": [{"provider": "CUDAExecutionProvider", "provider_options": {"prefer_nhwc": "1"}}],
        **part,
    }
    for path in made.glob("providers/*.tensorrt.json"):
        path.unlink()
    (made / "providers/h200.json").write_text(json.dumps(cuda))
    (made / "providers/h200.tensorrt.json").write_text(json.dumps(trt))
    edit_manifest(made, files={n: f.model_dump() for n, f in hash_files(made).items()})

    def accelerators(number: int, **options: Any) -> dict[str, dict[str, str]]:
        model = Model(triton.export_triton(made, tmp_path / f"{number}", **options))
        assert model.parameter("execution_mode") == "0" or not options.get("settings")
        rows = model.config.optimization.execution_accelerators.gpu_execution_accelerator
        return {row.name: dict(row.parameters) for row in rows}

    assert accelerators(1, settings="h200") == {"cuda": {"use_tf32": "0"}}
    own = accelerators(2, settings="h200", tensorrt=True)
    assert own["tensorrt"]["trt_engine_cache_path"] == str(tmp_path / "2" / "chain" / "cache/sm_90")
    assert own["cuda"] == {"prefer_nhwc": "1"}
    unnamed = accelerators(3, tensorrt=True)["tensorrt"]
    assert unnamed["trt_profile_min_shapes"] == "x:1x16"
    assert unnamed["trt_engine_cache_path"] == str(tmp_path / "3" / "chain" / "tensorrt")
    with pytest.raises(UsageError, match="TensorrtExecutionProvider"):
        triton.export_triton(made, tmp_path / "4", settings="h200.tensorrt")
