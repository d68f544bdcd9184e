"""Transformers whose norms are scaled by a condition (adaLN-zero), and one with convolutions between its layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class DiT(nn.Module):
    """A diffusion transformer: [N, T, width] tokens and [N, width] condition -> [N, T, width]. Peebles and Xie 2022."""

    def __init__(self, blocks: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Stream(width, heads, normed=False) for _ in range(blocks))
        self.heads = heads

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        for block in self.blocks:
            shifts = block.shifts(condition)
            y = _attention(*block.projected(x, shifts))
            x = block.joined(x, y, shifts)
        return x


class MMDiT(nn.Module):
    """Joint attention of two streams, q and k normalized: [N, T, width], [N, S, width] and [N, width] condition.

    Returns the first stream. Esser et al. 2024 (Stable Diffusion 3).
    """

    def __init__(self, blocks: int = 6, width: int = 1024, heads: int = 16) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleList(_Stream(width, heads, normed=True) for _ in range(2)) for _ in range(blocks)
        )

    def forward(self, x: Tensor, text: Tensor, condition: Tensor) -> Tensor:
        streams = [x, text]
        for block in self.blocks:
            shifts = [stream.shifts(condition) for stream in block]
            projected = [s.projected(y, m) for s, y, m in zip(block, streams, shifts, strict=True)]
            joint = _attention(*(torch.cat(both, 2) for both in zip(*projected, strict=True)))
            parts = joint.split([y.shape[1] for y in streams], 1)
            rows = zip(block, streams, parts, shifts, strict=True)
            streams = [s.joined(y, part, m) for s, y, part, m in rows]
        return streams[0]


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class _Stream(nn.Module):
    """What one stream has in a block: shifts, scales and gates from the condition, projections, an MLP."""

    def __init__(self, width: int, heads: int, *, normed: bool) -> None:
        super().__init__()
        self.heads = heads
        self.condition, self.qkv, self.out = (nn.Linear(width, n * width) for n in (6, 3, 1))
        size = width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(size, eps=1e-6) if normed else nn.Identity() for _ in "qk")
        wide = nn.Linear(width, 4 * width)
        self.mlp = nn.Sequential(wide, nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)

    def shifts(self, condition: Tensor) -> tuple[Tensor, ...]:
        return self.condition(functional.silu(condition)).unsqueeze(1).chunk(6, -1)

    def projected(self, x: Tensor, shifts: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as [N, heads, T, size]."""
        y = self.norm(x) * (1 + shifts[1]) + shifts[0]
        q, k, v = (z.unflatten(2, (self.heads, -1)).transpose(1, 2) for z in self.qkv(y).chunk(3, -1))
        return self.norms[0](q), self.norms[1](k), v

    def joined(self, x: Tensor, attended: Tensor, shifts: tuple[Tensor, ...]) -> Tensor:
        x = x + shifts[2] * self.out(attended)
        return x + shifts[5] * self.mlp(self.norm(x) * (1 + shifts[4]) + shifts[3])


class Conformer(nn.Module):
    """An encoder of speech: [N, T, 80] -> [N, T / 4, width]. Gulati et al. 2020, without relative positions."""

    def __init__(self, blocks: int = 12, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.project = nn.Linear(20 * width, width)
        self.blocks = nn.Sequential(*(_ConformerBlock(width, heads) for _ in range(blocks)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.project(self.first(x.unsqueeze(1)).transpose(1, 2).flatten(2)))


class _ConformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = (_half_step(width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise = nn.Sequential(
            nn.Conv1d(width, width, 31, padding=15, groups=width), nn.BatchNorm1d(width), nn.SiLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(_attention(q, k, v))
        y = functional.glu(self.wide(self.norms[1](x).transpose(1, 2)), 1)
        x = x + self.narrow(self.depthwise(y)).transpose(1, 2)
        return self.norms[2](x + 0.5 * self.after(x))


def _half_step(width: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
