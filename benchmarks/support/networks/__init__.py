"""The networks of `models.networks` by name: how each is built, and its inputs.

Groups: `open`, networks of other kinds than transformers of text and classifiers of images; `further` ones of one and
three dims; `convolutions`, of timm; `transformers`, of transformers.json, and `dynamic`, those of
texts with dynamic dims; `catalogue`, of models/. `timm:NAME` and `torchvision:NAME`, also with `:float32` after them,
are any network of these libraries, in the group `others`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.support.networks import transformers

Made = tuple[Any, tuple[Any, ...]]  # a module in float32 and its inputs

_TIMM = (
    "convnextv2_atto", "densenet121", "ghostnet_100", "hrnet_w18_small", "inception_v3", "mobilenetv2_100",
    "mobilenetv3_large_100", "mobilevit_s", "pvt_v2_b1", "regnety_008", "repvgg_b0", "resnext50_32x4d",
    "swin_tiny_patch4_window7_224", "tf_efficientnetv2_b0",
)  # fmt: skip


@dataclass(frozen=True)
class Network:
    """make: builds it. dtype: of its weights and its floating-point inputs.

    moved: biases of 0 and statistics of batch norms are drawn anew: a lost one changes the outputs then.
    dynamic: exported with these names of dims, by input and axis.
    """

    group: str
    make: Callable[[], Made]
    dtype: str = "float16"
    moved: bool = True
    dynamic: tuple[dict[int, str], ...] | None = None


def built(name: str, *, exact: bool = False, samples: int | None = None) -> Made:
    """The module in eval mode and its inputs, in the network's dtype or in float32 (exact).

    The same weights and inputs each time. samples: of the batch, the first ones alone.
    """
    import torch

    network = named(name)
    torch.manual_seed(0)
    module, inputs = network.make()
    if network.moved:
        _move(module)
    module, inputs = _in(network.dtype, module.eval(), tuple(x[:samples] for x in inputs))
    return _in("float32", module, inputs) if exact else (module, inputs)  # both with the same weights


def _in(dtype: str, module: Any, inputs: tuple[Any, ...]) -> Made:
    import torch

    kind = getattr(torch, dtype)
    return module.to(kind), tuple(x.to(kind) if x.is_floating_point() else x for x in inputs)


def _move(module: Any) -> None:
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1 and not parameter.any():
                parameter.normal_(0, 0.1)
        for norm in module.modules():
            if getattr(norm, "running_var", None) is not None:
                norm.running_mean.normal_(0, 0.1)
                norm.running_var.uniform_(0.7, 1.3)


def _own(file: str, module: str, *shapes: Sequence[int], **settings: Any) -> Callable[[], Made]:
    """A module of this folder over normal numbers."""

    def make() -> Made:
        import torch

        build = getattr(importlib.import_module(f"{__name__}.{file}"), module)
        return build(**settings), tuple(torch.randn(shape) for shape in shapes)

    return make


def _dlrm() -> Made:
    import torch

    from benchmarks.support.networks.sets import DLRM

    return DLRM(), (torch.randn(4096, 13), torch.randint(0, 20_000, (4096, 26)))


def _timm(name: str, side: int | None = 224) -> Callable[[], Made]:
    """side: of the images; None for that of the network's own settings."""

    def make() -> Made:
        import timm
        import torch

        net = timm.create_model(name, pretrained=False)
        pixels = side or net.default_cfg["input_size"][-1]
        return net, (torch.randn(16, 3, pixels, pixels),)

    return make


def _torchvision(name: str) -> Callable[[], Made]:
    """A network over images, or over clips of 16 images."""

    def make() -> Made:
        import torch
        import torchvision.models as library

        class Tensors(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = library.get_model(name, weights=None, **{"weights_backbone": None} if backbone else {})

            def forward(self, x: Any) -> Any:
                outputs = self.net(x)
                return tuple(outputs.values()) if isinstance(outputs, dict) else outputs

        backbone = name in library.list_models(library.segmentation)
        clips = name in library.list_models(library.video)
        return Tensors(), (torch.randn((2, 3, 16, 224, 224) if clips else (8, 3, 224, 224)),)

    return make


def _rtdetr() -> Made:
    import torch
    from transformers import RTDetrConfig, RTDetrForObjectDetection

    class Boxes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = RTDetrForObjectDetection(RTDetrConfig())

        def forward(self, x: Any) -> tuple[Any, Any]:
            found = self.net(pixel_values=x, return_dict=True)
            return found.logits, found.pred_boxes

    return Boxes(), (torch.randn(8, 3, 640, 640),)


def _bert() -> Made:
    import torch
    from transformers import BertConfig, BertModel

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = BertModel(BertConfig())

        def forward(self, x: Any) -> Any:
            return self.net(input_ids=x).last_hidden_state

    return Hidden(), (torch.randint(0, 30_000, (8, 128)),)


def _transformer(model: transformers.Model) -> Network:
    def make() -> Made:
        import torch

        return transformers.net_of(model), tuple(map(torch.from_numpy, transformers.inputs_of(model).values()))

    inputs = 2 if model.padded else 1
    dynamic = ({0: "batch", 1: "tokens"},) * inputs if model.dynamic else None
    return Network("dynamic" if model.dynamic else "transformers", make, model.dtype, moved=False, dynamic=dynamic)


def _catalogue(name: str) -> Network:
    def make() -> Made:
        import torch

        import models
        from models import exporting

        entry = models.exported.exports()[name]
        return exporting.build(entry), tuple(map(torch.from_numpy, models.feeds(name).values()))

    return Network("catalogue", make, "float16" if name.endswith("_fp16") else "float32", moved=False)


def named(name: str) -> Network:
    """A network of this list, or LIBRARY:NAME or LIBRARY:NAME:DTYPE. SystemExit for a name of another form."""
    if name in NETWORKS:
        return NETWORKS[name]
    library, _, rest = name.partition(":")
    of, _, dtype = rest.partition(":")
    if library not in _LIBRARIES or not of or dtype not in ("", "float16", "bfloat16", "float32"):
        raise SystemExit(f"{name} is no network; those of libraries are {':NAME or '.join(_LIBRARIES)}:NAME[:float32]")
    return Network("others", _LIBRARIES[library](of), dtype or "float16")


def _networks() -> dict[str, Network]:
    open_ones = {
        "hifigan": _own("signals", "HiFiGAN", (8, 80, 200)),
        "pointnet": _own("sets", "PointNet", (32, 3, 2048)),
        "unet3d": _own("volumes", "UNet3D", (1, 1, 96, 96, 96)),
        "nafnet": _own("restoration", "NAFNet", (4, 3, 256, 256)),
        "rrdb": _own("restoration", "RRDB", (1, 3, 256, 256)),
        "mmdit": _own("conditioned", "MMDiT", (2, 1024, 1024), (2, 154, 1024), (2, 1024)),
        "dlrm": _dlrm,
        "lstm": _own("signals", "Recurrent", (32, 200, 80), kind="LSTM"),
        "rtdetr": _rtdetr,
        "vgg16_bn": _timm("vgg16_bn"),
        "bert_f32": _bert,
        "vit_f32": _timm("vit_base_patch16_224"),
        "swin_f32": _timm("swin_tiny_patch4_window7_224"),
        "dlrm_f32": _dlrm,
    }
    further = {
        "gru": _own("signals", "Recurrent", (32, 200, 80), kind="GRU"),
        "dit": _own("conditioned", "DiT", (8, 256, 768), (8, 768)),
        "conformer": _own("conditioned", "Conformer", (8, 800, 80)),
        "resnet3d_18": _own("volumes", "VideoResNet", (4, 3, 16, 112, 112), factorized=False),
        "r2plus1d_18": _own("volumes", "VideoResNet", (4, 3, 16, 112, 112), factorized=True),
        "conv_tasnet": _own("signals", "ConvTasNet", (4, 1, 32_000)),
        "unet1d": _own("signals", "UNet1d", (32, 64, 256)),
        "ecg_resnet": _own("signals", "ECGResNet", (32, 12, 4096)),
    }
    groups = {"open": open_ones, "further": further, "convolutions": {name: _timm(name) for name in _TIMM}}
    networks = {
        name: Network(group, make, "float32" if name.endswith("_f32") else "float16")
        for group, makes in groups.items()
        for name, make in makes.items()
    }
    networks |= {name: _transformer(model) for name, model in transformers.MODELS.items()}
    architectures = ("bert", "vit", "llama", "convnext", "efficientnet", "whisper_encoder")
    exported = [f"{name}{half}" for name in architectures for half in ("", "_fp16")]
    return networks | {f"catalogue_{name}": _catalogue(name) for name in exported}


_LIBRARIES: dict[str, Callable[[str], Callable[[], Made]]] = {
    "timm": lambda name: _timm(name, None), "torchvision": _torchvision
}  # fmt: skip
NETWORKS = _networks()
