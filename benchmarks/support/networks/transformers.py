"""Transformers that nothing was tuned for: what transformers.json says of each, its module and its inputs."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pathlib
import pkgutil
from typing import Any

import numpy as np

_FILE = pathlib.Path(__file__).with_suffix(".json")
_TORCH = ("nn.TransformerEncoder", "nn.TransformerDecoder")  # 6 layers of 768, in place of a class of transformers


@dataclasses.dataclass(frozen=True)
class Model:
    """A class of transformers, what its configuration says beside the defaults, and the input.

    batch, tokens: of the input; tokens is the side of images where channels are given. samples: of a sound, in place of
    tokens. padded: the input has a mask. dynamic: exported with dynamic batch and tokens, and run at the same sizes.
    """

    name: str
    configuration: dict[str, Any]
    batch: int
    tokens: int = 0
    dtype: str = "float16"
    padded: bool = False
    channels: int = 0
    samples: int = 0
    dynamic: bool = False


def _read() -> dict[str, Model]:
    rows = json.loads(_FILE.read_text())
    static = {name: Model(row.pop("class"), **row) for name, row in rows.items()}
    texts = {n: m for n, m in static.items() if not m.channels and not m.samples and m.name not in _TORCH}
    return static | {f"{n}_dynamic": dataclasses.replace(m, dynamic=True) for n, m in texts.items()}


# Each of texts also as NAME_dynamic: exporters give a dim that is 1 in the example no symbol everywhere.
MODELS = _read()


def net_of(model: Model) -> Any:
    """The module, which returns its last hidden states in float32."""
    import torch

    torch.manual_seed(0)
    net = _of_torch(model.name) if model.name in _TORCH else _of_transformers(model)
    return net.eval().to(getattr(torch, model.dtype))


def _of_torch(name: str) -> Any:
    import torch

    settings = {"activation": "gelu", "batch_first": True, "norm_first": True}
    encoder = name.endswith("Encoder")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(8000, 768)
            if encoder:
                layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, **settings)
                self.net: Any = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
            else:
                self.net = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(768, 12, 3072, **settings), 6)

        def forward(self, x: Any) -> Any:
            tokens = self.embed(x)
            return (self.net(tokens) if encoder else self.net(tokens, tokens.flip(1))).float()

    return Net()


def _of_transformers(model: Model) -> Any:
    import torch

    kind = _class(model.name)
    input_name = "pixel_values" if model.channels else "input_values" if model.samples else "input_ids"

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            configuration = kind.config_class(**model.configuration)
            configuration._attn_implementation = "sdpa" if kind._supports_sdpa else "eager"
            self.net = kind(configuration)

        def forward(self, x: Any, mask: Any = None) -> Any:
            given = {input_name: x} | ({} if mask is None else {"attention_mask": mask})
            found = self.net(**given, return_dict=True)
            hidden = getattr(found, "last_hidden_state", None)
            hidden = found[0] if hidden is None else hidden
            return (hidden[0] if isinstance(hidden, (tuple, list)) else hidden).float()

    return Net()


def _class(name: str) -> Any:
    """A class of transformers, also one that the package itself does not name."""
    import transformers

    if hasattr(transformers, name):
        return getattr(transformers, name)
    for info in pkgutil.iter_modules(transformers.models.__path__):
        try:
            module = importlib.import_module(f"transformers.models.{info.name}.modeling_{info.name}")
        except ImportError:
            continue
        if hasattr(module, name):
            return getattr(module, name)
    raise SystemExit(f"transformers {transformers.__version__} has no class {name}")


def inputs_of(model: Model) -> dict[str, np.ndarray]:
    """Seeded inputs by name; every second sequence of a padded one ends early."""
    random = np.random.default_rng(1)
    if model.channels or model.samples:
        image = (model.batch, model.channels, model.tokens, model.tokens)
        shape = (model.batch, model.samples) if model.samples else image
        return {"x": random.standard_normal(shape, np.float32).astype(np.float16)}
    given = {"x": random.integers(0, 5000, (model.batch, model.tokens))}
    if model.padded:
        given["mask"] = np.ones_like(given["x"])
        given["mask"][::2, model.tokens * 3 // 4 :] = 0
    return given
