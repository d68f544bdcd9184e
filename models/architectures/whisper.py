"""The encoder of Whisper: convolutions over time, then attention."""

from __future__ import annotations

import torch
import transformers
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from models.architectures.first_output import FirstOutput


def _whisper_encoder(tiny: bool) -> torch.nn.Module:
    small = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128}
    base = {"d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048}
    sizes = {**small, "num_mel_bins": 8, "max_source_positions": 50} if tiny else base
    return FirstOutput(WhisperEncoder(transformers.WhisperConfig(**sizes)), "input_features")


BUILDERS = {"whisper_encoder": _whisper_encoder}
