"""The process that exports models: `python -m models.exporting ENTRIES FOLDER`, ENTRIES the JSON of a list of Exported.

Writes NAME.onnx (NAME.onnx.data beside it above 1.5 GB), then NAME.json with the seconds taken and the versions used.
"""

from __future__ import annotations

import functools
import importlib
import json
import pathlib
import sys
import time
from typing import Any

import torch
import transformers
from onnxscript.values import TracedOnnxFunction

from models.architectures import FAMILIES
from models.exported import Exported

_EXTERNAL_ABOVE = 1_500_000_000  # bytes; protobuf stops at 2 GB
_OPSET = 20
# Every export asks 500 functions for their signatures, and each reads its own source anew: a third of the time of an
# export of a tiny model.
TracedOnnxFunction.function_ir = property(functools.cache(TracedOnnxFunction.function_ir.fget))
_STACK_TRACE = "pkg.torch.onnx.stack_trace"  # names this folder, and counts what the process exported before


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
    family = importlib.import_module(f"models.architectures.{FAMILIES[entry.architecture]}")
    torch.manual_seed(0)
    model: torch.nn.Module = family.BUILDERS[entry.architecture](entry.size == "tiny")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            elif parameter.dim() == 4:
                torch.nn.init.kaiming_normal_(parameter)
        _calibrate_batch_norms(model, (2, *entry.inputs["x"].shape[1:]))
    model = model.eval()
    return model.half() if entry.fp16 else model


def _export(entry: Exported, out: pathlib.Path) -> dict[str, Any]:
    start = time.perf_counter()
    model = build(entry)
    names = {name for axes in entry.dynamic_shapes.values() for name in axes.values()}
    dims = {name: torch.export.Dim(name) for name in sorted(names)}
    tensors, dynamic = [], []
    for name, spec in entry.inputs.items():
        tensors.append(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)))
        dynamic.append({axis: dims[dim] for axis, dim in entry.dynamic_shapes.get(name, {}).items()})
    past = len(tensors) > 1  # what follows x is one list: the keys and values of the tokens before
    layers = range((len(tensors) - 1) // 2)
    states = [f"{kind}_{k}" for k in layers for kind in ("present_key", "present_value")]
    program = torch.onnx.export(
        model,
        (tensors[0], tensors[1:]) if past else tuple(tensors),
        dynamo=True,
        opset_version=_OPSET,
        input_names=list(entry.inputs),
        output_names=["y", *states],
        dynamic_shapes=((dynamic[0], dynamic[1:]) if past else tuple(dynamic)) if entry.dynamic else None,
    )
    assert program is not None  # None only without dynamo=True
    for node in program.model.graph.all_nodes():
        node.metadata_props.pop(_STACK_TRACE, None)
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    program.save(str(out), external_data=size > _EXTERNAL_ABOVE)
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    for row in json.loads(sys.argv[1]):
        target = pathlib.Path(sys.argv[2]) / f"{Exported(**row).name}.onnx"
        noted = _export(Exported(**row), target)
        target.with_suffix(".json").write_text(json.dumps(noted))
