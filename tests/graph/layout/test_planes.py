"""Convolutions of volumes of few channels, whose planes become channels of images in artifacts for GPUs."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from cases.models import fuse
from onnxopt.graph import rewrite
from tests.graph.layout.test_layout import model, ops, same

INPUT, W = "float[N, 1, 5, 9, 8] x", "float[8,1,3,3,3] w"


def joined(source: ir.Model, folder: Path, *, gpu: bool = True) -> ir.Model:
    copy = source.clone()
    rewrite.rewrite(copy, folder, gpu=gpu)
    return copy


@pytest.mark.parametrize(
    ("conv", "inputs", "weight"),
    [
        ("<pads=[1,1,1,1,1,1]>(x, w, b)", INPUT, W),
        ("<strides=[2,2,1], pads=[0,1,0,1,0,1], dilations=[2,1,1]>(x, w)", INPUT, W),
        ("<pads=[2,0,0,1,0,0]>(x, w, b)", INPUT, "float[8,1,4,1,3] w"),
        ("<strides=[3,1,1]>(x, w)", INPUT.replace(" 1,", " 2,"), "float[16,2,2,3,3] w"),
    ],
)
def test_planes_become_channels(conv: str, inputs: str, weight: str, tmp_path: Path) -> None:
    source = model(f"y = Conv{conv}", inputs, weights=f"{weight}, float[8] b")
    found = joined(source, tmp_path)
    assert "Concat" in ops(found) and "Concat" not in ops(joined(source, tmp_path, gpu=False))
    assert [region.kind.name for region in fuse(found).regions].count("image_convolution") == 1
    same(source, found, 2)


@pytest.mark.parametrize(
    ("conv", "inputs", "weight"),
    [
        ("(x, w)", INPUT, "float[8,1,5,3,3] w"),  # five planes
        ("(x, w)", INPUT.replace(" 1,", " 3,"), "float[8,3,2,3,3] w"),
        ("(x, w)", INPUT, "float[6,1,3,3,3] w"),  # six filters
        ("(x, w)", INPUT, "float[8,1,3,1,1] w"),  # over the depth alone
        ("(x, w)", INPUT, "float[8,1,1,3,3] w"),  # over planes alone
        ("<dilations=[1,2,2]>(x, w)", INPUT, W),
        ('<auto_pad="SAME_UPPER">(x, w)', INPUT, W),
        ("(x, w)", INPUT.replace(" 5,", " D,"), W),
    ],
)
def test_others_stay(conv: str, inputs: str, weight: str, tmp_path: Path) -> None:
    assert "Concat" not in ops(joined(model(f"y = Conv{conv}", inputs, weights=weight), tmp_path))


def test_a_window_that_does_not_fit_is_for_onnx_runtime_to_refuse(tmp_path: Path) -> None:
    source = model("y = Conv(x, w)", INPUT.replace(" 5,", " 2,"), weights="float[8,1,3,3,3] w")
    assert "Concat" not in ops(joined(source, tmp_path))


def test_two_convolutions_of_one_weight(tmp_path: Path) -> None:
    first = "a = Conv<pads=[1,1,1,1,1,1]>(x, w)"
    source = model(f"{first}  c = Conv<dilations=[1,2,2]>(x, w)  m = ReduceMax(c)  y = Add(a, m)", INPUT, weights=W)
    found = joined(source, tmp_path)
    assert ops(found).count("Concat") == 1
    same(source, found, 3)
