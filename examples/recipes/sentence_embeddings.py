"""Sentence embeddings: an encoder, the mean over tokens that count, and vectors of length 1, in one ONNX model.

    python sentence_embeddings.py FOLDER [--small]

Writes FOLDER/model.onnx with a dynamic batch and a dynamic number of tokens, and inputs.npz and expected.npz for
check.py. The sizes are those of all-MiniLM-L6-v2; the weights are random. `encoder` is the place for your own model.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers


def encoder(small: bool) -> torch.nn.Module:
    """transformers.AutoModel.from_pretrained(...) in place of the random weights."""
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    if small:
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    return transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False)


class Embeddings(torch.nn.Module):
    """Tokens and a mask [batch, tokens], int64, to embeddings [batch, hidden], float32."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        counts = attention_mask.unsqueeze(-1).to(states.dtype)
        means = (states * counts).sum(1) / counts.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(means, dim=1)


def main(folder: Path, small: bool) -> None:
    torch.manual_seed(0)
    module = Embeddings(encoder(small)).eval()
    ids = torch.randint(1000, 30000, (4, 21))  # what a tokenizer gives for four sentences, with padding at the end
    mask = (torch.arange(21) < torch.tensor([21, 13, 8, 17]).unsqueeze(1)).long()
    folder.mkdir(parents=True, exist_ok=True)
    dims = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=512)}
    torch.onnx.export(
        module,
        (ids, mask),
        folder / "model.onnx",
        dynamo=True,
        input_names=["input_ids", "attention_mask"],
        output_names=["embeddings"],
        dynamic_shapes=(dims, dims),
        external_data=False,
        verbose=False,
    )
    with torch.no_grad():
        expected = module(ids, mask)
    np.savez(folder / "inputs.npz", input_ids=ids.numpy(), attention_mask=mask.numpy())
    np.savez(folder / "expected.npz", embeddings=expected.numpy())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="two narrow layers, as the tests take")
    main(**vars(parser.parse_args()))
