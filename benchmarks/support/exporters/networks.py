"""The networks: small ones of transformers, torchvision, Keras, ultralytics and Paddle, with random weights.

Each is named after its architecture, and says how many attentions a person counts in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_VOCABULARY = {"vocab_size": 128, "max_position_embeddings": 64}


@dataclasses.dataclass(frozen=True)
class Network:
    """framework: whose exporters take it: "torch", "keras", "ultralytics", "genai" or "paddle". attentions: how many.

    build: the module, in eval mode, and its example inputs by name. dynamic: axes with a name, by input. task: of
    optimum, "" where optimum has none for it.
    """

    framework: str
    attentions: int
    build: Callable[[], tuple[Any, dict[str, Any]]]
    dynamic: dict[str, dict[int, str]] = dataclasses.field(default_factory=dict)
    task: str = ""


def _tokens(mask: bool = True) -> dict[str, Any]:
    import torch

    ids = torch.randint(3, 100, (2, 12))
    return {"input_ids": ids, **({"attention_mask": torch.ones_like(ids)} if mask else {})}


def _image(size: int) -> dict[str, Any]:
    import torch

    return {"pixel_values": torch.randn(2, 3, size, size)}


def _transformers(name: str, feeds: Callable[[], dict[str, Any]], **sizes: Any) -> Callable[[], tuple[Any, dict]]:
    def build() -> tuple[Any, dict[str, Any]]:
        import torch
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(attn_implementation="eager", **sizes)
        config.use_cache = False
        model = getattr(transformers, f"{name}Model")(config)
        return model.eval(), feeds()

    return build


def _torchvision(name: str) -> Callable[[], tuple[Any, dict]]:
    def build() -> tuple[Any, dict[str, Any]]:
        import torch
        import torchvision

        torch.manual_seed(0)
        return getattr(torchvision.models, name)(weights=None, num_classes=10).eval(), {"x": torch.randn(2, 3, 64, 64)}

    return build


def _keras_transformer() -> tuple[Any, dict[str, Any]]:
    import keras
    import numpy as np

    x = inputs = keras.Input((12, 64), name="x")
    for _ in range(2):
        h = keras.layers.MultiHeadAttention(4, 16)(x, x, use_causal_mask=True)
        x = keras.layers.LayerNormalization()(x + h)
        h = keras.layers.Dense(64)(keras.activations.gelu(keras.layers.Dense(128)(x), approximate=True))
        x = keras.layers.LayerNormalization()(x + h)
    return keras.Model(inputs, x), {"x": np.zeros((2, 12, 64), np.float32)}


def _keras_convolutions() -> tuple[Any, dict[str, Any]]:
    import keras
    import numpy as np

    x = inputs = keras.Input((32, 32, 3), name="x")
    x = keras.layers.Conv2D(32, 3, 2, "same", activation="silu")(x)
    for _ in range(2):
        h = keras.layers.BatchNormalization()(keras.layers.Conv2D(64, 1, use_bias=False)(x))
        h = keras.layers.DepthwiseConv2D(3, padding="same")(keras.activations.silu(h))
        h = keras.activations.silu(keras.layers.BatchNormalization()(h))
        gate = keras.layers.Reshape((1, 1, 64))(keras.layers.GlobalAveragePooling2D()(h))
        gate = keras.layers.Conv2D(16, 1, activation="silu")(gate)
        h = h * keras.layers.Conv2D(64, 1, activation="sigmoid")(gate)
        x = x + keras.layers.BatchNormalization()(keras.layers.Conv2D(32, 1, use_bias=False)(h))
    x = keras.layers.GroupNormalization(8)(x)
    return keras.Model(inputs, keras.layers.UpSampling2D()(x)), {"x": np.zeros((2, 32, 32, 3), np.float32)}


def _decoder(name: str, **sizes: Any) -> Callable[[], tuple[Any, dict]]:
    """A causal language model with its head, which genai's builder writes with a cache."""

    def build() -> tuple[Any, dict[str, Any]]:
        import torch
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=2)
        return getattr(transformers, f"{name}ForCausalLM")(config).eval(), {}

    return build


def _paddle(name: str) -> Callable[[], tuple[Any, dict]]:
    """One of paddle.vision, or of paddle_networks.py."""

    def build() -> tuple[Any, dict[str, Any]]:
        import paddle

        from benchmarks.support.exporters import paddle_networks

        paddle.seed(0)
        image = {"x": paddle.static.InputSpec([None, 3, 64, 64], "float32", "x")}
        if name in ("bert", "vit"):
            module = {"bert": paddle_networks.Bert, "vit": paddle_networks.ViT}[name]()
        else:
            module = getattr(paddle.vision.models, name)(num_classes=10)
        ids = {n: paddle.static.InputSpec([None, None], "int64", n) for n in ("input_ids", "attention_mask")}
        module.eval()
        return module, ids if name == "bert" else image

    return build


def _whisper_encoder() -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        d_model=64, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128, decoder_layers=1,
        decoder_attention_heads=4, decoder_ffn_dim=128, vocab_size=128, max_source_positions=100, pad_token_id=0,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.WhisperModel(config).encoder.eval(), {"input_features": torch.randn(2, 80, 200)}


def _wav2vec2() -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.Wav2Vec2Config(
        **_SIZES, vocab_size=32, conv_dim=(32,) * 3, conv_stride=(5, 4, 2), conv_kernel=(10, 8, 4),
        num_feat_extract_layers=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        attn_implementation="eager",
    )  # fmt: skip
    return transformers.Wav2Vec2Model(config).eval(), {"input_values": torch.randn(2, 4000)}


_SEQUENCE = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask")}
_IDS = {"input_ids": {0: "batch", 1: "sequence"}}
_BATCH = {"pixel_values": {0: "batch"}}
_VIT = {**_SIZES, "image_size": 64, "patch_size": 16}
_LLAMA = {**_SIZES, **_VOCABULARY, "num_key_value_heads": 2}
_TEXT = "feature-extraction"
NETWORKS: dict[str, Network] = {
    "bert": Network("torch", 2, _transformers("Bert", _tokens, **_SIZES, **_VOCABULARY), _SEQUENCE, _TEXT),
    "distilbert": Network(
        "torch", 2, _transformers("DistilBert", _tokens, vocab_size=128, dim=64, n_layers=2, n_heads=4, hidden_dim=128),
        _SEQUENCE, _TEXT,
    ),
    "gpt2": Network(
        "torch", 2, _transformers("GPT2", _tokens, vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4),
        _SEQUENCE, _TEXT,
    ),
    "llama": Network("torch", 2, _transformers("Llama", _tokens, **_LLAMA), _SEQUENCE, _TEXT),
    "qwen3": Network("torch", 2, _transformers("Qwen3", _tokens, **_LLAMA, head_dim=16), _SEQUENCE, _TEXT),
    "bart": Network(
        "torch", 6,
        _transformers(
            "Bart", _tokens, vocab_size=128, max_position_embeddings=64, d_model=64, encoder_layers=2, decoder_layers=2,
            encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
        ),
        _SEQUENCE,
    ),
    "cliptext": Network("torch", 2, _transformers("CLIPText", _tokens, **_SIZES, **_VOCABULARY), _SEQUENCE),
    "vit": Network("torch", 2, _transformers("ViT", lambda: _image(64), **_VIT), _BATCH, _TEXT),
    "dinov2": Network("torch", 2, _transformers("Dinov2", lambda: _image(64), **_VIT), _BATCH, _TEXT),
    "swin": Network(
        "torch", 4,
        _transformers(
            "Swin", lambda: _image(64), image_size=64, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4
        ),
        _BATCH, _TEXT,
    ),
    "segformer": Network(
        "torch", 4,
        _transformers(
            "Segformer", lambda: _image(64), depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 64],
            num_attention_heads=[1, 1, 2, 4], decoder_hidden_size=64,
        ),
        _BATCH, _TEXT,
    ),
    "whisperenc": Network("torch", 2, _whisper_encoder),
    "wav2vec2": Network("torch", 2, _wav2vec2, {"input_values": {0: "batch"}}, _TEXT),
    "convnext": Network(
        "torch", 0, _transformers("ConvNext", lambda: _image(64), depths=[1, 1, 2, 1], hidden_sizes=[16, 32, 64, 64]),
        _BATCH, _TEXT,
    ),
    "resnet18": Network("torch", 0, _torchvision("resnet18"), {"x": {0: "batch"}}),
    "mobilenet_v3": Network("torch", 0, _torchvision("mobilenet_v3_small"), {"x": {0: "batch"}}),
    "shufflenet": Network("torch", 0, _torchvision("shufflenet_v2_x0_5"), {"x": {0: "batch"}}),
    "keras_transformer": Network("keras", 2, _keras_transformer),
    "keras_convolutions": Network("keras", 0, _keras_convolutions),
    "llama_cached": Network("genai", 2, _decoder("Llama", **_LLAMA)),
    "qwen3_cached": Network("genai", 2, _decoder("Qwen3", **_LLAMA, head_dim=16)),
    "paddle_bert": Network("paddle", 2, _paddle("bert")),
    "paddle_vit": Network("paddle", 2, _paddle("vit")),
    "paddle_resnet18": Network("paddle", 0, _paddle("resnet18")),
    "paddle_mobilenet_v3": Network("paddle", 0, _paddle("mobilenet_v3_small")),
    "paddle_shufflenet": Network("paddle", 0, _paddle("shufflenet_v2_x0_5")),
    "yolov8n": Network("ultralytics", 0, lambda: ("yolov8n.yaml", {})),
    "yolo11n": Network("ultralytics", 1, lambda: ("yolo11n.yaml", {})),
    "yolo12n": Network("ultralytics", 8, lambda: ("yolo12n.yaml", {})),
}  # fmt: skip
