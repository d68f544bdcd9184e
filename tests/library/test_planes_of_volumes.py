"""Volumes whose planes are images of kernels: the shapes of their results, and what such kernels do not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.graph import rewrite
from tests.graph.layout.test_layout import model
from tests.support.fakes import idle_gpu

pytestmark = pytest.mark.usefixtures("library")
ANY, DEEP = "float[N, 8, D, H, W] x", "float[N, 1, 5, H, W] x"
WEIGHTS = "float[8,1,1,3,3] d, float[8,1,3,3,3] w, float[8] b"


@pytest.mark.parametrize(
    ("body", "inputs", "kind", "channels"),
    [
        ("y = Conv<group=8, pads=[0,1,1,0,1,1]>(x, d, b)", ANY, "depthwise", 8),
        ("y = Conv<pads=[1,1,1,1,1,1], strides=[2,1,1]>(x, w, b)", DEEP, "image_convolution", 1),
        ("a = Conv<group=8, pads=[0,1,1,0,1,1]>(x, d)  y = MaxPool<kernel_shape=[1,2,2]>(a)", ANY, "pool", 8),
    ],
)
def test_shapes(body: str, inputs: str, kind: str, channels: int, tmp_path: Path) -> None:
    found = model(body, inputs, weights=WEIGHTS)
    rewrite.rewrite(found, tmp_path, gpu=True)
    kernels = outline(found, fuse(found))
    assert kind in [kernel.kind.name for kernel in kernels]
    feeds = [{"x": np.zeros((n, channels, 5, h, w), np.float32)} for n, h, w in ((2, 6, 7), (1, 9, 4), (0, 4, 4))]
    depth, less = (3, 0) if kind == "image_convolution" else (5, int(kind == "pool"))
    expected = [{"y": (n, 8, depth, h - less, w - less)} for n, h, w in ((2, 6, 7), (1, 9, 4), (0, 4, 4))]
    assert idle_gpu.calls(tmp_path / "run", ir.to_proto(found), idle_gpu.document(kernels), feeds) == expected


def test_an_operand_of_each_sample_is_not_read_beside_planes(tmp_path: Path) -> None:
    """A kernel takes the planes of a volume for samples; the product is a kernel of its own."""
    body = "a = Conv<group=8, pads=[0,1,1,0,1,1]>(x, d)  m = ReduceMean<keepdims=1>(x, s)  y = Mul(a, m)"
    found = model(body, ANY, weights=WEIGHTS, constants="int64[3] s = {2, 3, 4}")
    rewrite.rewrite(found, tmp_path, gpu=True)
    of_kind = [region for region in fuse(found).regions if region.kind.name == "depthwise"]
    assert [[n.op_type for n in region.nodes if n.op_type == "Mul"] for region in of_kind] == [[]]
