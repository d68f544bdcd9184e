"""Networks over three dims: segmentation of volumes and classification of clips."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class UNet3D(nn.Module):
    """Segmentation with instance norms, as nnU-Net's: [N, 1, D, H, W] -> [N, 4, D, H, W], multiples of 4."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        a, b, c = channels, 2 * channels, 4 * channels
        self.down = nn.ModuleList((_normed(1, a), _normed(a, b), _normed(b, c)))
        self.larger = nn.ModuleList((nn.ConvTranspose3d(c, b, 2, 2), nn.ConvTranspose3d(b, a, 2, 2)))
        self.up = nn.ModuleList((_normed(c, b), _normed(b, a)))
        self.last = nn.Conv3d(a, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down[0](x)
        two = self.down[1](functional.max_pool3d(one, 2))
        y = self.down[2](functional.max_pool3d(two, 2))
        y = self.up[0](torch.cat((self.larger[0](y), two), 1))
        return self.last(self.up[1](torch.cat((self.larger[1](y), one), 1)))


def _normed(channels: int, filters: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (channels, filters):
        layers += [
            nn.Conv3d(width, filters, 3, padding=1), nn.InstanceNorm3d(filters, affine=True), nn.LeakyReLU(0.01)
        ]  # fmt: skip
    return nn.Sequential(*layers)


class VideoResNet(nn.Module):
    """ResNet-18 over clips: [N, 3, T, H, W] -> [N, 400]. Tran et al. 2018.

    factorized: R(2+1)D, each window of 3 x 3 x 3 as one over the image and one over the time.
    """

    def __init__(self, *, factorized: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU()
        )
        blocks, channels = [], 64
        for stage, filters in enumerate((64, 128, 256, 512)):
            for k in range(2):
                blocks.append(_Block(channels, filters, 2 if stage and not k else 1, factorized))
                channels = filters
        self.blocks, self.last = nn.Sequential(*blocks), nn.Linear(512, 400)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.first(x)).mean((2, 3, 4)))


class _Block(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int, factorized: bool) -> None:
        super().__init__()
        one, two = (_window(a, filters, s, factorized) for a, s in ((channels, stride), (filters, 1)))
        self.body = nn.Sequential(*one, nn.BatchNorm3d(filters), nn.ReLU(), *two, nn.BatchNorm3d(filters))
        same = channels == filters and stride == 1
        strided = nn.Conv3d(channels, filters, 1, stride, bias=False)
        self.skip = nn.Identity() if same else nn.Sequential(strided, nn.BatchNorm3d(filters))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def _window(channels: int, filters: int, stride: int, factorized: bool) -> list[nn.Module]:
    if not factorized:
        return [nn.Conv3d(channels, filters, 3, stride, 1, bias=False)]
    between = channels * filters * 27 // (channels * 9 + filters * 3)  # as many weights as the whole window has
    image = nn.Conv3d(channels, between, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
    time = nn.Conv3d(between, filters, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False)
    return [image, nn.BatchNorm3d(between), nn.ReLU(), time]
