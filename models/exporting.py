"""The process that exports one model: `python -m models.exporting ENTRY OUT.onnx`, ENTRY the JSON of an Exported.

Writes OUT.onnx (OUT.onnx.data beside it above 1.5 GB) and OUT.json with the seconds taken and the versions used.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from typing import Any

import torch
import transformers

from models.exported import Exported

_EXTERNAL_ABOVE = 1_500_000_000  # bytes; protobuf stops at 2 GB
_OPSET = 20


class FirstOutput(torch.nn.Module):
    """One positional input "x" and the first output: the form in which every architecture is exported."""

    def __init__(self, model: torch.nn.Module, key: str) -> None:
        super().__init__()
        self.m, self.key = model, key

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.m(**{self.key: x})[0]


def _bert(tiny: bool) -> tuple[torch.nn.Module, str]:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = transformers.BertConfig(**small, vocab_size=128) if tiny else transformers.BertConfig()
    return transformers.BertModel(config), "input_ids"


def _vit(tiny: bool) -> tuple[torch.nn.Module, str]:
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = transformers.ViTConfig(**small, image_size=32, patch_size=8) if tiny else transformers.ViTConfig()
    return transformers.ViTModel(config), "pixel_values"


def _convnext(tiny: bool) -> tuple[torch.nn.Module, str]:
    small = {"hidden_sizes": [16, 32, 64, 96], "depths": [1, 1, 2, 1]}
    return transformers.ConvNextModel(transformers.ConvNextConfig(**(small if tiny else {}))), "pixel_values"


def _efficientnet(tiny: bool) -> tuple[torch.nn.Module, str]:
    width, image, hidden = (0.25, 64, 320) if tiny else (1.0, 224, 1280)
    config = transformers.EfficientNetConfig(
        width_coefficient=width, depth_coefficient=0.3 if tiny else 1.0, image_size=image, hidden_dim=hidden
    )
    return transformers.EfficientNetModel(config), "pixel_values"


def _llama(tiny: bool) -> tuple[torch.nn.Module, str]:
    hidden, inner, layers, heads, vocabulary = (64, 160, 2, 4, 128) if tiny else (2048, 5632, 8, 16, 32000)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        vocab_size=vocabulary,
        use_cache=False,
    )
    return transformers.LlamaModel(config), "input_ids"


_BUILDERS = {"bert": _bert, "vit": _vit, "convnext": _convnext, "efficientnet": _efficientnet, "llama": _llama}


def _calibrate_batch_norms(model: torch.nn.Module, shape: tuple[int, ...]) -> None:
    """Give batch norms the statistics of one random batch: with initial ones no trace of the input reaches the end."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        torch.nn.init.normal_(norm.weight, 1.0, 0.05)
        norm.momentum = 1.0
    if norms:
        model.train()(torch.randn(shape))


def build(entry: Exported) -> torch.nn.Module:
    """The PyTorch model in eval mode with its seeded random weights.

    Initializers leave biases 0, scales 1 and layer scales 1e-6, with which a lost or doubled bias would go unseen, so
    vectors are moved off their initial values and convolutions keep the variance.
    """
    torch.manual_seed(0)
    model, key = _BUILDERS[entry.architecture](entry.size == "tiny")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            elif parameter.dim() == 4:
                torch.nn.init.kaiming_normal_(parameter)
        _calibrate_batch_norms(model, (2, *entry.inputs["x"].shape[1:]))
    wrapped = FirstOutput(model, key).eval()
    return wrapped.half() if entry.fp16 else wrapped


def _export(entry: Exported, out: pathlib.Path) -> dict[str, Any]:
    start = time.perf_counter()
    model = build(entry)
    (name, spec), *_ = entry.inputs.items()
    if spec.dtype == "int64":
        x = torch.zeros(spec.shape, dtype=torch.int64)
    else:
        x = torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
    dims = {axis: torch.export.Dim(dim) for axis, dim in entry.dynamic_dims.items()}
    program = torch.onnx.export(
        model,
        (x,),
        dynamo=True,
        opset_version=_OPSET,
        input_names=[name],
        output_names=["y"],
        dynamic_shapes={name: dims} if dims else None,
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
