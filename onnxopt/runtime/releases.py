"""Releases of ONNX Runtime: what they read, which are tried, and which an artifact needs, with the reasons.

Sources. Which IR version and opset a release reads: a model of one Identity, in every pair, opened with each release
from 1.21.1 to 1.32.0 (2026-12-01; tests/compat/test_releases.py does so again). Kernels that came later than their
operator: ONNX Runtime's release notes and the kernel tables of its wheels. CUDA: codegen/architectures.py. What to do
for a new release: CONTRIBUTING.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import onnx_ir as ir
import pydantic

from onnxopt.codegen.architectures import cuda_of
from onnxopt.errors import UsageError
from onnxopt.runtime import operator_schemas
from onnxopt.runtime.operator_schemas import OperatorSchema

# The releases that the tests run artifacts on, oldest first: the CPU package of each.
TRIED = ("1.21.1", "1.23.2", "1.26.0", "1.31.1", "1.32.0")
# Release: (newest IR version, newest opset) that it reads, and those after it up to the next.
_READS = {"1.21": (10, 22), "1.23": (11, 23), "1.24": (13, 25), "1.25": (13, 26), "1.32": (14, 28)}
# The library is built for the C API of this release; every later one runs it.
LIBRARY_NEEDS = "1.21"
# Operators whose CUDA kernel came later than their opset, and those that take bfloat16 there only from some release on.
_CUDA_SINCE = {("", "Attention"): "1.25", ("", "TensorScatter"): "1.25"}
_CUDA_BFLOAT16_SINCE = {
    ("", "Conv"): "1.24",
    ("", "AveragePool"): "1.24",
    ("", "ReduceMean"): "1.31",
    ("com.microsoft", "MultiHeadAttention"): "1.24",
    ("com.microsoft", "SkipLayerNormalization"): "1.24",
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): "1.24",
}


class Requirements(pydantic.BaseModel):
    """onnxruntime: the oldest release that opens the artifact. onnxruntime_cuda: the oldest that runs it on CUDA.

    because: what asks for these releases. cuda_driver: for each GPU architecture that kernels were compiled for, the
    CUDA version that the driver must support (what `nvidia-smi` prints as CUDA Version), e.g. {"sm_90": "12.0"}.
    operators: of ONNX Runtime alone, with what the model uses of each, as the release that made the artifact has it.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    onnxruntime: str
    onnxruntime_cuda: str
    because: tuple[str, ...]
    cuda_driver: dict[str, str]
    operators: tuple[OperatorSchema, ...] = ()  # schema 3 of the manifest lacks it


def of(model: ir.Model, *, library: bool, archs: Sequence[str]) -> Requirements:
    """What an artifact of `model` needs. library: whether it has one. archs: of its fatbin ("sm_90", ...)."""
    to_open = list(_to_open(model, library))
    on_cuda = [*to_open, *_on_cuda(model)]
    opens, runs = (max((release for release, _ in needs), key=parts) for needs in (to_open, on_cuda))
    return Requirements(
        onnxruntime=opens,
        onnxruntime_cuda=runs,
        because=tuple(dict.fromkeys(f"{r}: {reason}" for r, reason in on_cuda if r in (opens, runs))),
        cuda_driver={arch: cuda_of(arch) for arch in archs},
        operators=operator_schemas.used(model),
    )


def release(text: str | None) -> str:
    """The release that `--ort-min` names, as "1.25"; the oldest that the library runs on for None.

    UsageError where it is no release, or too old.
    """
    if text is None:
        return LIBRARY_NEEDS
    match = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", text)
    if match is None:
        raise UsageError(f"--ort-min {text}: expected a release of ONNX Runtime, such as 1.25")
    if parts(match[1]) < parts(LIBRARY_NEEDS):
        raise UsageError(f"--ort-min {text}: {LIBRARY_NEEDS} is the oldest that artifacts run on")
    return match[1]


def reads(version: str) -> tuple[int, int] | None:
    """The newest IR version and opset that a release reads; None for one that is newer than those tried."""
    if parts(version)[:2] > parts(TRIED[-1])[:2]:
        return None
    known = [pair for release, pair in _READS.items() if parts(release) <= parts(version)]
    return known[-1] if known else next(iter(_READS.values()))


def too_new(model: ir.Model, version: str) -> str | None:
    """Why a release does not read a model, for a message; None where its IR version and opset are not the reason."""
    newest = reads(version)
    if newest is None:
        return None
    needs = [(r, what) for r, what in _to_open(model, library=False) if parts(r) > parts(version)]
    if not needs:
        return None
    release, what = max(needs, key=lambda need: parts(need[0]))
    return f"{what} needs ONNX Runtime {release} or later, and this is {version}"


def check(model: ir.Model, oldest: str) -> None:
    """UsageError where this release of ONNX Runtime is too old to open an artifact of `model`."""
    needed = of(model, library=True, archs=())
    if parts(oldest) < parts(needed.onnxruntime):
        raise UsageError(
            f"--ort-min {oldest}: the model needs ONNX Runtime {needed.onnxruntime} ({'; '.join(needed.because)}); "
            f"export it with an older opset, or ask for {needed.onnxruntime}"
        )


def _to_open(model: ir.Model, library: bool) -> Iterator[tuple[str, str]]:
    """(release, what asks for it): the file format, the operators' opset, the library."""
    versions = (("IR version", model.ir_version), ("opset", model.opset_imports.get("", 0)))
    for index, (name, version) in enumerate(versions):
        yield next((r for r, reads in _READS.items() if version <= reads[index]), list(_READS)[-1]), f"{name} {version}"
    if library:
        yield LIBRARY_NEEDS, "the custom-op library"


def _on_cuda(model: ir.Model) -> Iterator[tuple[str, str]]:
    """(release, what asks for it): kernels of the CUDA provider. Bodies of fused functions do not count: ours run."""
    for node in model.graph.all_nodes():
        operator = ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        if release := _CUDA_SINCE.get(operator):
            yield release, f"{node.op_type} on CUDA"
        release = _CUDA_BFLOAT16_SINCE.get(operator)
        if release and any(v is not None and v.dtype == ir.DataType.BFLOAT16 for v in (*node.inputs, *node.outputs)):
            yield release, f"{node.op_type} of bfloat16 on CUDA"


def parts(version: str) -> tuple[int, ...]:
    """A version as numbers that compare: "1.31.1" is (1, 31, 1); what follows the numbers (rc1, .dev) is left out."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(p) for p in match[0].split(".")) if match else ()
