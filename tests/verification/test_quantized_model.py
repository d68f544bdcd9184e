"""A trained int8 model: what a kernel changes there is what ONNX Runtime's own Tanh is off by.

ONNX Runtime's optimization levels all run the same Tanh, up to 5 units in the last place off. A later quantization
makes steps of such differences, so that the levels agree bit for bit and an artifact with a better Tanh does not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxopt.artifact import layout
from onnxopt.graph import read, traits
from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from onnxopt.verification.sampling import samples
from tests.support import real_models
from tests.support.fusing import cpu_kernels_forced

Run = Callable[[dict], np.ndarray]
CASES = [((1, 50), 0), ((1, 50), 13), ((4, 200), 9), ((8, 64), 9)]  # batch and length, seed


def _runner(path: Path, library: Path | None = None, *, optimize: bool = True) -> Run:
    session = sessions.open_session(path, library=library, optimize=optimize)
    return lambda feeds: sessions.run(session, feeds)["logits"].astype(np.float64)


def _with_exact_tanh(model: Path, path: Path) -> Path:
    """The model with its Tanh computed in float64."""
    proto = onnx.load(model)
    (node,) = [node for node in proto.graph.node if node.op_type == "Tanh"]
    (operand,), (result,) = node.input, node.output
    position = list(proto.graph.node).index(node)
    node.input[0], node.output[0] = "wide", "wide_tanh"
    proto.graph.node.insert(position, helper.make_node("Cast", [operand], ["wide"], to=onnx.TensorProto.DOUBLE))
    narrow = helper.make_node("Cast", ["wide_tanh"], [result], to=onnx.TensorProto.FLOAT)
    proto.graph.node.insert(position + 2, narrow)
    onnx.save(proto, path)
    return path


@pytest.mark.models
@pytest.mark.usefixtures("library")
def test_the_original_with_an_exact_tanh_differs_as_much_as_the_artifact(tmp_path: Path) -> None:
    model = real_models.path("tashkeel_bilstm_int8")
    with cpu_kernels_forced():
        artifact = flow.optimize(model, tmp_path / "out", archs=(), verify=False)
    assert any("Tanh" in kernel.ops for kernel in artifact.manifest.kernels)
    original, unoptimized = _runner(model), _runner(model, optimize=False)
    exact = _runner(_with_exact_tanh(model, tmp_path / "exact.onnx"))
    optimized = _runner(artifact.path / layout.MODEL, artifact.path / layout.LIBRARY_FOLDER / layout.LIBRARY)
    interface = traits.of(read.load(model).model)
    from_original, from_exact, exact_from_original = 0.0, 0.0, 0.0
    for sizes, seed in CASES:
        named = dict(zip(samples.symbols(interface.inputs), sizes, strict=True))
        feeds = samples.draw(interface.inputs, named, seed, interface.uses)
        expected = original(feeds)
        np.testing.assert_array_equal(unoptimized(feeds), expected)
        # Means: on some CPUs a code or two round otherwise in one of them.
        from_original += np.abs(optimized(feeds) - expected).mean()
        from_exact += np.abs(optimized(feeds) - exact(feeds)).mean()
        exact_from_original += np.abs(exact(feeds) - expected).mean()
    assert from_original > 0  # else the model no longer shows what this test is about
    assert from_original < 1.5 * exact_from_original
    assert from_exact < from_original / 2
