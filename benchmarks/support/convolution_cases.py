"""Convolution layers optimized here for another machine: models of one node without their weights, and one library."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tarfile
import tempfile
from collections.abc import Iterator, Sequence

import onnx

from cases.convolution import Layer
from tests.support.wrong_bodies import with_wrong_bodies

LIBRARY = pathlib.Path("lib", "libonnxopt_ops.so")  # below the unpacked folder
_WEIGHTS = ("w", "b", "slopes")


def pack(archive: pathlib.Path, layers: Sequence[Layer], *, casts: bool) -> int:
    """Write the models of the layers and the library into an archive; returns how many kernels they share.

    The functions that became kernels have no bodies there: only the library can run them. casts: of Layer.model.
    """
    import onnx_ir as ir

    from cases.models import fuse, outline
    from onnxopt.artifact.folder import write_library
    from onnxopt.codegen import kernels_json
    from onnxopt.fusion.region import Kernel

    kernels: dict[str, Kernel] = {}
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        for k, layer in enumerate(layers):
            model = ir.from_proto(layer.model(casts=casts))
            made = [kernel for kernel in outline(model, fuse(model)) if kernel.kind.name in ("convolution", "gemm")]
            if len(made) != 1:
                raise ValueError(f"{layer} became {len(made)} kernels")
            kernels[made[0].name] = made[0]
            proto = ir.to_proto(model)
            proto = with_wrong_bodies(proto, [made[0].name])
            for tensor in proto.graph.initializer:
                if tensor.name in _WEIGHTS:
                    tensor.ClearField("raw_data")
            (root / f"{k}.onnx").write_bytes(proto.SerializeToString())
        (root / "layers.json").write_text(json.dumps([dataclasses.asdict(layer) for layer in layers]))
        write_library(root / LIBRARY.parent, kernels_json.to_json(tuple(kernels.values()), None), None)
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(root, ".")
    return len(kernels)


def unpacked(root: pathlib.Path) -> Iterator[tuple[Layer, bytes]]:
    """Every layer and its model with weights, from the folder that an archive was unpacked into."""
    for k, row in enumerate(json.loads((root / "layers.json").read_text())):
        layer = Layer(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()})
        model = onnx.load(root / f"{k}.onnx")
        filled = {tensor.name: tensor for tensor in layer.initializers()}
        for tensor in model.graph.initializer:
            if tensor.name in _WEIGHTS:
                tensor.CopyFrom(filled[tensor.name])
        yield layer, model.SerializeToString()
