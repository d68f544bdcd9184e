"""Transformers as exporters write them: one kernel for each layer's attention, without copies around it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from cases.models import fuse, laid_out, outline
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from onnxopt.program.flash_attention import FlashAttention
from tests.support.attention import exported_attentions
from tests.support.attention.exported_attentions import LAYERS, TOKENS

_VIEWS = {"Reshape", "Unsqueeze", "Squeeze"}
_COPIES = {"Split", "Slice", "Transpose", "Expand", "Concat", "Gather", *_VIEWS}
WINDOWS = {"gemma2": (31, 0), "gpt_oss": (31, 0), "modernbert": (16, 16)}


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_has_one_kernel_without_copies_around_it(name: str) -> None:
    model = laid_out(exported_attentions.load(name))
    plan = fuse(model, usual={"tokens": TOKENS})
    found = [region for region in plan.regions if region.kind is FLASH_ATTENTION]
    assert len(found) == LAYERS[name]
    meanings = [region.meaning for region in found if isinstance(region.meaning, FlashAttention)]
    assert {(m.heads, m.groups) for m in meanings} == {(4, 4 if name == "modernbert" else 2)}
    assert {m.cap for m in meanings} == {50.0 if name == "gemma2" else None}
    assert all((m.sinks is not None) == (name == "gpt_oss") and m.bias is None for m in meanings)
    windows = [(m.before, m.after) for m in meanings if m.before is not None]
    assert windows == [WINDOWS[name]] * (LAYERS[name] - 1) if name in WINDOWS else not windows
    of_node = {node: region for region in plan.regions for node in region.nodes}
    for region in found:
        for value in region.inputs:  # each is a product, a weight, or of a kernel that computes something
            node = value.producer()
            copies = of_node[node].nodes if node in of_node else () if node is None else (node,)
            ops = {n.op_type for n in copies}
            assert ops <= _VIEWS or ops - _COPIES, (name, value.name)
        assert all(use.node.op_type in ("MatMul", "Gemm") for use in region.outputs[0].uses())


@pytest.mark.parametrize("name", ["gemma2", "modernbert"])
def test_the_functions_compute_what_the_model_does(name: str) -> None:
    original = exported_attentions.load(name)
    tokens = np.random.default_rng(0).integers(3, 100, (2, TOKENS))
    (expected,) = _session(original.SerializeToString()).run(None, {original.graph.input[0].name: tokens})
    model = laid_out(original)
    outline(model, fuse(model))
    (found,) = _session(ir.to_proto(model).SerializeToString()).run(None, {original.graph.input[0].name: tokens})
    wide, wanted = found.astype(np.float64), expected.astype(np.float64)
    assert np.linalg.norm(wide - wanted) < 5e-3 * np.linalg.norm(wanted)  # float16 through all layers


def _session(model: bytes) -> ort.InferenceSession:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])
