"""CUDA source of depthwise kernels, on top of cuda_kernels/depthwise/."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from onnxopt.fusion.region import Kernel
from onnxopt.kinds.depthwise.tiles import FIRST_BANDED, shared_bytes
from onnxopt.program.core import Transform
from onnxopt.program.cuda_text.cores import channel_reads, data, element_read, static_window
from onnxopt.program.depthwise import Depthwise, DepthwiseVariant, Expansion
from onnxopt.program.dtypes import DTYPES, to_ir

HEADER = "depthwise/depthwise.cuh"
_SELECTIONS = frozenset({"const", "min", "max", "abs", "neg"})


def lines(kernel: Kernel) -> list[str]:
    """The kernel's programs as a struct, and one entry point per variant."""
    variants = [cast(DepthwiseVariant, v) for v in kernel.variants]
    return lines_of(kernel.name, cast(Depthwise, kernel.program), variants)


def lines_of(name: str, meaning: Depthwise, variants: Sequence[DepthwiseVariant], sums: bool = False) -> list[str]:
    """The same for one meaning. sums: whether each tile also leaves the sums of its results."""
    entries = [line for variant in variants for line in _entry(name, meaning, variant)]
    return [*_struct(name, meaning, sums), "", *entries]


def _struct(name: str, meaning: Depthwise, sums: bool) -> list[str]:
    body = [
        f"static constexpr bool kSums = {str(sums).lower()};",
        f"using Stored = {DTYPES[meaning.dtype].cuda};",
        f"using Result = {DTYPES[meaning.outputs[0]].cuda};",
        f"using W = {static_window(meaning.window)};",
        f"static constexpr int kChannels = {meaning.channels};",
        f"static constexpr int kHalves = {meaning.filters // meaning.channels};",
        f"static constexpr int kX = {meaning.x};",
        f"static constexpr int kWeight = {meaning.weight};",
        *_expansion(meaning),
        *_before(meaning),
        *_after(meaning),
    ]
    return [f"struct {name} {{", *(f"  {line}" for line in body), "};"]


def _expansion(meaning: Depthwise) -> list[str]:
    of = meaning.expansion
    if of is None:
        return []
    start = "0.0f" if of.bias is None else f"widen({data(meaning.inputs, of.bias)}[c])"
    body = [
        f"static constexpr int kWeight = {of.weight};",
        f"static constexpr int kInputs = {of.channels};",
        f"__device__ static float start(const DepthwiseParams& {'p' if of.bias is not None else ''}, int c) {{",
        f"  return {start};",
        "}",
    ]
    return ["struct Expansion {", *(f"  {line}" for line in body), "};"]


def _before(meaning: Depthwise) -> list[str]:
    part = meaning.prologue
    if part is None:
        apply = ["__device__ static float apply(float x0, const Of&) { return x0; }"]
    else:
        apply = [
            "__device__ static float apply(float x0, const Of& of) {",
            *(f"  {line}" for line in element_read(part, meaning.dtype)),
            "}",
        ]
    body = [
        f"static constexpr bool kNothing = {str(part is None).lower()};",
        f"static constexpr bool kStored = {str(part is None or _selects(part, meaning)).lower()};",
        *_channels(meaning, part, []),
        *apply,
    ]
    return ["struct Before {", *(f"  {line}" for line in body), "};"]


def _selects(part: Transform, meaning: Depthwise) -> bool:
    """Whether a part's results are among its operands, as of a Clip: the graph stores them without rounding."""
    operands = {meaning.dtype, *(meaning.inputs[read.input] for read in part.reads)}
    stored = to_ir(meaning.dtype).numpy()
    constants = [i.value for i in part.program.code if i.op == "const"]
    are_exact = all(isinstance(c, float) and float(np.asarray(c, stored)) == c for c in constants)
    return operands == {meaning.dtype} and are_exact and all(i.op in _SELECTIONS for i in part.program.code)


def _after(meaning: Depthwise) -> list[str]:
    part = meaning.epilogue
    near = [(k, r) for k, r in enumerate(part.reads, 1) if r.form == "element"]
    fields = [f"Vector<{DTYPES[meaning.inputs[r.input]].cuda}, kVector> x{k};" for k, r in near]
    loads = [
        f"load_vector<{_type(meaning, r.input)}, kVector>({data(meaning.inputs, r.input)} + at)" for _, r in near
    ]  # fmt: skip
    start = "0.0f" if meaning.bias is None else f"widen({data(meaning.inputs, meaning.bias)}[c])"
    half = start.replace("[c]", "[kChannels + c]")
    sums = "float x0, float other" if meaning.gated else "float x0"
    body = [
        f"static constexpr bool kNear = {str(bool(near)).lower()};",
        "template <int kVector>",
        f"struct Near {{ {' '.join(fields)} }};",
        *_channels(meaning, part, [("start", start), ("half_start", half if meaning.gated else "0.0f")]),
        "template <int kVector>",
        "__device__ static Near<kVector> load(const DepthwiseParams& p, int64_t at) {",
        f"  return {{{', '.join(loads)}}};",
        "}",
        "template <typename N>",
        f"__device__ static float apply({sums}, const Of& of, const N& near, int v) {{",
        *(f"  {line}" for line in element_read(part, meaning.dtype)),
        "}",
    ]
    return ["struct After {", *(f"  {line}" for line in body), "};"]


def _channels(meaning: Depthwise, part: Transform | None, first: Sequence[tuple[str, str]]) -> list[str]:
    reads = part.reads if part is not None else ()
    return channel_reads([(f"x{k}", read) for k, read in enumerate(reads, 1)], first, meaning.inputs, "DepthwiseParams")


def _type(meaning: Depthwise, position: int) -> str:
    return DTYPES[meaning.inputs[position]].cuda


def _entry(name: str, meaning: Depthwise, variant: DepthwiseVariant) -> list[str]:
    bounds = f"{variant.threads}, {variant.blocks}" if variant.blocks else f"{variant.threads}"
    opening = [
        f'extern "C" __global__ void __launch_bounds__({bounds})',
        f"{variant.symbol}(const __grid_constant__ DepthwiseParams p) {{",
    ]
    if meaning.expansion is not None:
        return [*opening, *_expanded_text(name, meaning.expansion, variant), "}", ""]
    if variant.layout != "banded":
        down = f"{variant.down}, " if variant.layout == "held" else ""
        size = f"{variant.vector}, {down}{variant.across}, {variant.threads}"
        return [*opening, f"  {variant.layout.capitalize()}Window<{name}, {name}::W, {size}>::run(p);", "}", ""]
    size = f"{variant.across}, {variant.down}, {variant.chunks}, {variant.warps}, {variant.images}, {variant.pieces}"
    shared = shared_bytes(meaning.window, variant)
    return [
        *opening,
        f"#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= {FIRST_BANDED}0",
        f"  using Tile = BandedTile<{name}::W, {size}>;",
        f'  static_assert(Tile::kSharedBytes == {shared}, "as the host was told");',
        f"  Banded<{name}, {name}::W, Tile>::run(p);",
        "#endif",
        "}",
        "",
    ]


def _expanded_text(name: str, expansion: Expansion, variant: DepthwiseVariant) -> list[str]:
    channels = 8 * variant.chunks
    size = f"{variant.down}, {variant.across}, {variant.strip}, {variant.vector}, {channels}, {variant.warps}"
    return [
        f"  using Tile = ExpandedTile<{name}::W, {size}, {expansion.channels}>;",
        f'  static_assert(Tile::kSharedBytes == {variant.shared}, "as the host was told");',
        f"  Expanded<{name}, {name}::W, Tile>::run(p);",
    ]
