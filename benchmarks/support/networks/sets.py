"""Networks over sets: points of a cloud, and columns of a table with an embedding each."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class PointNet(nn.Module):
    """Segmentation of point clouds: [N, 3, P] -> [N, 16, P]. Qi et al. 2017, without the transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.local = nn.Sequential(_layer(3, 64), _layer(64, 64))
        self.wide = nn.Sequential(_layer(64, 128), _layer(128, 1024))
        self.last = nn.Sequential(_layer(1088, 512), _layer(512, 256), nn.Conv1d(256, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        points = self.local(x)
        cloud = self.wide(points).max(2, keepdim=True)[0]
        return self.last(torch.cat((points, cloud.expand(-1, -1, points.shape[2])), 1))


def _layer(channels: int, filters: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(channels, filters, 1), nn.BatchNorm1d(filters), nn.ReLU())


class DLRM(nn.Module):
    """Clicks from [N, 13] numbers and [N, 26] ids: [N, 1] probabilities. Naumov et al. 2019."""

    def __init__(self, tables: int = 26, width: int = 64, rows: int = 20_000) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(*_relus(13, 512, 256, width))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(*_relus(pairs + width, 1024, 512), nn.Linear(512, 1), nn.Sigmoid())

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        numbers = self.bottom(x)
        vectors = torch.stack([numbers, *(table(ids[:, k]) for k, table in enumerate(self.tables))], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return self.top(torch.cat((numbers, products[:, self.pairs[0], self.pairs[1]]), 1))


def _relus(*widths: int) -> list[nn.Module]:
    pairs = itertools.pairwise(widths)
    return [layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())]
