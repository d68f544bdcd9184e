"""Concats and Slices of channels that stand alone: kernels of ours in channels last, ONNX Runtime's elsewhere."""

from __future__ import annotations

import onnx
import pytest

from cases.block import Halves
from cases.models import fuse, laid_out
from onnxopt.fusion.region import FusionPlan
from tests.support.graphs import graph


def alone(plan: FusionPlan) -> list[str]:
    """The operators of the pointwise regions that copy alone."""
    copies = {"Concat", "Split", "Slice"}
    regions = [{n.op_type for n in r.nodes} for r in plan.regions if r.kind.name == "pointwise"]
    return sorted(" ".join(sorted(r)) for r in regions if r <= copies)


@pytest.mark.parametrize("symbolic", ["", "N"])
def test_copies_between_convolutions(symbolic: str) -> None:
    halves = Halves(activation="relu", symbolic=symbolic, shortcut=False)
    plan = fuse(laid_out(halves.model()))
    assert alone(plan) == ["Concat", "Slice"]
    assert not any(r.kind.pays_on_cpu(r) for r in plan.regions)
    copied = {r.nodes[0].op_type: r.traffic for r in plan.regions if alone(FusionPlan((r,), (), plan.shapes))}
    pixel = 2 * halves.n * halves.h * halves.w
    if not symbolic:  # the Slice reads one half of the channels, the Concat all of four halves
        assert copied["Concat"].bytes_after == pixel * 2 * 4 * 64
        assert copied["Slice"].bytes_before == pixel * 2 * 64


def test_both_parts_of_a_split_are_one_kernel() -> None:
    """Where both are read in front of the Concat."""

    def change(nodes: list[onnx.NodeProto], names: list[str]) -> None:
        (concat,) = (n for n in nodes if n.op_type == "Concat")
        concat.input[:] = ["right", "b0_y", "left"]

    plan = fuse(laid_out(Halves(activation="relu", depth=1, shortcut=False).model(change)))
    assert alone(plan) == ["Concat", "Split"]


def test_copies_elsewhere_stay() -> None:
    model = graph("float[4, 8, 5, 5] x, float[4, 3, 5, 5] z", "float[4, 11, 5, 5] y", "y = Concat<axis = 1>(x, z)")
    assert not fuse(model).regions
