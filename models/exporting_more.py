"""Exports the architectures that exporting.py does not: `python -m models.exporting_more ENTRY OUT.onnx`, as there.

A file of its own, because the text of exporting.py is the recipe of every model that it made: a change there exports
all of them again.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicLayer
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from models.exported import Exported
from models.exporting import FirstOutput

_EXTERNAL_ABOVE = 1_500_000_000  # bytes; protobuf stops at 2 GB
_OPSET = 20


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


def _whisper_encoder(tiny: bool) -> torch.nn.Module:
    small = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}
    base = {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}
    sizes = {**small, "num_mel_bins": 8, "max_source_positions": 50} if tiny else base
    return FirstOutput(WhisperEncoder(transformers.WhisperConfig(**sizes)), "input_features")


def _llama_decode(tiny: bool) -> torch.nn.Module:
    hidden, inner, layers, heads, vocabulary = (64, 160, 2, 4, 128) if tiny else (2048, 5632, 8, 16, 32000)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        vocab_size=vocabulary,
        max_position_embeddings=8192,
    )
    return DecodeStep(transformers.LlamaModel(config))


_BUILDERS = {"whisper_encoder": _whisper_encoder, "llama_decode": _llama_decode}


def build(entry: Exported) -> torch.nn.Module:
    """The PyTorch model in eval mode with its seeded random weights, vectors moved off their initial values."""
    torch.manual_seed(0)
    model = _BUILDERS[entry.architecture](entry.size == "tiny").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.half() if entry.fp16 else model


def _export(entry: Exported, out: pathlib.Path) -> dict[str, Any]:
    start = time.perf_counter()
    model = build(entry)
    names = {name for axes in entry.dynamic_shapes.values() for name in axes.values()}
    dims = {name: torch.export.Dim(name) for name in sorted(names)}
    tensors, dynamic = [], []
    for name, spec in entry.inputs.items():
        tensors.append(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)))
        dynamic.append({axis: dims[dim] for axis, dim in entry.dynamic_shapes.get(name, {}).items()})
    decode = entry.architecture == "llama_decode"
    layers = range((len(tensors) - 1) // 2)
    states = [f"{kind}_{k}" for k in layers for kind in ("present_key", "present_value")]
    program = torch.onnx.export(
        model,
        (tensors[0], tensors[1:]) if decode else tuple(tensors),
        dynamo=True,
        opset_version=_OPSET,
        input_names=list(entry.inputs),
        output_names=["y", *states],
        dynamic_shapes=((dynamic[0], dynamic[1:]) if decode else tuple(dynamic)) if entry.dynamic else None,
    )
    assert program is not None  # None only without dynamo=True
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    program.save(str(out), external_data=size > _EXTERNAL_ABOVE)
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[2])
    noted = _export(Exported(**json.loads(sys.argv[1])), target)
    target.with_suffix(".json").write_text(json.dumps(noted))
