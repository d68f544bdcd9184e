"""Triton's ONNX Runtime backend, as far as a machine without Triton can be it: config.pbtxt in, requests through ORT.

It reads config.pbtxt with Triton's own protobuf, and takes from it what the backend takes (source: the backend's
src/onnxruntime.cc): the model's path, the graph level, the parameters, the libraries, in that order, and the shapes it
checks requests against. The warm-up requests are run as Triton's core runs them.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

from onnxopt.artifact.export import triton
from tests.support.artifacts import BATCHED, make

LEVELS = {
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


@dataclasses.dataclass
class Model:
    """One model of a repository, loaded on the CPU (the accelerators are looked at by the tests)."""

    folder: Path

    def __post_init__(self) -> None:
        text = (self.folder / "config.pbtxt").read_text()
        self.config = text_format.Parse(text, model_config_pb2.ModelConfig())
        assert self.config.name == self.folder.name
        assert self.config.backend == "onnxruntime"
        options = ort.SessionOptions()
        options.graph_optimization_level = LEVELS[self.config.optimization.graph.level]
        for key in ("intra_op_thread_count", "inter_op_thread_count"):
            if key in self.config.parameters:
                setattr(options, key.replace("thread_count", "num_threads"), int(self.parameter(key)))
        if "session.use_device_allocator_for_initializers" in self.config.parameters:
            key = "session.use_device_allocator_for_initializers"
            options.add_session_config_entry(key, self.parameter(key))
        for library in self.config.model_operations.op_library_filename:
            options.register_custom_ops_library(library)
        model = self.folder / "1" / (self.config.default_model_filename or "model.onnx")
        self.session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._check("input", self.config.input, self.session.get_inputs())
        self._check("output", self.config.output, self.session.get_outputs())

    def parameter(self, key: str) -> str:
        return str(self.config.parameters[key].string_value)

    def _check(self, kind: str, rows: Any, declared: Any) -> None:
        """The backend's own comparison of config and model (CompareDimsSupported and the code around it)."""
        assert [r.name for r in rows] == [d.name for d in declared], kind
        for row, tensor in zip(rows, declared, strict=True):
            found = [d if isinstance(d, int) else -1 for d in tensor.shape]
            dims = list(row.reshape.shape if row.HasField("reshape") else row.dims)
            where = (row.name, found, dims)
            if not found:
                assert self.config.max_batch_size == 0, where
                assert all(d == 1 for d in dims) and not row.HasField("reshape"), where
                continue
            if self.config.max_batch_size:
                assert found[0] == -1, where
                dims = [-1, *dims]
            assert len(found) == len(dims), where
            for one, other in zip(found, dims, strict=True):
                if kind == "output" or one != -1:
                    assert one == other, where

    def warm_up(self) -> list[tuple[int, dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """Run the warm-up requests: (batch size, inputs, outputs) of each."""
        done = []
        for sample in self.config.model_warmup:
            assert 1 <= sample.batch_size <= max(1, self.config.max_batch_size)
            feeds = {row.name: self._input(row, sample) for row in self.config.input}
            outputs = [row.name for row in self.config.output]
            done.append((sample.batch_size, feeds, dict(zip(outputs, self.session.run(outputs, feeds), strict=True))))
        return done

    def _input(self, row: Any, sample: Any) -> np.ndarray:
        entry = sample.inputs[row.name]
        assert entry.data_type == row.data_type
        assert len(entry.dims) == len(row.dims)
        assert all(d in (-1, e) for d, e in zip(row.dims, entry.dims, strict=True))
        raw = (self.folder / "warmup" / entry.input_data_file).read_bytes()
        dtype = model_config_pb2.DataType.Name(row.data_type).removeprefix("TYPE_").replace("STRING", "BYTES")
        if dtype == "BYTES":
            array = np.array([t.decode() for t in deserialize_bytes_tensor(raw)], dtype=object)
        else:
            array = np.frombuffer(raw, triton_to_np_dtype(dtype))
        assert array.size == math.prod(entry.dims)
        (declared,) = (tensor for tensor in self.session.get_inputs() if tensor.name == row.name)
        is_single = row.HasField("reshape") or not declared.shape
        array = array.reshape([] if is_single else list(entry.dims))
        return np.stack([array] * sample.batch_size) if self.config.max_batch_size else array


def exported(tmp_path: Path, text: str = BATCHED, archs: tuple[str, ...] = ("sm_90",), **options: Any) -> Path:
    """The model's folder of a repository made from an artifact at tmp_path/artifact."""
    return triton.export_triton(make(tmp_path / "artifact", text, archs), tmp_path / "repository", **options)
