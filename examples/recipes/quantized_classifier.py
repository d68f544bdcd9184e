"""An image classifier to quantize: ResNet-50 in float32, with images to calibrate with.

    python quantized_classifier.py FOLDER [--small]

Writes FOLDER/model.onnx with a dynamic batch, calibrate.npz, and inputs.npz and expected.npz for check.py. The weights
are random; `classifier` and `images` are the places for your own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers


def classifier(small: bool) -> torch.nn.Module:
    """transformers.AutoModelForImageClassification.from_pretrained(...) in place of the random weights."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 64, "hidden_sizes": [256, 512], "depths": [1, 1]} if small else {}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=100, **sizes))


def images(count: int, size: int) -> torch.Tensor:
    """Normalized images [count, 3, size, size], float32: a few hundred of those that the service gets."""
    coarse = torch.nn.functional.interpolate(torch.randn(count, 3, 8, 8), size=(size, size), mode="bilinear")
    return coarse + 0.1 * torch.randn(count, 3, size, size)


def spread_values(module: torch.nn.Module) -> None:
    """Norms that take the statistics of one batch, and branches that add a part to their block as trained ones do."""
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 1.0
            torch.nn.init.constant_(part.weight, 0.25 if "layer.2." in name else 1.0)


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(pixels).logits
        return logits


def main(folder: Path, small: bool) -> None:
    size = 64 if small else 224
    module = Logits(classifier(small))
    spread_values(module)
    with torch.no_grad():
        module.train()(images(16, size))  # statistics of the norms
        module.eval()
        pixels = images(4, size)
        expected = module(pixels)
    folder.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        module,
        (pixels,),
        folder / "model.onnx",
        dynamo=True,
        input_names=["pixels"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        external_data=False,
        verbose=False,
    )
    np.savez(folder / "calibrate.npz", pixels=images(16, size).numpy())
    np.savez(folder / "inputs.npz", pixels=pixels.numpy())
    np.savez(folder / "expected.npz", logits=expected.numpy())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="two stages on images of 64 pixels, as the tests take")
    main(**vars(parser.parse_args()))
