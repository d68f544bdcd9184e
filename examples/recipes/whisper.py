"""Whisper as two ONNX models: an encoder that runs once, and a decoder with caches that gives one token a run.

    python whisper.py FOLDER [--small]               exports FOLDER/encoder and FOLDER/decoder
    python whisper.py FOLDER --generate [--small]    generates with both artifacts, and compares with PyTorch

Encoder: features [batch, mels, frames] to cross_key_K, cross_value_K [batch, heads, frames / 2, width] of each layer of
the decoder, so that no step computes them again. Decoder: ids [batch, tokens], int64, these, and past_key_K,
past_value_K [batch, heads, past, width], to logits [batch, tokens, vocabulary] and key_K, value_K with the new tokens
appended. The weights are random; `whisper` is the place for your own.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
import transformers
from transformers.cache_utils import DynamicCache, DynamicLayer, EncoderDecoderCache

NEW_TOKENS = 6
Tensors = Sequence[torch.Tensor]


def whisper(small: bool) -> transformers.WhisperForConditionalGeneration:
    """transformers.WhisperForConditionalGeneration.from_pretrained(...) in place of the random weights."""
    torch.manual_seed(0)
    width, layers, heads, positions = (64, 2, 2, 50) if small else (512, 6, 8, 1500)
    sizes = {
        f"{part}_{name}": size
        for part in ("encoder", "decoder")
        for name, size in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))
    }
    spread = {"init_std": 0.2 if small else 0.1}  # with untrained weights of 0.02, every audio gives the same tokens
    config = transformers.WhisperConfig(d_model=width, max_source_positions=positions, **sizes, **spread)
    return transformers.WhisperForConditionalGeneration(config).eval()


class Encoder(torch.nn.Module):
    def __init__(self, model: transformers.WhisperForConditionalGeneration):
        super().__init__()
        self.encoder, self.layers = model.model.encoder, model.model.decoder.layers

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states = self.encoder(features).last_hidden_state
        projected = []
        for attention in (layer.encoder_attn for layer in self.layers):
            for projection in (attention.k_proj, attention.v_proj):
                parts = projection(states).unflatten(-1, (attention.num_heads, attention.head_dim))
                projected.append(parts.transpose(1, 2))
        return tuple(projected)


class Decoder(torch.nn.Module):
    def __init__(self, model: transformers.WhisperForConditionalGeneration):
        super().__init__()
        self.decoder, self.head = model.model.decoder, model.proj_out

    def forward(
        self, ids: torch.Tensor, cross: list[torch.Tensor], past: list[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        own = cache_of(past)
        both = EncoderDecoderCache(own, cache_of(cross))
        both.is_updated = dict.fromkeys(range(len(cross) // 2), True)
        unused = cross[0].new_zeros(ids.shape[0], cross[0].shape[2], self.decoder.config.d_model)
        states = self.decoder(input_ids=ids, encoder_hidden_states=unused, past_key_values=both, use_cache=True)
        return (self.head(states[0]), *(one for layer in own.layers for one in (layer.keys, layer.values)))


def cache_of(states: Tensors) -> DynamicCache:
    cache = DynamicCache()
    for key, value in zip(states[::2], states[1::2], strict=True):
        layer = DynamicLayer()
        layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value
        cache.layers.append(layer)
    return cache


def names(model: transformers.WhisperForConditionalGeneration) -> list[str]:
    return [f"{kind}_{k}" for k in range(model.config.decoder_layers) for kind in ("key", "value")]


def audio(model: transformers.WhisperForConditionalGeneration) -> torch.Tensor:
    """Features of two pieces of 30 seconds, as WhisperFeatureExtractor gives them."""
    frames = 2 * model.config.max_source_positions
    return torch.randn(2, model.config.num_mel_bins, frames, generator=torch.Generator().manual_seed(1))


def own_cache(model: transformers.WhisperForConditionalGeneration, past: int) -> list[torch.Tensor]:
    heads = model.config.decoder_attention_heads
    return [torch.randn(2, heads, past, model.config.d_model // heads) for _ in names(model)]


def export(folder: Path, small: bool) -> None:
    model = whisper(small)
    batch, tokens, past = (torch.export.Dim(name) for name in ("batch", "tokens", "past"))
    own, features = names(model), audio(model)
    encoder, decoder = Encoder(model).eval(), Decoder(model).eval()
    with torch.no_grad():
        cross = list(encoder(features))
    write(folder / "encoder", encoder, {"features": features}, [f"cross_{n}" for n in own], ({0: batch},))
    feeds = {"ids": torch.zeros(2, 3, dtype=torch.long)}
    feeds |= {f"cross_{name}": one for name, one in zip(own, cross, strict=True)}
    feeds |= {f"past_{name}": one for name, one in zip(own, own_cache(model, 5), strict=True)}
    shapes = ({0: batch, 1: tokens}, [{0: batch} for _ in own], [{0: batch, 2: past} for _ in own])
    write(folder / "decoder", decoder, feeds, ["logits", *own], shapes, lists=len(own))


def write(
    folder: Path,
    module: torch.nn.Module,
    feeds: dict[str, torch.Tensor],
    outputs: list[str],
    shapes: object,
    lists: int = 0,
) -> None:
    """model.onnx, and inputs.npz and expected.npz for check.py. lists: inputs in each list of the module's."""
    first, *rest = feeds.values()
    arguments = (first, rest[:lists], rest[lists:]) if lists else (first,)
    with torch.no_grad():
        expected = module(*arguments)
    folder.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        module,
        arguments,
        folder / "model.onnx",
        dynamo=True,
        opset_version=20,
        input_names=list(feeds),
        output_names=outputs,
        dynamic_shapes=shapes,
        verbose=False,
    )
    np.savez(folder / "inputs.npz", **{name: one.numpy() for name, one in feeds.items()})
    np.savez(folder / "expected.npz", **{name: y.numpy() for name, y in zip(outputs, expected, strict=True)})


def opened(folder: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(folder / "artifact" / "lib" / "libonnxopt_ops.so"))
    return ort.InferenceSession(folder / "artifact" / "model.onnx", options, providers=["CPUExecutionProvider"])


def generate(folder: Path, features: np.ndarray, start: np.ndarray, cache: list[np.ndarray]) -> np.ndarray:
    """The tokens [batch, NEW_TOKENS] that are most likely: the encoder once, the decoder for each token."""
    cross = opened(folder / "encoder").run(None, {"features": features})
    decoder = opened(folder / "decoder")
    inputs = [entry.name for entry in decoder.get_inputs()]
    ids, generated = start, []
    for _ in range(NEW_TOKENS):
        logits, *cache = decoder.run(None, dict(zip(inputs, [ids, *cross, *cache], strict=True)))
        ids = logits[:, -1:].argmax(-1)
        generated.append(ids)
    return np.concatenate(generated, 1)


def compare(folder: Path, small: bool) -> None:
    model = whisper(small)
    features, start = audio(model), torch.full((2, 1), model.config.decoder_start_token_id)
    empty = [one.numpy() for one in own_cache(model, 0)]
    generated = generate(folder, features.numpy(), start.numpy(), empty)
    tokens = start
    with torch.no_grad():
        for _ in range(NEW_TOKENS):  # without caches: PyTorch reads all tokens again for each
            logits = model(input_features=features, decoder_input_ids=tokens, use_cache=False).logits
            tokens = torch.cat([tokens, logits[:, -1:].argmax(-1)], 1)
    expected = tokens[:, 1:].numpy()
    print(f"tokens of onnxopt: {generated.tolist()}\ntokens of PyTorch: {expected.tolist()}")
    if not np.array_equal(generated, expected):
        raise SystemExit("the tokens differ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="two narrow layers, as the tests take")
    parser.add_argument("--generate", action="store_true")
    arguments = parser.parse_args()
    (compare if arguments.generate else export)(arguments.folder, arguments.small)
