"""One decoding step of the Llama of models/architectures in plain torch, with a static cache of keys and values.

The cache holds `past` tokens and has room for the new one, which is written in place. A server would run this form. The
exported graph returns a longer copy of the cache instead.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

HIDDEN, INNER, LAYERS, HEADS, GROUPS, VOCABULARY = 2048, 5632, 8, 16, 8, 32000
SIZE = HIDDEN // HEADS
_BASE = 10000.0


class Layer(torch.nn.Module):
    """One decoder layer: its weights, and keys and values (batch, GROUPS, past + 1, SIZE)."""

    def __init__(self, batch: int, past: int) -> None:
        super().__init__()
        shapes = {
            "q": (HIDDEN, HIDDEN), "k": (GROUPS * SIZE, HIDDEN), "v": (GROUPS * SIZE, HIDDEN), "o": (HIDDEN, HIDDEN),
            "gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER),
        }  # fmt: skip
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape) * 0.02, requires_grad=False))
        for name in ("before", "after"):
            self.register_parameter(name, torch.nn.Parameter(torch.ones(HIDDEN), requires_grad=False))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(batch, GROUPS, past + 1, SIZE))

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        h = rms_norm(x, (HIDDEN,), self.before, 1e-6)
        q, k, v = (linear(h, w).view(batch, 1, -1, SIZE).transpose(1, 2) for w in (self.q, self.k, self.v))
        q, k = (t * cos + torch.cat((-t[..., SIZE // 2 :], t[..., : SIZE // 2]), -1) * sin for t in (q, k))
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        y = scaled_dot_product_attention(q, self.keys, self.values, enable_gqa=True)
        x = x + linear(y.transpose(1, 2).reshape(batch, 1, HIDDEN), self.o)
        h = rms_norm(x, (HIDDEN,), self.after, 1e-6)
        return x + linear(silu(linear(h, self.gate)) * linear(h, self.up), self.down)


class Decode(torch.nn.Module):
    """token (batch, 1) int64 -> states (batch, 1, HIDDEN), behind `past` tokens."""

    def __init__(self, batch: int, past: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer(batch, past) for _ in range(LAYERS))
        self.norm = torch.nn.Parameter(torch.ones(HIDDEN), requires_grad=False)
        angles = past / _BASE ** (torch.arange(0, SIZE, 2) / SIZE)
        self.register_buffer("cos", torch.cat((angles, angles)).cos())
        self.register_buffer("sin", torch.cat((angles, angles)).sin())
        self.register_buffer("at", torch.tensor([past]))

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        x = self.embedding(token)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin, self.at)
        return rms_norm(x, (HIDDEN,), self.norm, 1e-6)


def build(batch: int, past: int) -> torch.nn.Module:
    """The step in float16 with seeded random weights, in eval mode; its positions stay integers."""
    torch.manual_seed(0)
    return Decode(batch, past).half().eval()
