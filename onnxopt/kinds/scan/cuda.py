"""CUDA source of scan kernels, on top of cuda_kernels/scan/."""

from __future__ import annotations

from typing import cast

from onnxopt.fusion.region import Kernel
from onnxopt.kinds.rowwise.entry_points import RowVariant
from onnxopt.program.cuda_text.statements import C_TYPES, INDEX, is_exact, statements
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.pointwise import Program
from onnxopt.program.scan import ScanProgram

HEADER = "scan/scan.cuh"


def lines(kernel: Kernel) -> list[str]:
    """The kernel's program as a struct, and one entry point per variant."""
    program = cast(ScanProgram, kernel.program)
    entries = [line for v in kernel.variants for line in _entry(kernel.name, program, cast(RowVariant, v))]
    return [*_struct(kernel.name, program), "", *entries]


def _struct(name: str, program: ScanProgram) -> list[str]:
    inputs = ", ".join(f"{C_TYPES[DTYPES[d].compute]} x{k}" for k, d in enumerate(program.inputs))
    outputs = ", ".join(f"{C_TYPES[DTYPES[d].compute]}& y{k}" for k, d in enumerate(program.outputs))
    names = [f"x{k}" for k in range(len(program.inputs))]
    exact = is_exact(program.element) or any(DTYPES[d].size > 2 for d in program.outputs)
    summed, (value,) = statements(program.element, names, exact)
    stored, results = statements(program.output, [*names, "row.total"], exact)
    stored += [f"y{k} = {result};" for k, result in enumerate(results)]
    total = C_TYPES[program.total]
    body = [
        f"using Inputs = List<{', '.join(DTYPES[d].cuda for d in program.inputs)}>;",
        f"using Outputs = List<{', '.join(DTYPES[d].cuda for d in program.outputs)}>;",
        "using Forms = AnyTerms;",
        f"static constexpr unsigned guards[] = {{{', '.join('0' for _ in program.inputs)}}};",
        f"static constexpr unsigned kRowInputs = {hex(sum(1 << k for k, r in enumerate(program.rows) if r))}u;",
        "static constexpr unsigned kRowOutputs = 0u;",
        f"static constexpr bool kExclusive = {str(program.exclusive).lower()};",
        f"static constexpr bool kReverse = {str(program.reverse).lower()};",
        f"struct Row {{ {total} total; }};",
        "struct Element {",
        f"  using Partial = {total};",
        f"  static constexpr unsigned kReads = {hex(_reads(program.element))}u;",
        f"  __device__ static void accumulate({total}& value, const Row&, {inputs}) {{",
        *(f"    {line}" for line in (*summed, f"value = {value};")),
        "  }",
        "};",
        f"__device__ static void output(const Row& row, {inputs}, {outputs}) {{",
        *(f"  {line}" for line in stored),
        "}",
    ]
    return [f"struct {name} {{", *(f"  {line}" for line in body), "};"]


def _reads(program: Program) -> int:
    """The inputs that a program reads, as a bit mask."""
    read = {a for i in program.code for a in i.args} | set(program.results)
    return sum(1 << k for k in range(len(program.inputs)) if k in read)


def _entry(name: str, program: ScanProgram, variant: RowVariant) -> list[str]:
    index = INDEX[variant.index]
    modes = "".join(f", '{mode}'" for mode in variant.modes)
    block = "SplitParams" if variant.layout == "split" else "RowParams"
    size = f"{variant.vector}, {variant.unroll}"
    held = f"{size}, {variant.lanes}, {variant.threads}"
    function, arguments = {
        "held": ("scan_held", f"{held}, false"),
        "ragged": ("scan_held", f"{held}, true"),
        "looped": ("scan_looped", f"{size}, {variant.threads}"),
        "split": ("scan_split", f"{size}, {variant.threads}, {variant.launch}"),
        "strided": ("scan_strided", f"{size}, {variant.threads}"),
    }[variant.layout]
    return [
        f'extern "C" __global__ void __launch_bounds__({variant.threads})',
        f"{variant.symbol}(const __grid_constant__ {block}<{index}, {len(program.inputs)}, {len(program.outputs)}> "
        "params) {",
        f"  {function}<{name}, {index}, {arguments}{modes}>(params);",
        "}",
        "",
    ]
