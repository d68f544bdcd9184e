"""Biases of strided transposed convolutions over a depth, which become sums in artifacts for GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cases.models import fuse
from onnxopt.graph import rewrite
from tests.graph.layout.test_layout import model, ops, same

INPUT = "float[N, 8, 5, 6, 7] x"
WEIGHTS = "float[8,8,3,3,3] w, float[8,8,3,1,1] t, float[8,8,1,3,3] s, float[8] b, float[8,8,1,1,1] p"


@pytest.mark.parametrize(
    ("conv", "apart"),
    [
        ("<strides=[2,2,2]>(x, w, b)", True),
        ("<strides=[1,2,1], pads=[1,1,1,1,1,1], output_padding=[0,1,0]>(x, w, b)", True),
        ("<strides=[2,1,1], pads=[0,1,0,0,0,0]>(x, w, b)", True),
        ("(x, w, b)", False),
        ("<strides=[2,2,2]>(x, w)", False),
        ("<strides=[2,1,1]>(x, t, b)", False),  # an image of the planes' rows
        ("<strides=[1,2,2]>(x, s, b)", False),  # planes that are images
    ],
)
def test_biases(conv: str, apart: bool, tmp_path: Path) -> None:
    source = model(f"v = ConvTranspose{conv}  r = Relu(v)  y = Conv(r, p)", INPUT, weights=WEIGHTS)
    found = source.clone()
    rewrite.rewrite(found, tmp_path, gpu=True)
    assert ("Add" in ops(found)) == apart
    same(source, found, 2)
    (region,) = (region for region in fuse(found).regions if region.kind.name == "convolution")
    strided = apart or "x, w)" in conv
    assert ("Relu" in [n.op_type for n in region.nodes]) != strided


def test_other_artifacts_keep_the_bias(tmp_path: Path) -> None:
    found = model("y = ConvTranspose<strides=[2,2,2]>(x, w, b)", INPUT, weights=WEIGHTS)
    rewrite.rewrite(found, tmp_path)
    assert "Add" not in ops(found)
