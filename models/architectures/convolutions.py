"""Models of convolutions."""

from __future__ import annotations

import torch
import transformers

from models.architectures.first_output import FirstOutput


def _convnext(tiny: bool) -> torch.nn.Module:
    small = {"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 2, 1]}
    config = transformers.ConvNextConfig(**(small if tiny else {}))
    return FirstOutput(transformers.ConvNextModel(config), "pixel_values")


def _efficientnet(tiny: bool) -> torch.nn.Module:
    width, image, hidden = (0.25, 64, 320) if tiny else (1.0, 224, 1280)
    config = transformers.EfficientNetConfig(
        width_coefficient=width, depth_coefficient=0.3 if tiny else 1.0, image_size=image, hidden_dim=hidden
    )
    return FirstOutput(transformers.EfficientNetModel(config), "pixel_values")


BUILDERS = {"convnext": _convnext, "efficientnet": _efficientnet}
