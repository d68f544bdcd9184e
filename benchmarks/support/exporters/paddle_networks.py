"""Small transformers of Paddle, which has none with random weights in a package of its own."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import nn

_WIDTH, _HEADS, _LAYERS = 64, 4, 2


class _Layer(nn.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiHeadAttention(_WIDTH, _HEADS)
        self.norms = nn.LayerList([nn.LayerNorm(_WIDTH) for _ in range(2)])
        self.wide, self.narrow, self.gelu = nn.Linear(_WIDTH, 2 * _WIDTH), nn.Linear(2 * _WIDTH, _WIDTH), nn.GELU()

    def forward(self, x: Any, mask: Any = None) -> Any:
        x = self.norms[0](x + self.attention(x, x, x, mask))
        return self.norms[1](x + self.narrow(self.gelu(self.wide(x))))


class Bert(nn.Layer):  # type: ignore[misc]
    """Embeddings and two layers, with a mask of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(128, _WIDTH), nn.Embedding(64, _WIDTH)
        self.norm, self.layers = nn.LayerNorm(_WIDTH), nn.LayerList([_Layer() for _ in range(_LAYERS)])

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        positions = paddle.arange(paddle.shape(input_ids)[1]).unsqueeze(0)
        x = self.norm(self.tokens(input_ids) + self.positions(positions))
        mask = ((1.0 - attention_mask.astype("float32")) * -1e4).unsqueeze([1, 2])
        for layer in self.layers:
            x = layer(x, mask)
        return x


class ViT(nn.Layer):  # type: ignore[misc]
    """Patches of 16 x 16, a class token, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2D(3, _WIDTH, 16, 16)
        self.token, self.positions = (self.create_parameter([1, n, _WIDTH]) for n in (1, 17))
        self.layers = nn.LayerList([_Layer() for _ in range(_LAYERS)])

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose([0, 2, 1])
        token = self.token.expand([paddle.shape(x)[0], -1, -1])
        x = paddle.concat([token, x], axis=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return x
