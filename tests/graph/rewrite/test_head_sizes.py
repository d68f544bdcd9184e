"""Heads of other sizes that zeros cannot fill up: which of them onnxopt's kernel gets, with the same results."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.graph.rewrite.test_padded_heads import HIDDEN, MISSES
from tests.support.attention_graphs import ops, rewritten

_KEPT = {  # and why no kernel of onnxopt's takes them either
    "float32": "onnxopt's kernel none of FLOAT",
    "too large": "260 elements",
    "one token, and a memory of any length": "1 queries are too few",
}


@pytest.mark.parametrize("name", MISSES)
def test_what_zeros_cannot_fill_up_is_for_onnxopts_kernel(name: str, tmp_path: Path) -> None:
    form, _ = MISSES[name]
    found, done = rewritten(form.model(), tmp_path)
    assert (done.applied["heads"], done.applied["attention"]) == (0, int(name not in _KEPT))
    assert bool(done.refusals) == (name in _KEPT)
    assert "Softmax" in ops(found)


def test_a_result_that_is_not_joined_keeps_its_products(tmp_path: Path) -> None:
    """onnxopt's kernel writes heads joined, so it could not run what stands in between."""
    form, _ = MISSES["q that is an input"]
    model = dataclasses.replace(form, inputs=f"{form.inputs}, bool[1, 1, 1, 20] hidden", end=HIDDEN).model()
    found, done = rewritten(model, tmp_path)
    assert done.applied["attention"] == 0
    assert done.refusals
    assert [op for op in ops(found) if op in ("MatMul", "Softmax")] == [*["MatMul"] * 3, "Softmax", *["MatMul"] * 2]
