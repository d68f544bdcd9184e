"""A language model with a cache: one ONNX model reads the prompt, then gives one token a run.

    python llm_step.py FOLDER [--small]               exports
    python llm_step.py FOLDER --generate [--small]    generates with FOLDER/artifact, and compares with transformers

Inputs: ids [batch, tokens], int64, and past_key_K, past_value_K [batch, heads, past, width] of each layer; past is 0
for the prompt. Outputs: logits [batch, tokens, vocabulary], and key_K, value_K with the new tokens appended. The
weights are random; `language_model` is the place for your own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
import transformers
from transformers.cache_utils import DynamicLayer

NEW_TOKENS = 8


def language_model(small: bool) -> transformers.LlamaForCausalLM:
    """transformers.AutoModelForCausalLM.from_pretrained(...) in place of the random weights."""
    torch.manual_seed(0)
    hidden, inner, layers, heads, vocabulary = (64, 160, 2, 4, 128) if small else (576, 1536, 30, 9, 49152)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2 if small else 3,
        vocab_size=vocabulary,
        eos_token_id=None,  # both ways to generate go on to the last token
    )
    return transformers.LlamaForCausalLM(config).eval()


class Step(torch.nn.Module):
    def __init__(self, model: transformers.LlamaForCausalLM):
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        cache = transformers.DynamicCache()
        for key, value in zip(past[::2], past[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(key, value)
            layer.keys, layer.values = key, value
            cache.layers.append(layer)
        logits = self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        return (logits, *(state for layer in cache.layers for state in (layer.keys, layer.values)))


def states(model: transformers.LlamaForCausalLM) -> list[str]:
    return [f"{kind}_{k}" for k in range(model.config.num_hidden_layers) for kind in ("key", "value")]


def empty_cache(model: transformers.LlamaForCausalLM, batch: int, past: int = 0) -> list[torch.Tensor]:
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    return [torch.randn(batch, config.num_key_value_heads, past, width) for _ in states(model)]


def prompt(model: transformers.LlamaForCausalLM) -> torch.Tensor:
    """Ids of two prompts of nine tokens, as a tokenizer gives them."""
    return torch.randint(model.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(1))


def export(folder: Path, small: bool) -> None:
    model = language_model(small)
    step = Step(model).eval()
    batch, tokens, past = (torch.export.Dim(name) for name in ("batch", "tokens", "past"))
    names = states(model)
    folder.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        step,
        (torch.zeros(2, 3, dtype=torch.long), empty_cache(model, 2, past=5)),
        folder / "model.onnx",
        dynamo=True,
        opset_version=20,
        input_names=["ids", *(f"past_{name}" for name in names)],
        output_names=["logits", *names],
        dynamic_shapes=({0: batch, 1: tokens}, [{0: batch, 2: past} for _ in names]),
        verbose=False,
    )
    ids, cache = prompt(model), empty_cache(model, 2, past=5)
    with torch.no_grad():
        outputs = step(ids, cache)
    feeds = {"ids": ids.numpy(), **{f"past_{name}": one.numpy() for name, one in zip(names, cache, strict=True)}}
    np.savez(folder / "inputs.npz", **feeds)
    np.savez(folder / "expected.npz", **{n: y.numpy() for n, y in zip(["logits", *names], outputs, strict=True)})


def generate(session: ort.InferenceSession, ids: np.ndarray, cache: list[np.ndarray]) -> np.ndarray:
    """The tokens [batch, NEW_TOKENS] that are most likely, one run each; what a run gives is the next one's cache."""
    names = [entry.name for entry in session.get_inputs()[1:]]
    tokens = []
    for _ in range(NEW_TOKENS):
        logits, *cache = session.run(None, {"ids": ids, **dict(zip(names, cache, strict=True))})
        ids = logits[:, -1:].argmax(-1)
        tokens.append(ids)
    return np.concatenate(tokens, 1)


def compare(folder: Path, small: bool) -> None:
    model = language_model(small)
    ids = prompt(model)
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(folder / "artifact" / "lib" / "libonnxopt_ops.so"))
    session = ort.InferenceSession(folder / "artifact" / "model.onnx", options, providers=["CPUExecutionProvider"])
    tokens = generate(session, ids.numpy(), [one.numpy() for one in empty_cache(model, len(ids))])
    generated = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS)
    expected = generated[:, ids.shape[1] :].numpy()
    print(f"tokens of onnxopt:      {tokens.tolist()}\ntokens of transformers: {expected.tolist()}")
    if not np.array_equal(tokens, expected):
        raise SystemExit("the tokens differ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="two narrow layers, as the tests take")
    parser.add_argument("--generate", action="store_true")
    arguments = parser.parse_args()
    (compare if arguments.generate else export)(arguments.folder, arguments.small)
