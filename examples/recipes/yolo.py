"""A YOLO detector with its boxes and its non-maximum suppression (NMS) in one ONNX model.

    python yolo.py FOLDER [--small]

Writes FOLDER/model.onnx with a dynamic batch, and inputs.npz and expected.npz for check.py. Needs ultralytics, which is
under AGPL-3.0. The weights are random; `detector` is the place for your own. Images are float32
[batch, 3, height, width] from 0 to 1. Outputs, of n detections in all images:

    selected  int64 [n, 3]    image, class, anchor
    boxes     float32 [n, 4]  centre x, centre y, width, height in pixels
    scores    float32 [n]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnx.compose
import onnx.parser
import onnxruntime as ort
import torch
from ultralytics import YOLO

OPSET = 20
CANDIDATES = 100  # scores above the threshold, of two images at each of the three scales
NMS = """
<ir_version: {ir_version}, opset_import: ["" : {opset}]>
nms (float[batch, channels, anchors] raw) => (int64[n, 3] selected, float[n, 4] boxes, float[n] scores)
<int64[1] at_most = {{100}}, float[1] overlap = {{0.5}}, float[1] least = {{0.25}},
 int64[2] parts = {{4, {classes}}}, int64[2] image_and_anchor = {{0, 2}}> {{
  boxes_by_channel, class_scores = Split <axis = 1> (raw, parts)
  all_boxes = Transpose <perm = [0, 2, 1]> (boxes_by_channel)
  selected = NonMaxSuppression <center_point_box = 1> (all_boxes, class_scores, at_most, overlap, least)
  places = Gather <axis = 1> (selected, image_and_anchor)
  boxes = GatherND (all_boxes, places)
  scores = GatherND (class_scores, selected)
}}
"""


def detector(image: int) -> torch.nn.Module:
    """YOLO("yours.pt").model, set up for an export. Here with random weights."""
    torch.manual_seed(0)
    model: torch.nn.Module = YOLO("yolo11n.yaml").model
    spread_scores(model, image)
    head = model.model[-1]
    head.export, head.dynamic, head.format = True, True, "onnx"
    return model.eval()


def spread_scores(model: torch.nn.Module, image: int) -> None:
    """Weights with which some anchors are detections: untrained, all have one score. Trained ones need none of it."""
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.momentum = 1.0
    model.train()(torch.rand(2, 3, image, image))
    model.eval()
    for classes in model.model[-1].cv3:
        last, logits = classes[-1], []
        hook = last.register_forward_hook(lambda _, __, y, logits=logits: logits.append(y))
        with torch.no_grad():
            model(torch.rand(2, 3, image, image))
            last.bias.add_(-1.1 - logits[0].flatten().topk(CANDIDATES).values[-1])  # sigmoid(-1.1) is 0.25
        hook.remove()


class Raw(torch.nn.Module):
    """Boxes and scores of classes of every anchor [batch, 4 + classes, anchors]."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raw = self.model(images)
        return raw[0] if isinstance(raw, tuple) else raw


def main(folder: Path, small: bool) -> None:
    image = 64 if small else 640
    module = Raw(detector(image)).eval()
    images = torch.rand(2, 3, image, image)
    with torch.no_grad():
        raw = module(images)
    folder.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        module,
        (images,),
        folder / "network.onnx",
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["raw"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
        verbose=False,
    )
    network = onnx.load(folder / "network.onnx")
    text = NMS.format(ir_version=network.ir_version, opset=OPSET, classes=raw.shape[1] - 4)
    suppression = onnx.parser.parse_model(text)
    onnx.save(onnx.compose.merge_models(network, suppression, io_map=[("raw", "raw")]), folder / "model.onnx")
    session = ort.InferenceSession(suppression.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    np.savez(folder / "inputs.npz", images=images.numpy())
    np.savez(folder / "expected.npz", **dict(zip(names, session.run(names, {"raw": raw.numpy()}), strict=True)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="images of 64 pixels, as the tests take")
    main(**vars(parser.parse_args()))
