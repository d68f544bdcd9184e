"""Lowering as a step: every region of a plan gets its meaning, and no nodes are lowered twice on the way."""

from __future__ import annotations

import collections
import sys
from types import FrameType
from typing import Any

import onnx_ir as ir
import pytest

import models
from onnxopt.fusion import fuse as fusing
from onnxopt.fusion import outline
from onnxopt.fusion.lower import lower
from onnxopt.graph import normalize, read
from onnxopt.kinds import KINDS
from onnxopt.kinds.gemm.match import lower as lower_gemm
from onnxopt.kinds.pointwise.lower import lower as lower_pointwise
from onnxopt.kinds.rowwise.lower import lower as lower_rows
from onnxopt.kinds.scan.lower import lower as lower_scan
from tests.support.graphs import graph

_LOWERINGS = {f.__code__ for f in (lower_pointwise, lower_rows, lower_scan, lower_gemm)}
CHAIN = "a = Tanh(x)  b = Exp(a)  s = Softmax(b)  y = Mul(s, x)"


@pytest.mark.models
@pytest.mark.parametrize("name", ["bert_tiny_fp16_dyn", "llama_tiny_fp16"])
def test_no_region_that_is_kept_is_lowered_twice(name: str) -> None:
    """These have rows, rows joined with index operations, GEMMs or pointwise regions with and without these."""
    model = normalize.normalize(read.load(models.path(name)).model).model
    times: collections.Counter[frozenset[ir.Node]] = collections.Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in _LOWERINGS:
            local = frame.f_locals
            times[frozenset(local["region"].nodes if "region" in local else local["nodes"])] += 1

    sys.setprofile(count)
    try:
        plan = lower(fusing.fuse(model, KINDS), model.opset_imports)
    finally:
        sys.setprofile(None)
    kept = {region: times[frozenset(region.nodes)] for region in plan.regions}
    assert {region.kind.name for region in kept} >= {"pointwise", "rowwise"}
    assert set(kept.values()) == {1}


def test_every_region_gets_a_meaning() -> None:
    model = graph("float[N, 64] x", "float[N, 64] y", CHAIN)
    plan = lower(fusing.fuse(model, KINDS), model.opset_imports)
    assert plan.regions and all(region.meaning is not None for region in plan.regions)
    for region in plan.regions:
        region.meaning.verify()  # type: ignore[union-attr]


def test_a_plan_that_was_not_lowered_is_not_outlined() -> None:
    model = graph("float[N, 64] x", "float[N, 64] y", "a = Tanh(x)  y = Exp(a)")
    with pytest.raises(ValueError, match="lower the plan first"):
        outline.functions(fusing.fuse(model, KINDS), model.opset_imports)
