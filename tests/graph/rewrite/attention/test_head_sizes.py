"""Heads of other sizes that zeros cannot fill up: which of them onnxopt's kernel gets, and why others do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.rewrite.attention import head_sizes
from onnxopt.graph.rewrite.rule_sets import Scope
from onnxopt.graph.shapes.infer import infer
from tests.graph.rewrite.attention.test_padded_heads import HIDDEN, MISSES, close, drawn
from tests.support import graphs, refused
from tests.support.attention.attention_graphs import ops, rewritten

_KEPT = {  # and why onnxopt's kernel does not take them either
    "float32": "onnxopt's kernel none of FLOAT",
    "too large": "A head has 260 elements",
    "one token, and a memory of any length": "1 queries are too few for onnxopt's kernel",
}


def _reason(model: ir.Model) -> str:
    known = infer(model)
    known.write()
    rule = head_sizes.DotProductOfOwnKernel.rule(Scope(model.graph, known))
    return refused.reason(model, "a", rule)


@pytest.mark.parametrize("name", MISSES)
def test_what_zeros_cannot_fill_up_is_for_onnxopts_kernel(name: str, tmp_path: Path) -> None:
    form, _ = MISSES[name]
    found, done = rewritten(form.model(), tmp_path)
    assert (done.applied["heads"], done.applied["attention"]) == (0, int(name not in _KEPT))
    assert bool(done.refusals) == (name in _KEPT)
    assert "Softmax" in ops(found)
    if name in _KEPT:
        assert _KEPT[name] in _reason(form.model())


@pytest.mark.parametrize("name", ["a norm of q", "one term for all", "few tokens"])
def test_results_stay(name: str, tmp_path: Path) -> None:
    form, _ = MISSES[name]
    found, done = rewritten(form.model(), tmp_path)
    assert done.applied["attention"] == 1
    feeds = {"x": drawn(8, 8)}
    close(graphs.run(found, feeds)[0], graphs.run(form.model(), feeds)[0].astype(np.float64))


def test_a_result_that_is_not_joined_keeps_its_products(tmp_path: Path) -> None:
    """onnxopt's kernel writes heads joined, so it could not run what stands in between."""
    form, _ = MISSES["q that is an input"]
    model = dataclasses.replace(form, inputs=f"{form.inputs}, bool[1, 1, 1, 20] hidden", end=HIDDEN).model()
    found, done = rewritten(model, tmp_path)
    assert done.applied["attention"] == 0
    assert done.refusals
    assert [op for op in ops(found) if op in ("MatMul", "Softmax")] == [*["MatMul"] * 3, "Softmax", *["MatMul"] * 2]
    assert "writes concatenated heads" in _reason(model)
