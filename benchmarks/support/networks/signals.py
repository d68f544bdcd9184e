"""Networks over one dim, and recurrent ones: a vocoder, a separator, a U-Net, an ECG classifier, a recognizer."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional


class HiFiGAN(nn.Module):
    """A vocoder: [N, 80, T] spectrogram -> [N, 1, 256 T] samples. Kong et al. 2020, with half of V1's channels."""

    def __init__(self, channels: int = 256) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, channels, 7, padding=3)
        self.up, self.branches = nn.ModuleList(), nn.ModuleList()
        for stride, size in ((8, 16), (8, 16), (2, 4), (2, 4)):
            half = channels // 2
            self.up.append(nn.ConvTranspose1d(channels, half, size, stride, padding=(size - stride) // 2))
            self.branches.append(nn.ModuleList(_dilated(half, size) for size in (3, 7, 11)))
            channels = half
        self.last = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, branches in zip(self.up, self.branches, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            total: Tensor | int = 0
            for branch in branches:
                y = x
                for convolution in branch:
                    y = y + convolution(functional.leaky_relu(y, 0.1))
                total = total + y
            x = total / 3
        return torch.tanh(self.last(functional.leaky_relu(x)))


def _dilated(channels: int, size: int) -> nn.ModuleList:
    return nn.ModuleList(
        nn.Conv1d(channels, channels, size, padding=(size - 1) // 2 * d, dilation=d) for d in (1, 3, 5)
    )


class ConvTasNet(nn.Module):
    """Separates two speakers: [N, 1, T] samples -> [N, 2, T]. Luo and Mesgarani 2019, without global norms' cumsum."""

    def __init__(self, filters: int = 256, hidden: int = 512, blocks: int = 8, repeats: int = 3) -> None:
        super().__init__()
        self.filters = filters
        self.encoder = nn.Conv1d(1, filters, 16, 8, bias=False)
        self.norm, self.inner = nn.GroupNorm(1, filters), nn.Conv1d(filters, filters, 1)
        self.blocks = nn.ModuleList(_Separable(filters, hidden, 1 << k) for _ in range(repeats) for k in range(blocks))
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(filters, 2 * filters, 1), nn.Sigmoid())
        self.decoder = nn.ConvTranspose1d(filters, 1, 16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        coded = self.encoder(x)
        y, skipped = self.inner(self.norm(coded)), torch.zeros_like(coded)
        for block in self.blocks:
            y, skip = block(y)
            skipped = skipped + skip
        masks = self.mask(skipped).unflatten(1, (2, self.filters))
        both = (coded.unsqueeze(1) * masks).flatten(0, 1)
        return self.decoder(both).unflatten(0, (x.shape[0], 2)).squeeze(2)


class _Separable(nn.Module):
    def __init__(self, channels: int, hidden: int, dilation: int) -> None:
        super().__init__()
        depthwise = nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden)
        self.body = nn.Sequential(
            nn.Conv1d(channels, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden),
            depthwise, nn.PReLU(), nn.GroupNorm(1, hidden),
        )  # fmt: skip
        self.residual, self.skip = nn.Conv1d(hidden, channels, 1), nn.Conv1d(hidden, channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return x + self.residual(y), self.skip(y)


class UNet1d(nn.Module):
    """A denoiser of sequences, as robots' diffusion policies have: [N, 64, T] -> [N, 64, T], T a multiple of 8."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        widths = [channels << k for k in range(4)]
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(_normed(a, b) for a, b in pairs)
        self.strided = nn.ModuleList(nn.Conv1d(b, b, 3, 2, 1) for _, b in pairs)
        self.middle = _normed(widths[-1], widths[-1])
        self.larger = nn.ModuleList(nn.ConvTranspose1d(b, b, 4, 2, 1) for _, b in reversed(pairs))
        self.up = nn.ModuleList(_normed(2 * b, a) for a, b in reversed(pairs))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for block, strided in zip(self.down, self.strided, strict=True):
            x = block(x)
            skips.append(x)
            x = strided(x)
        x = self.middle(x)
        for larger, block in zip(self.larger, self.up, strict=True):
            x = block(torch.cat((larger(x), skips.pop()), 1))
        return x


def _normed(channels: int, filters: int) -> nn.Sequential:
    """Two convolutions, each with a norm over eight groups and Mish."""
    one = (nn.Conv1d(channels, filters, 5, padding=2), nn.GroupNorm(8, filters), nn.Mish())
    return nn.Sequential(*one, nn.Conv1d(filters, filters, 5, padding=2), nn.GroupNorm(8, filters), nn.Mish())


class ECGResNet(nn.Module):
    """A classifier of signals: [N, 12, T] leads -> [N, 5]; 16 convolutions of 15 taps. As Ribeiro et al. 2020."""

    def __init__(self, channels: int = 64) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(12, channels, 15, padding=7), nn.BatchNorm1d(channels), nn.ReLU())
        widths = [channels * k for k in (1, 1, 2, 2, 3, 3, 4, 4)]
        pairs = zip([channels, *widths], widths, strict=False)
        self.blocks = nn.Sequential(*(_Residual(a, b, 1 + k % 2) for k, (a, b) in enumerate(pairs)))
        self.last = nn.Linear(widths[-1], 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.first(x)).mean(2))


class _Residual(nn.Module):
    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, filters, 15, stride, 7, bias=False), nn.BatchNorm1d(filters), nn.ReLU(),
            nn.Conv1d(filters, filters, 15, padding=7, bias=False), nn.BatchNorm1d(filters),
        )  # fmt: skip
        self.pool, self.skip = nn.MaxPool1d(stride), nn.Conv1d(channels, filters, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(self.pool(x)))


class Recurrent(nn.Module):
    """Two bidirectional layers of nn.LSTM or nn.GRU: [N, T, 80] -> logarithms of 64 probabilities, [N, T, 64]."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first = nn.Linear(80, 512)
        self.layers = getattr(nn, kind)(512, 512, 2, batch_first=True, bidirectional=True)
        self.last = nn.Linear(1024, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(self.first(x))[0]).log_softmax(-1)
