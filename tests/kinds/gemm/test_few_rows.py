"""Which products get entry points for few rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from cases.models import fuse, outline
from onnxopt.codegen import generate, kernels_json
from onnxopt.fusion import entry_points
from onnxopt.kinds.gemm import few_rows
from onnxopt.kinds.gemm.few_rows import FewRowsProductsVariant
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.program.gemm import FewRowsVariant, Gemm


def kernel_of(dims, *, turned=True, uses=1):
    """The kernel of x (dims) @ w^T, both float16, where one node or several read one weight each."""
    nodes, weights, outputs = [], [], []
    for k in range(uses):
        shape = (96, 64) if turned else (64, 96)
        weights.append(numpy_helper.from_array(np.ones(shape, np.float16), f"w{k}"))
        weights.append(numpy_helper.from_array(np.ones(96, np.float16), f"b{k}"))
        if turned:
            nodes.append(helper.make_node("Transpose", [f"w{k}"], [f"t{k}"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", f"t{k}" if turned else f"w{k}"], [f"p{k}"]))
        nodes.append(helper.make_node("Add", [f"p{k}", f"b{k}"], [f"y{k}"]))
        outputs.append(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT16, None))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [*dims, 64])
    made = helper.make_graph(nodes, "g", [x], outputs, weights)
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    model = ir.serde.deserialize_model(proto)
    (kernel,) = outline(model, fuse(model))
    assert kernel.kind is GEMM
    return kernel


@pytest.mark.parametrize(
    ("dims", "rows"),
    [
        ((1, 1), [4, 1]),
        ((2,), [4, 2]),
        ((1, 2, 1), [4, 2]),
        ((3,), [4]),
        ((5,), []),
        ((8, 128), []),
        (("batch", 1), [4, 1, 2]),
        (("batch", 197), []),
        (("batch", "sequence"), []),
    ],
)
def test_rows_that_may_be_few(dims, rows) -> None:
    kernel = kernel_of(dims)
    assert all(isinstance(v, FewRowsProductsVariant) == (v.rows == 4) for v in kernel.variants)
    assert [v.rows for v in kernel.variants] == rows
    text = generate.generate([kernel])
    assert ('#include "gemm/few_rows_products.cuh"' in text) == bool(rows)
    assert text.count("FewRowsParams params") == len(rows)


def test_one_kernel_for_several_products() -> None:
    kernel = kernel_of(("batch", 1), uses=3)
    assert len(kernel.sites) == 3
    assert [v.rows for v in kernel.variants] == [4, 1, 2]


@pytest.mark.parametrize(
    ("columns", "blocks"), [([96], [16]), ([4224], [16]), ([4225], [32]), ([0], [32]), ([2048, 11264], [16, 32])]
)
def test_columns_of_a_block(columns: list[int], blocks: list[int]) -> None:
    """Small blocks of many warps where columns are few, so that every multiprocessor has some."""
    every = few_rows.entry_points("k", Gemm(("float16",) * 2, ("float16",), transpose_b=True), columns)
    products = [v for v in every if isinstance(v, FewRowsProductsVariant)]
    assert [v.threads // 32 * v.columns for v in products] == blocks
    assert all(64 << 10 < v.shared <= 99 << 10 for v in products)  # no GPU of 7.5 has it, all others do


def test_float32_is_added_in_threads() -> None:
    variants = few_rows.entry_points("k", Gemm(("float32",) * 2, ("float32",), transpose_b=True), [96])
    assert [(type(v), v.rows) for v in variants] == [(FewRowsVariant, 1), (FewRowsVariant, 2)]


def test_a_weight_as_it_is_has_no_entry_point() -> None:
    assert kernel_of((1,), turned=False).variants == ()


def test_tune_has_nothing_to_add() -> None:
    kernel = kernel_of((1,))
    assert entry_points.with_alternatives(kernel) == kernel
    assert '"rows": 4' in kernels_json.to_json([kernel], None)
