"""CUDA source of pointwise kernels, on top of cuda_kernels/pointwise/."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from onnxopt.fusion.region import Kernel
from onnxopt.kinds.pointwise import index_forms
from onnxopt.kinds.pointwise.access_modes import MAX_NEIGHBOURS, runs
from onnxopt.program.cuda_text import decomposed
from onnxopt.program.cuda_text.statements import C_TYPES, INDEX, PACKED, has_wide_floats, statements
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.indexing import Lookup
from onnxopt.program.pointwise import PointwiseVariant, Program

_PACKED_DTYPES = frozenset({"int8", "uint8"})


def lines(kernel: Kernel) -> list[str]:
    """The kernel's program as a struct, and one entry point per variant."""
    program = cast(Program, kernel.program)
    entries = [line for variant in kernel.variants for line in _entry(kernel, program, cast(PointwiseVariant, variant))]
    return [*_struct(kernel.name, program), "", *entries]


def _struct(name: str, program: Program) -> list[str]:
    """The struct: storage dtypes, index forms, and the program for one element and, if packed, four 8-bit elements."""
    packed = is_packed(program)
    inputs = ", ".join(DTYPES[d].cuda for d in program.accesses)
    outputs = ", ".join(_output(program, k) for k in range(len(program.outputs)))
    return [
        f"struct {name} {{",
        f"  using Inputs = List<{inputs}>;",
        f"  using Outputs = List<{outputs}>;",
        f"  static constexpr int kConditions = {program.conditions};",
        f"  static constexpr unsigned guards[] = {{{', '.join(map(str, _guards(program)))}}};",
        f"  static constexpr int leader[] = {{{', '.join(map(str, _leaders(program)))}}};",
        f"  static constexpr int runs[] = {{{', '.join(map(str, _runs(program)))}}};",
        *(f"  {line}" for line in _lookups(program)),
        f"  static constexpr bool kPacked = {str(packed).lower()};",
        *(f"  {line}" for line in _where(program)),
        *_apply(program),
        *(_apply(program, packed=True) if packed else []),
        "};",
    ]


def _apply(program: Program, *, packed: bool = False) -> list[str]:
    """The program as a function of one element, or of four packed ones."""
    kind = "Packed<{}>" if packed else "{}"
    parameters = _leaf_parameters(program, kind)
    parameters += [f"{kind.format(C_TYPES[DTYPES[d].compute])}& y{k}" for k, d in enumerate(program.outputs)]
    halves = [decomposed.half_of(program, k) for k in range(len(program.outputs))]
    stored = [half[0] if half else None for half in halves]
    body, results = statements(program, _leaf_names(program), has_wide_floats(program), packed=packed, stored=stored)
    body += [f"y{k} = {result};" for k, result in enumerate(results)]
    return [f"  __device__ static void apply({', '.join(parameters)}) {{", *(f"    {line}" for line in body), "  }"]


def _leaf_parameters(program: Program, kind: str = "{}") -> list[str]:
    """The leaves as parameters of a function. kind: of a type."""
    values = [f"{kind.format(C_TYPES[DTYPES[d].compute])} x{k}" for k, d in enumerate(program.accesses)]
    return values + [f"bool c{k}" for k in range(program.conditions)]


def _leaf_names(program: Program) -> list[str]:
    return [*(f"x{k}" for k in range(len(program.accesses))), *(f"c{k}" for k in range(program.conditions))]


def _output(program: Program, output: int) -> str:
    """The type of what an output stores."""
    half, stored = decomposed.half_of(program, output), DTYPES[program.outputs[output]].cuda
    return f"{stored}_of_half<{half[1]}>" if half else stored


def is_packed(program: Program) -> bool:
    """Whether all values have one 8-bit integer dtype and all primitives have a form for four elements at once."""
    dtypes = {*program.accesses, *program.outputs, *(i.dtype for i in program.code)}
    single = len(dtypes) == 1 and dtypes <= _PACKED_DTYPES
    return single and program.conditions == 0 and all(i.op in PACKED for i in program.code)


def _guards(program: Program) -> list[int]:
    """For every access, the conditions that must hold, as a bit mask."""
    if program.index is None:
        return [0] * len(program.inputs)
    return list(program.index.guards)


def _leaders(program: Program) -> Sequence[int]:
    """For every access, the access whose load it shares."""
    return range(len(program.inputs)) if program.index is None else program.index.leaders


def _runs(program: Program) -> list[int]:
    """For every access, the number of runs that neighbours alternate among, 0 where they do not alternate."""
    if program.index is None:
        return [0] * len(program.inputs)
    return [runs(a.terms, MAX_NEIGHBOURS) for a in program.index.accesses]


def _lookups(program: Program) -> list[str]:
    """For every access the leaves that its index depends on as a bit mask, 0 where it has none, and all indices.

    No line where no access has a lookup.
    """
    if program.index is None or not program.index.lookups:
        return []
    lookups = dict(program.index.lookups)
    masks = [sum(1 << leaf for leaf in _leaves(program, lookups.get(k))) for k in range(len(program.accesses))]
    body = [line for k, lookup in lookups.items() for line in _index(program, k, lookup)]
    return [
        f"static constexpr unsigned lookup[] = {{{', '.join(f'{mask}u' for mask in masks)}}};",
        "template <int kAccess>",
        f"__device__ static long long index({', '.join(_leaf_parameters(program))}) {{",
        *(f"  {line}" for line in body),
        "}",
    ]


def _leaves(program: Program, lookup: Lookup | None) -> frozenset[int]:
    return frozenset() if lookup is None else program.leaves_of([lookup.index])


def _index(program: Program, access: int, lookup: Lookup) -> list[str]:
    """The index of one access, from its leaves."""
    part = dataclasses.replace(
        program, outputs=(program.dtypes[lookup.index],), results=(lookup.index,), depends=((),), ranks=(0,)
    )
    body, results = statements(part, _leaf_names(program), True)
    return [f"if constexpr (kAccess == {access}) {{", *(f"  {line}" for line in body), f"  return {results[0]};", "}"]


def _where(program: Program) -> list[str]:
    """The members that tell where elements lie, where the program says that."""
    return index_forms.NONE if program.index is None else index_forms.of_kernel(program.index)


def _entry(kernel: Kernel, program: Program, variant: PointwiseVariant) -> list[str]:
    index = INDEX[variant.index]
    modes = "".join(f", '{mode}'" for mode in variant.modes)
    counts = f"{len(program.accesses)}, {len(program.outputs)}" + (f", {program.conditions}" * bool(program.conditions))
    params = f"{'Tiled' if variant.tile else ''}Params<{index}, {counts}>"
    function, size = "pointwise", str(variant.unroll)
    if variant.tile:
        shape = "w" if variant.whole else "s" if variant.slides else "c"
        function, size = "pointwise_tiled", f"{variant.tile}, {variant.tile_columns}, '{shape}'"
    return [
        f'extern "C" __global__ void __launch_bounds__({variant.threads})',
        f"{variant.symbol}(const __grid_constant__ {params} params) {{",
        f"  {function}<{kernel.name}, {index}, {variant.vector}, {size}, {variant.threads}{modes}>(params);",
        "}",
        "",
    ]
