"""Encoders of tokens and of image patches."""

from __future__ import annotations

import torch
import transformers

from models.architectures.first_output import FirstOutput

_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}


def _bert(tiny: bool) -> torch.nn.Module:
    config = transformers.BertConfig(**_SMALL, vocab_size=128) if tiny else transformers.BertConfig()
    return FirstOutput(transformers.BertModel(config), "input_ids")


def _vit(tiny: bool) -> torch.nn.Module:
    config = transformers.ViTConfig(**_SMALL, image_size=32, patch_size=8) if tiny else transformers.ViTConfig()
    return FirstOutput(transformers.ViTModel(config), "pixel_values")


BUILDERS = {"bert": _bert, "vit": _vit}
