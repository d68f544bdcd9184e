"""Models optimized here for another machine: graphs without the bytes of their weights, and one library.

The GPU machine has no compiler, and only small files can be carried to it. So onnxopt's steps run here, up to the
fatbin.
"""

from __future__ import annotations

import dataclasses
import gc
import pathlib
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence

import onnx

from benchmarks.support.fusing import fuse, outlined
from onnxopt.artifact.folder import write_library
from onnxopt.codegen import generate, kernels_json, nvrtc
from onnxopt.fusion.region import FusionPlan, Kernel
from onnxopt.graph import normalize, read, rewrite, write
from onnxopt.graph.fused_domain import BARE
from onnxopt.graph.passes.codes.products_of_codes import ProductsOfCodesPass
from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
from onnxopt.kinds.rowwise.entry_points import LAYOUTS, RowVariant
from onnxopt.program.schema import Variant


@dataclasses.dataclass
class Collection:
    """Kernels of several models, by name; models that mean the same computation share one."""

    kernels: dict[str, Kernel] = dataclasses.field(default_factory=dict)

    def optimize(self, model: onnx.ModelProto) -> tuple[onnx.ModelProto, FusionPlan]:
        """The optimized model with its weights, and what was fused and refused. Its kernels join the collection."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            onnx.save(model, folder / "source.onnx")
            normalized = normalize.normalize(read.load(folder / "source.onnx").model).model
            rewrite.rewrite(normalized, folder)
            TransposeWeightsPass(gpu=True)(normalized)
            ProductsOfCodesPass()(normalized)
            plan = fuse(normalized)
            names = {kernel.name: self.add(kernel) for kernel in outlined(normalized, plan)}
            write.save(normalized, folder, external=False)
            return renamed(onnx.load(folder / write.MODEL_FILE), names), plan

    @classmethod
    def prepare(
        cls, folder: pathlib.Path, arch: str, names: Sequence[str], write_one: Callable[[Collection, str], str]
    ) -> None:
        """Make the folder, and in it what write_one writes of every model and one library with the kernels of all.

        write_one(collection, name) returns what to print of the model.
        """
        folder.mkdir(parents=True)
        collection = cls()
        for name in names:
            start = time.perf_counter()
            said = write_one(collection, name)
            print(f"{name}: {time.perf_counter() - start:.1f} s, {said}", flush=True)
            gc.collect()
        collection.write_library(folder, [arch])
        total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        print(f"{len(collection.kernels)} kernels, {total / 1e6:.2f} MB in all")

    def add(self, kernel: Kernel) -> str:
        """Variants are chosen by the shapes of one model: two models with one kernel need the variants of both.

        Where one entry point is to be launched in two ways (costs/data/pointwise.json goes by size), the later model's
        kernel gets a name of its own, which is returned.
        """
        known = self.kernels.get(kernel.name, kernel)
        variants = {v.symbol: v for v in known.variants}
        if any(variants.setdefault(v.symbol, v) != v for v in kernel.variants):
            own = f"{kernel.name}_"
            moved = [dataclasses.replace(v, symbol=v.symbol.replace(kernel.name, own, 1)) for v in kernel.variants]
            return self.add(dataclasses.replace(kernel, name=own, variants=tuple(moved)))
        self.kernels[kernel.name] = dataclasses.replace(
            kernel, variants=tuple(sorted(variants.values(), key=_priority)), sites=(*known.sites, *kernel.sites)
        )
        return kernel.name

    def write_library(self, folder: pathlib.Path, archs: Sequence[str]) -> None:
        """Compile all kernels; library, fatbin and kernels.json go into folder/lib.tar.xz, a fifth of their size."""
        kernels = tuple(self.kernels.values())
        fatbin = nvrtc.compile_cuda(generate.generate(kernels), archs)
        with tempfile.TemporaryDirectory() as name:
            lib = pathlib.Path(name) / "lib"
            write_library(lib, kernels_json.to_json(kernels, fatbin), fatbin)
            with tarfile.open(folder / "lib.tar.xz", "w:xz") as archive:
                archive.add(lib, "lib")


def renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """The model with its functions of the domain `onnxopt` under these names; control flow has none here."""
    for function in model.functions:
        function.name = names.get(function.name, function.name)
    for node in model.graph.node:
        if node.domain == BARE:
            node.op_type = names[node.op_type]
    return model


def _priority(variant: Variant) -> tuple[int, bool, int, int]:
    """Entry points for any row, or any shapes, come last, those for longer rows behind others; else they keep their
    order."""
    if not isinstance(variant, RowVariant):
        return 0, not set(variant.modes) - set("*p"), 0, 0
    any_length = variant.unroll == 0 if variant.layout == "strided" else variant.columns == 0
    if not any_length and variant.layout != "strided":
        return 0, False, variant.index, 0
    longest = variant.lanes * variant.unroll if variant.layout in ("held", "ragged") else 0
    return 1 + LAYOUTS.index(variant.layout), any_length, variant.index, longest


def describe(plan: FusionPlan) -> dict[str, object]:
    """How many nodes became how many regions, and how often each reason to refuse was given."""
    reasons: dict[str, int] = {}
    for refusal in plan.refusals:
        reason = re.sub(r"^\S+ also ", "a value also ", refusal.reason)  # without the value's name
        reasons[reason] = reasons.get(reason, 0) + 1
    return {
        "regions": len(plan.regions),
        "nodes_in_regions": sum(len(r.nodes) for r in plan.regions),
        "refusals": reasons,
    }
