"""Weights that lie transposed: which are turned around, that products read them so, and that results stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.kinds.gemm.kind import GEMM
from tests.support.graphs import graph, run

INPUTS, OUTPUT = "float16[S, 256] x, float16[512] b", "float16[] y"
PLAIN = "y = MatMul(x, w)"


def model(body: str, dims: tuple[int, ...] = (256, 512), dtype: str = "float16", outputs: str = OUTPUT) -> ir.Model:
    """A graph around a weight w of these dims."""
    source = graph(INPUTS.replace("float16", dtype), outputs.replace("float16", dtype), body)
    array = np.random.default_rng(2).standard_normal(dims).astype("float32" if dtype == "float" else dtype)
    weight = ir.Value(name="w", const_value=ir.Tensor(array, name="w"))
    weight.shape, weight.type = weight.const_value.shape, ir.TensorType(weight.const_value.dtype)  # type: ignore[union-attr]
    for node in source.graph:
        for k, value in enumerate(node.inputs):
            if value is not None and value.name == "w":
                node.replace_input_with(k, weight)
    source.graph.register_initializer(weight)
    return source


def turn(source: ir.Model) -> bool:
    return TransposeWeightsPass(gpu=True)(source).modified


def gemms(source: ir.Model):
    return [k for k in outline(source, fuse(source)) if k.kind is GEMM]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (PLAIN, {}),
        ("m = MatMul(x, w)  y = Add(m, b)", {"bias": 2}),
        ("m = MatMul(x, w)  s = Add(m, b)  y = Sigmoid(s)", {}),  # the kernel of the Sigmoid adds the bias
    ],
)
def test_products_read_the_weight_as_it_lies(body, fields):
    source = model(body)
    assert turn(source)
    (weight,) = source.graph.initializers.values()
    assert weight.const_value.shape.numpy() == (512, 256)
    (kernel,) = gemms(source)
    meaning = kernel.program.to_json()
    assert meaning["transpose_b"]
    assert not meaning["transpose_a"]
    assert meaning.get("bias") == fields.get("bias")
    assert kernel.sites[0].traffic.launches_before == 1 + ("bias" in fields)  # nobody turns the weight at run time


@pytest.mark.parametrize(
    ("body", "dims", "dtype"),
    [
        (PLAIN, (256, 128), "float16"),  # small
        (PLAIN, (95, 512), "float"),
        ("y = MatMul(w, x)", (512, 256), "float16"),  # the first operand
        ("m = MatMul(x, w)  n = MatMul(x, w)  y = Concat<axis = 0>(m, n)", (256, 512), "float16"),
        ("y = Gemm(x, w, b)", (256, 512), "float16"),
        ("y = MatMul(x, w)", (3, 256, 512), "float16"),
    ],
)
def test_other_weights_stay_as_they_are(body, dims, dtype):
    source = model(body, dims, dtype)
    assert not turn(source)
    assert next(iter(source.graph.initializers.values())).const_value.shape.numpy() == dims


def test_weights_that_can_be_fed_or_are_results_stay():
    source = model(PLAIN)
    source.graph.inputs.append(source.graph.initializers["w"])
    assert not turn(source)
    source = model(PLAIN)
    source.graph.outputs.append(source.graph.initializers["w"])
    assert not turn(source)


@pytest.mark.parametrize("rows", [1, 5])
def test_results_stay(rows):
    body = "m = MatMul(x, w)  s = Add(m, b)  y = Gelu(s)"
    rng = np.random.default_rng(4)
    feeds = {"x": rng.standard_normal((rows, 256)).astype(np.float16), "b": rng.standard_normal(512).astype(np.float16)}
    expected = run(model(body), feeds)
    turned = model(body)
    assert turn(turned)
    np.testing.assert_array_equal(run(turned, feeds)[0], expected[0])
    gemms(turned)  # outlined, and inlined again by the run
    np.testing.assert_allclose(run(turned, feeds)[0].astype(float), expected[0].astype(float), rtol=2e-3, atol=1e-2)


def test_the_weight_is_turned_when_it_is_read():
    """No copy of a large model's weights is held in memory meanwhile."""
    source = model(PLAIN)
    turn(source)
    (weight,) = source.graph.initializers.values()
    assert isinstance(weight.const_value, ir.LazyTensor)
    assert weight.const_value.numpy().flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_large_weights_go_to_a_file(dtype: str, tmp_path: Path) -> None:
    source = model(PLAIN, (2048, 2304), dtype)
    (weight,) = source.graph.initializers.values()
    array = weight.const_value.numpy()
    offset, file = 64, tmp_path / "weights"
    file.write_bytes(bytes(offset) + array.tobytes())
    weight.const_value = ir.ExternalTensor(
        file.name, offset, array.nbytes, weight.dtype, shape=ir.Shape(array.shape), name="w", base_dir=str(tmp_path)
    )
    assert TransposeWeightsPass(gpu=True, keep=Joiner(tmp_path).constant)(source).modified
    (transposed,) = source.graph.initializers.values()
    assert isinstance(transposed.const_value, ir.ExternalTensor)
    np.testing.assert_array_equal(transposed.const_value.numpy(), array.T)
