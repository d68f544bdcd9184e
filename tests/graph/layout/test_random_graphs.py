"""Random graphs of convolutions compute the same in channels last, and are refused where the original is."""

from __future__ import annotations

import collections
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from onnxopt.graph import normalize, rewrite
from tests.support.kinds.random_convolution_graphs import conv_graphs
from tests.support.kinds.random_sequence_graphs import sequence_graphs
from tests.support.kinds.random_volume_graphs import volume_graphs

REFUSALS = (errors.Fail, errors.InvalidArgument, errors.InvalidGraph, errors.RuntimeException, errors.NotImplemented)
LEVELS = (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)


def outcome(model: bytes, x: np.ndarray, level: ort.GraphOptimizationLevel) -> list[np.ndarray] | str:
    """The outputs, or why ONNX Runtime refuses."""
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    options.intra_op_num_threads = 1
    # It plans buffers by the sizes that it infers, which are wrong of a pool whose last window begins in the padding.
    options.enable_mem_reuse = False
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    except REFUSALS as error:
        return str(error)


def laid_out(proto: onnx.ModelProto, folder: Path, gpu: bool) -> tuple[ir.Model, int]:
    model = normalize.normalize(ir.from_proto(proto)).model
    return model, rewrite.rewrite(model, folder, gpu=gpu).applied["channels_last"]


@pytest.fixture(scope="module")
def seen() -> collections.Counter[str]:
    return collections.Counter()


def sizes(proto: onnx.ModelProto, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shape that the graph was drawn for, and others where its dims are symbolic: none, and more."""
    symbolic = [bool(dim.dim_param) for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    return [dims, *(tuple(map(int, np.where(symbolic, other, dims))) for other in (0, 11) if any(symbolic))]


@settings(max_examples=70, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=conv_graphs())
def test_results_stay(case, seen, tmp_path_factory) -> None:
    check(case, seen, tmp_path_factory.getbasetemp())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=sequence_graphs())
def test_results_of_one_dim_stay(case, seen, tmp_path_factory) -> None:
    check(case, seen, tmp_path_factory.getbasetemp())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=volume_graphs())
def test_results_of_three_dims_stay(case, seen, tmp_path_factory) -> None:
    check(case, seen, tmp_path_factory.getbasetemp(), gpu=True)


def check(
    case: tuple[onnx.ModelProto, tuple[int, ...]], seen: collections.Counter[str], folder: Path, *, gpu: bool = False
) -> None:
    """gpu: as in artifacts for GPUs."""
    proto, drawn = case
    model, count = laid_out(proto, folder, gpu)
    seen["moved" if count else "kept"] += 1
    text = ir.to_proto(model).SerializeToString()
    for dims in sizes(proto, drawn):
        x = np.random.default_rng(1).standard_normal(dims).astype(np.float32)
        expected = outcome(proto.SerializeToString(), x, LEVELS[0])
        for level in LEVELS:
            found = outcome(text, x, level)
            if x.size or "cannot be reshaped" not in str(expected):  # a Reshape of nothing to -1, now to a size
                compare(found, expected)
        seen["refused" if isinstance(expected, str) else "compared"] += 1


def compare(found: list[np.ndarray] | str, expected: list[np.ndarray] | str) -> None:
    assert isinstance(found, str) == isinstance(expected, str), (found, expected)
    for one, other in zip(found, expected, strict=True) if not isinstance(expected, str) else ():
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(other).max(initial=0.0)))


def test_most_graphs_were_moved_and_few_refused(seen) -> None:
    """The test above means something. Runs behind it."""
    assert seen["moved"] > 4 * seen["kept"]
    assert 0 < seen["refused"] < seen["compared"]
