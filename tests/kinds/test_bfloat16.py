"""Models of bfloat16: every kind of region, operators that have kernels for it, and a clear word on verification."""

from __future__ import annotations

import collections
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import models
import onnxopt
from cases.models import fuse
from onnxopt.errors import NotVerifiedError
from onnxopt.graph import normalize, read, write
from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.shapes.infer import InferShapesPass
from onnxopt.runtime import releases
from tests.support import graphs
from tests.support.attention.attention_graphs import WIDTH, Attention, ops


def in_bfloat16(model: ir.Model) -> ir.Model:
    """The model with bfloat16 wherever it had float32, as torch exports a module after .bfloat16()."""

    def narrow(tensor: ir.TensorProtocol) -> ir.Tensor:
        return ir.Tensor(tensor.numpy().astype(ml_dtypes.bfloat16), dtype=ir.DataType.BFLOAT16, name=tensor.name)

    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        if value.dtype == ir.DataType.FLOAT:
            value.type = ir.TensorType(ir.DataType.BFLOAT16)
            if value.const_value is not None:
                value.const_value = narrow(value.const_value)
    for node in model.graph:
        for output in node.outputs:
            output.type = None
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().dtype == ir.DataType.FLOAT:
                node.attributes[name] = ir.AttrTensor(name, narrow(attribute.as_tensor()))
            if name == "to" and attribute.as_int() == ir.DataType.FLOAT:
                node.attributes[name] = ir.AttrInt64(name, ir.DataType.BFLOAT16)
    InferShapesPass()(model)
    return model


@pytest.mark.models
@pytest.mark.parametrize("name", ["bert_tiny", "bert_tiny_dyn"])
def test_every_kind_of_region_takes_bfloat16(name: str, tmp_path: Path) -> None:
    model = normalize.normalize(in_bfloat16(read.load(models.path(name)).model)).model
    assert rewrite(model, tmp_path).applied["merge"] == 2
    counts = collections.Counter(ops(model))
    assert counts["MultiHeadAttention"] == counts["Split"] == 2
    assert counts["Attention"] == 0  # its CUDA kernels are of float16 and float32
    TransposeWeightsPass(gpu=True)(model)
    kinds = collections.Counter(region.kind.name for region in fuse(model).regions)
    looked_up = {"pointwise"} if name.endswith("_dyn") else set()  # words, for a number of tokens that may be large
    assert set(kinds) == {"rowwise", "gemm", "flash_attention", *looked_up}  # its GELU is a product's
    assert releases.of(model, library=True, archs=()).onnxruntime_cuda == "1.24"  # for MultiHeadAttention


@pytest.mark.models
def test_verification_says_why_it_cannot_run(tmp_path: Path) -> None:
    """ONNX Runtime's CPU provider has no bfloat16 Add, and most other kernels: there is nothing to compare with."""
    path = tmp_path / "model.onnx"
    write.save(in_bfloat16(read.load(models.path("bert_tiny")).model), tmp_path)
    with pytest.raises(NotVerifiedError, match="Could not find an implementation for Add"):
        onnxopt.optimize(path, tmp_path / "artifact", archs=())
    assert onnxopt.optimize(path, tmp_path / "artifact", archs=(), verify=False).manifest.kernels


def test_what_rewriting_does_is_exact_in_float32(tmp_path: Path) -> None:
    """The rules that serve bfloat16 alone (parts of one product for any size) on values that it holds exactly."""
    source = in_bfloat16(Attention().model())
    found = source.clone()
    assert rewrite(found, tmp_path).applied["merge"] == 1
    x = np.random.default_rng(0).standard_normal((2, 5, WIDTH))
    wide = [_in_float32(model) for model in (source, found)]
    feeds = {"x": x.astype(ml_dtypes.bfloat16).astype(np.float32)}
    expected, result = (graphs.run(model, feeds)[0] for model in wide)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def _in_float32(model: ir.Model) -> ir.Model:
    wide = model.clone()
    for value in (*wide.graph.inputs, *wide.graph.outputs, *wide.graph.initializers.values()):
        if value.dtype == ir.DataType.BFLOAT16:
            value.type = ir.TensorType(ir.DataType.FLOAT)
            if value.const_value is not None:
                array = value.const_value.numpy().astype(np.float32)
                value.const_value = ir.Tensor(array, dtype=ir.DataType.FLOAT, name=value.name)
    for node in wide.graph:
        for output in node.outputs:
            if not output.is_graph_output():
                output.type = None
    return wide
