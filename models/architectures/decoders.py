"""Decoders: over a whole sequence, and one step of generation."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicLayer

from models.architectures.first_output import FirstOutput


class DecodeStep(torch.nn.Module):
    """One decoding step: new tokens and the keys and values of those before; gives the states and the longer cache.

    Inputs: x [batch, tokens], then past_key and past_value [batch, heads, past, width] layer by layer. Outputs: y, then
    the keys and values with those of the new tokens appended, in the same order.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.m = model

    def forward(self, x: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        cache = transformers.DynamicCache()
        for key, value in zip(past[::2], past[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(key, value)
            layer.keys, layer.values = key, value  # updating an empty layer would concatenate nothing with them
            cache.layers.append(layer)
        y = self.m(input_ids=x, past_key_values=cache, use_cache=True)[0]
        return (y, *(state for layer in cache.layers for state in (layer.keys, layer.values)))


def _llama(tiny: bool, **more: Any) -> transformers.LlamaModel:
    hidden, inner, layers, heads, vocabulary = (64, 160, 2, 4, 128) if tiny else (2048, 5632, 8, 16, 32000)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        vocab_size=vocabulary,
        **more,
    )
    return transformers.LlamaModel(config)


BUILDERS = {
    "llama": lambda tiny: FirstOutput(_llama(tiny, use_cache=False), "input_ids"),
    "llama_decode": lambda tiny: DecodeStep(_llama(tiny, max_position_embeddings=8192)),
}
