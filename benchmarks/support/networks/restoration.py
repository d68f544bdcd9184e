"""Networks that restore images: dense blocks of growing width, and gates by halves of the channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class RRDB(nn.Module):
    """Super-resolution by four: [N, 3, H, W] -> [N, 3, 4 H, 4 W]. Wang et al. 2018 (ESRGAN), `blocks` of its 23."""

    def __init__(self, blocks: int = 4, channels: int = 64, growth: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList(_Dense(channels, growth) for _ in range(3)) for _ in range(blocks)
        )  # fmt: skip
        self.larger, self.last = nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = features = self.first(x)
        for block in self.blocks:
            y = x
            for dense in block:
                y = dense(y)
            x = x + 0.2 * y
        x = functional.interpolate(x + features, scale_factor=2, mode="nearest")
        return functional.pixel_shuffle(self.last(functional.leaky_relu(self.larger(x), 0.2)), 2)


class _Dense(nn.Module):
    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        widths = [channels + k * growth for k in range(5)]
        filters = [growth] * 4 + [channels]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, filters, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for layer in self.layers[:-1]:
            parts.append(functional.leaky_relu(layer(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * self.layers[-1](torch.cat(parts, 1))


class NAFNet(nn.Module):
    """Denoising: [N, 3, H, W] -> [N, 3, H, W], multiples of 8. Chen et al. 2022, with 16 blocks."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 3, padding=1)
        widths = [channels << k for k in range(4)]
        self.down = nn.ModuleList(
            nn.ModuleList((nn.Sequential(_Gated(a), _Gated(a)), nn.Conv2d(a, 2 * a, 2, 2))) for a in widths[:3]
        )
        self.middle = nn.Sequential(*(_Gated(widths[3]) for _ in range(4)))
        self.larger = nn.ModuleList(
            nn.Sequential(nn.Conv2d(2 * a, 4 * a, 1, bias=False), nn.PixelShuffle(2)) for a in reversed(widths[:3])
        )
        self.up = nn.ModuleList(nn.Sequential(_Gated(a), _Gated(a)) for a in reversed(widths[:3]))

    def forward(self, x: Tensor) -> Tensor:
        y, skips = self.first(x), []
        for blocks, strided in self.down:
            skips.append(y)  # before the blocks
            y = strided(blocks(y))
        y = self.middle(y)
        for larger, blocks in zip(self.larger, self.up, strict=True):
            y = blocks(larger(y) + skips.pop())
        return x + self.last(y)


class _Gated(nn.Module):
    """A depthwise and a pointwise half, each with a norm over channels, a gate by halves and a scaled residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        c = channels
        self.norms = nn.ModuleList((_ChannelNorm(c), _ChannelNorm(c)))
        self.wide, self.depthwise = nn.Conv2d(c, 2 * c, 1), nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c)
        self.attention, self.project = nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 1)
        self.inner, self.outer = nn.Conv2d(c, 2 * c, 1), nn.Conv2d(c, c, 1)
        self.scales = nn.ParameterList(torch.randn(1, c, 1, 1) * 0.1 for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.depthwise(self.wide(self.norms[0](x))).chunk(2, 1)
        y = a * b
        x = x + self.project(y * self.attention(y.mean((2, 3), keepdim=True))) * self.scales[0]
        a, b = self.inner(self.norms[1](x)).chunk(2, 1)
        return x + self.outer(a * b) * self.scales[1]


class _ChannelNorm(nn.Module):
    """A layer norm over the channels of [N, C, H, W], decomposed as in the paper's code."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        return (x - mean) / (variance + 1e-6).sqrt() * self.weight[:, None, None] + self.bias[:, None, None]
