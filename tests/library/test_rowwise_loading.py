"""Rowwise kernels in kernels.json: what the library refuses, and what it says."""

from __future__ import annotations

import json
import re

import pytest

from onnxopt.codegen import kernels_json, sealed_json
from tests.support.custom_ops.custom_ops_artifact import copy_library
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.kinds.rowwise_models import Fused, fused, session

pytestmark = pytest.mark.usefixtures("library")

VARIANT = "kernels.0.variants.0"
DAMAGE = {
    "axes missing": ("kernels.0.axes", ..., 'has no field "axes"'),
    "one axis": ("kernels.0.axes", [1], "kernels[0].axes does not have two numbers"),
    "axes beyond the rank": ("kernels.0.axes", [1, 3], "axes: not axes of view 0"),
    "no rows": ("kernels.0.axes", [1, 1], "axes: not axes of view 0"),
    "no view": ("kernels.0.views", [], "views: neither one nor two"),
    "two base views": ("kernels.0.views", [{"rank": 2, "target": None}] * 2, "views: not one view"),
    "target of another rank": ("kernels.0.views.0.target", [0], "views: a target has another rank"),
    "two open dims": ("kernels.0.views.0.target", [-1, -1], "several of -1"),
    "a view that is not there": ("kernels.0.operands.0.view", 1, "operands: no such view"),
    "operand missing": ("kernels.0.operands", [], "inputs: none, too many, or not as many as operands"),
    "unknown form": ("kernels.0.results.0.form", "column", "is no form of an output"),
    "output as a row": ("kernels.0.results.0.form", "row", "not what outputs store"),
    "no stages": ("kernels.0.stages", [], "stages: nothing is reduced"),
    "unknown reduction": ("kernels.0.stages.0.reductions.0", "median", 'is "median", which is no reduction'),
    "reduction missing": ("kernels.0.stages.0.reductions", [], "reductions and values differ in number"),
    "a slot too far": ("kernels.0.stages.0.element.reads.0", 99, "slot 99 does not hold what is read"),
    "a slot of another dtype": ("kernels.0.stages.0.element.reads.0", 3, "slot 3 does not hold what is read"),
    "a later slot": ("kernels.0.stages.1.element.reads.1", 6, "does not hold what is read"),
    "an instruction that is none": ("kernels.0.stages.1.element.code.0.op", "frob", "which is no primitive"),
    "unknown layout": (f"{VARIANT}.layout", "tiled", 'is "tiled", which is no layout'),
    "a pointwise mode": (f"{VARIANT}.modes", "R", "not one of the letters FKDC*"),
    "lanes that do not divide": (f"{VARIANT}.lanes", 48, "does not divide the threads"),
    "a cluster with other lanes": (f"{VARIANT}.cluster", 8, "are not those of the cluster"),
    "a launch whose others are missing": (f"{VARIANT}.layout", "split", "whose passes are not all there"),
    "a launch after nothing": (f"{VARIANT}.launch", 1, "whose passes are not all there"),
    "piped by a part of a block": (f"{VARIANT}.layout", "piped", "are not those of the cluster"),
    "shared memory below 0": (f"{VARIANT}.shared", -1, "is not an integer from 0"),
    "threads of no whole warp": (f"{VARIANT}.threads", 100, "is not a multiple of 32"),
    "unknown kind": ("kernels.0.kind", "spiral", "which this library does not know"),
}


def softmax() -> Fused:
    return fused("float16[50, 64] x", "float16[50, 64] y", "y = Softmax(x)")


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, tmp_path) -> None:
    field, value, message = DAMAGE[name]
    found = softmax()
    document = json.loads(kernels_json.to_json(found.kernels, None))
    set_field(field, value)(document)
    library = copy_library(tmp_path)
    (tmp_path / "kernels.json").write_text(sealed_json.seal(document))
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        session(found.optimized, library)
    assert "kernels.json" in str(caught.value)


def test_undamaged(tmp_path) -> None:
    found = softmax()
    library = copy_library(tmp_path)
    (tmp_path / "kernels.json").write_text(kernels_json.to_json(found.kernels, None))
    session(found.optimized, library)
