"""Encoders of tokens, of image patches, and of audio: convolutions over time, then attention."""

from __future__ import annotations

import torch
import transformers
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from models.architectures.first_output import FirstOutput

_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}


def _bert(tiny: bool) -> torch.nn.Module:
    config = transformers.BertConfig(**_SMALL, vocab_size=128) if tiny else transformers.BertConfig()
    return FirstOutput(transformers.BertModel(config), "input_ids")


def _vit(tiny: bool) -> torch.nn.Module:
    config = transformers.ViTConfig(**_SMALL, image_size=32, patch_size=8) if tiny else transformers.ViTConfig()
    return FirstOutput(transformers.ViTModel(config), "pixel_values")


def _whisper_encoder(tiny: bool) -> torch.nn.Module:
    small = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}
    base = {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}
    sizes = {**small, "num_mel_bins": 8, "max_source_positions": 50} if tiny else base
    return FirstOutput(WhisperEncoder(transformers.WhisperConfig(**sizes)), "input_features")


BUILDERS = {"bert": _bert, "vit": _vit, "whisper_encoder": _whisper_encoder}
