"""Transformers with caps, sinks and local layers, and an attention, as torch exports them, without their weights.

python -m tests.support.attention.exported_attentions     writes them anew; needs transformers
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from tests.support.decoders import exported_decoders

FOLDER = Path(__file__).parent / "attentions"
LAYERS = {"gemma2": 2, "gpt_oss": 2, "modernbert": 3, "qwen3": 2}  # each has one attention
TOKENS = 96
_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 512, "use_cache": False,
}  # fmt: skip
_LAYER_TYPES = ["sliding_attention", "full_attention"]


def load(name: str) -> onnx.ModelProto:
    """The model of this name, with seeded random weights."""
    return exported_decoders.with_weights((FOLDER / f"{name}.onnx.xz").read_bytes())


def _model(kind: str, **sizes: Any) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    experts = {"experts_implementation": "batched_mm"} if kind == "GptOss" else {}
    made = transformers.AutoModel.from_config(config, attn_implementation="eager", **experts).eval()
    for name, parameter in made.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    return made.half()


def _export(model: Any, dynamic: bool) -> onnx.ModelProto:
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.m = model

        def forward(self, input_ids: Any) -> Any:
            return self.m(input_ids=input_ids)[0]

    dims = ({0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=500)},) if dynamic else None
    tokens = torch.randint(3, 100, (2, TOKENS))
    program = torch.onnx.export(First(), (tokens,), dynamo=True, dynamic_shapes=dims, opset_version=20)
    assert program is not None
    return program.model_proto


def _rotated_heads() -> onnx.ModelProto:
    import torch

    torch.manual_seed(0)
    count, groups, size = 4, 2, 32

    class Block(torch.nn.Module):
        """Attention as Qwen3 has it: each head of q and k is normalized, then turned."""

        def __init__(self) -> None:
            super().__init__()
            self.q = torch.nn.Linear(64, count * size, bias=False)
            self.k, self.v = (torch.nn.Linear(64, groups * size, bias=False) for _ in range(2))
            self.q_weight, self.k_weight = (torch.nn.Parameter(torch.linspace(0.5, 1.5, size)) for _ in range(2))
            angle = torch.arange(16)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
            angle = torch.cat((angle, angle), -1)
            self.register_buffer("cos", angle.cos()[None, None].half())
            self.register_buffer("sin", angle.sin()[None, None].half())

        def heads(self, x, weight):
            x = x.view(*x.shape[:2], -1, size)
            if weight is not None:
                wide = x.float()
                wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
                x = weight * wide.half()
            return x.transpose(1, 2)

        def turned(self, x):
            first, second = x[..., : size // 2], x[..., size // 2 :]
            return x * self.cos + torch.cat((-second, first), -1) * self.sin

        def forward(self, x):
            q, k = self.turned(self.heads(self.q(x), self.q_weight)), self.turned(self.heads(self.k(x), self.k_weight))
            v = self.heads(self.v(x), None)
            k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(t.shape[0], count, -1, size) for t in (k, v))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    x = torch.randn(2, 16, 64).half()
    program = torch.onnx.export(Block().eval().half(), (x,), dynamo=True, opset_version=20)
    assert program is not None
    return program.model_proto


def main() -> None:
    store = exported_decoders.store
    gemma = _model("Gemma2", **_SIZES, head_dim=16, sliding_window=32, query_pre_attn_scalar=16)
    store("gemma2", _export(gemma, dynamic=True), FOLDER)
    few = {"num_local_experts": 2, "num_experts_per_tok": 1}
    oss = _model("GptOss", **_SIZES, head_dim=16, sliding_window=32, layer_types=_LAYER_TYPES, **few)
    store("gpt_oss", _export(oss, dynamic=True), FOLDER)
    sizes = {k: v for k, v in _SIZES.items() if k not in ("num_key_value_heads", "use_cache")} | {
        "num_hidden_layers": 3
    }
    ends = {f"{end}_token_id": number for number, end in enumerate(("pad", "cls", "sep"))}
    bert = _model("ModernBert", **sizes, local_attention=32, global_attn_every_n_layers=3, **ends)
    store("modernbert", _export(bert, dynamic=False), FOLDER)
    store("qwen3", _export(_model("Qwen3", **_SIZES, head_dim=16), dynamic=False), FOLDER)
    store("rotated_heads", _rotated_heads(), FOLDER)


if __name__ == "__main__":
    main()
