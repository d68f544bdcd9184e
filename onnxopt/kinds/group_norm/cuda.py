"""CUDA source of group norms, on top of cuda_kernels/group_norm/."""

from __future__ import annotations

from typing import cast

from onnxopt.costs.group_norm import numbers
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.group_norm import affine_prefix
from onnxopt.program.core import Transform, TransformRead
from onnxopt.program.cuda_text.cores import data, function_body
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.group_norm import GroupNorm, GroupNormVariant

HEADER = "group_norm/group_norm.cuh"
_PASSES = {("held", 0): "kWhole", ("looped", 0): "kWhole", ("split", 0): "kMoments", ("split", 1): "kApply"}


def lines(kernel: Kernel) -> list[str]:
    """The kernel's programs as a struct, and one entry point per variant."""
    meaning = cast(GroupNorm, kernel.program)
    entries = [line for v in kernel.variants for line in _entry(kernel.name, cast(GroupNormVariant, v))]
    return [*_struct(kernel.name, meaning), "", *entries]


def _struct(name: str, meaning: GroupNorm) -> list[str]:
    body = [
        f"using Stored = {DTYPES[meaning.dtype].cuda};",
        f"using Result = {DTYPES[meaning.outputs[0]].cuda};",
        f"static constexpr int kX = {meaning.x};",
        f"static constexpr int kChannels = {meaning.channels};",
        f"static constexpr int kGroup = {meaning.channels // meaning.groups};",
        f"static constexpr float kEpsilon = {float(meaning.epsilon)!r}f;",
        *_program("Before", meaning, meaning.prologue),
        *_program("After", meaning, meaning.epilogue),
    ]
    return [f"struct {name} {{", *(f"  {line}" for line in body), "};"]


def _program(struct: str, meaning: GroupNorm, part: Transform | None) -> list[str]:
    reads = list(enumerate(part.reads if part is not None else (), 1))
    of = [(k, r) for k, r in reads if r.form != "element"]
    near = [(k, r) for k, r in reads if r.form == "element"]
    is_epilogue = struct == "After"
    body = [
        "template <int kVector>",
        f"struct Of {{ {_fields(meaning, of)} }};",
        "template <int kVector>",
        "__device__ static Of<kVector> of(const GroupNormParams& p, int64_t sample, int c) {",
        *(f"  {line}" for k, r in of for line in _load(meaning, k, r)),
        f"  return {{{', '.join(f'x{k}' for k, _ in of)}}};",
        "}",
    ]
    if is_epilogue:
        loads = ", ".join(
            f"load_vector<{_type(meaning, r)}, kVector>({data(meaning.inputs, r.input)} + i)" for _, r in near
        )
        body += [
            "template <int kVector>",
            f"struct Near {{ {_fields(meaning, near)} }};",
            "template <int kVector>",
            "__device__ static Near<kVector> load(const GroupNormParams& p, int64_t i) {",
            f"  return {{{loads}}};",
            "}",
        ]
    if is_epilogue and part is not None:
        steps, part = affine_prefix.split(part)
        body += [
            "template <typename O>",
            "__device__ static void lead(float& scale, float& shift, const O& of, int j) {",
            *(f"  {line}" for op, k in steps for line in _leading(op, f"widen(of.x{k}.at[j])")),
            "}",
        ]
    template, operand = ("typename O, typename N", ", const N& near") if is_epilogue else ("typename O", "")
    body += [
        f"template <{template}>",
        f"__device__ static float apply(float x0, const O& of{operand}, int j) {{",
        *(f"  {line}" for line in _statements(part, meaning)),
        "}",
    ]
    return [f"struct {struct} {{", *(f"  {line}" for line in body), "};"]


def _leading(op: str, operand: str) -> list[str]:
    """Statements that join a step to x * scale + shift."""
    if op == "mul":
        return [f"scale *= {operand};", f"shift *= {operand};"]
    return [f"shift {'+' if op == 'add' else '-'}= {operand};"]


def _fields(meaning: GroupNorm, reads: list[tuple[int, TransformRead]]) -> str:
    return " ".join(f"Vector<{_type(meaning, r)}, kVector> x{k};" for k, r in reads)


def _load(meaning: GroupNorm, k: int, read: TransformRead) -> list[str]:
    """Statements that declare x<k>, what the thread's channels from c on read."""
    address, dtype = data(meaning.inputs, read.input), _type(meaning, read)
    if read.form == "scalar":
        return [f"const auto x{k} = splat<{dtype}, kVector>(*{address});"]
    if read.form == "group":
        return [
            f"Vector<{dtype}, kVector> x{k};",
            "#pragma unroll",
            f"for (int j = 0; j < kVector; ++j) x{k}.at[j] = {address}[(c + j) / kGroup];",
        ]
    sample_index = f"sample * {read.row} + {read.first} + c" if read.row else "sample * kChannels + c"
    first = "c" if read.form == "channel" else sample_index
    return [f"const auto x{k} = load_vector<{dtype}, kVector>({address} + {first});"]


def _type(meaning: GroupNorm, read: TransformRead) -> str:
    return DTYPES[meaning.inputs[read.input]].cuda


def _statements(part: Transform | None, meaning: GroupNorm) -> list[str]:
    """The body of a function that applies a part to one element x0."""
    if part is None:
        return ["return x0;"]
    names = ["x0"]
    for k, read in enumerate(part.reads, 1):
        names.append(f"widen({'near' if read.form == 'element' else 'of'}.x{k}.at[j])")
    inputs = (meaning.dtype, *part.program.inputs[1:])
    return function_body(part.program, names, inputs, meaning.outputs)


def _entry(name: str, variant: GroupNormVariant) -> list[str]:
    pass_name = _PASSES[variant.layout, variant.launch]
    blocks = _resident(variant)
    size = f"{variant.vector}, {variant.columns}, {variant.threads}, {variant.held}, {variant.cluster}, {blocks}"
    block = f"GroupNormBlock<{name}, {size}, GroupNormPass::{pass_name}>"
    bounds = f"__launch_bounds__({variant.threads}, {blocks})"
    text = [
        f"{variant.symbol}(const __grid_constant__ GroupNormParams p) {{",
        f"  {block}(p).run();",
        "}",
    ]
    if variant.cluster == 1:
        return [f'extern "C" __global__ void {bounds}', *text, ""]
    return [
        "#if __CUDA_ARCH__ >= 900",  # the host never launches a cluster kernel on older GPUs
        f'extern "C" __global__ void __cluster_dims__({variant.cluster}, 1, 1) {bounds}',
        *text,
        "#else",
        f'extern "C" __global__ void {variant.symbol}(const __grid_constant__ GroupNormParams) {{}}',
        "#endif",
        "",
    ]


def _resident(variant: GroupNormVariant) -> int:
    """Blocks of a multiprocessor that registers suffice for."""
    if variant.layout == "split":  # as many as are launched (custom_ops/cuda/group_norm.cc)
        return max(1, numbers().split_threads // variant.threads)
    return 1 if variant.cluster == 1 else numbers().resident_blocks(variant.threads)
