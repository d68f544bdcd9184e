"""CUDA source of rowwise kernels, on top of cuda_kernels/rowwise/."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

from onnxopt.fusion.region import Kernel
from onnxopt.kinds.pointwise import index_forms
from onnxopt.kinds.rowwise.entry_points import SPLIT, RowVariant
from onnxopt.kinds.rowwise.exponential_sums import exponential_sums
from onnxopt.program.cuda_text.statements import C_TYPES, INDEX, seen_by_casts, statements
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.extents import product
from onnxopt.program.indexing import Condition
from onnxopt.program.pointwise import Instruction
from onnxopt.program.rowwise import ROW_INPUTS, Piece, RowProgram, Stage, is_float

HEADER = "rowwise/rowwise.cuh"
_WORD = 4  # bytes; threads exchange partial results word by word
_MERGE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
_ALL = "0x7fffffff7fffffff"  # in 32 bits as in 64, more than any index, and less than one below `low` wraps around to
_HAS_CLUSTERS = "#if __CUDA_ARCH__ >= 900"  # the host never launches a cluster kernel on older GPUs


def lines(kernel: Kernel) -> list[str]:
    """The kernel's stages as structs, and one entry point per variant."""
    program = cast(RowProgram, kernel.program)
    entries = [line for v in kernel.variants for line in _entry(kernel.name, program, cast(RowVariant, v))]
    return [*_struct(kernel.name, program), "", *entries]


def is_exact(program: RowProgram) -> bool:
    """Whether the error of approximate functions would be visible, wherever they are.

    It is where some float has more than 16 bits, and where a value of a row is converted to an integer without being
    rounded to 16 bits first.
    """
    floats = [DTYPES[d] for d in (*program.inputs, *program.outputs) if is_float(d)]
    seen = (p.reads[v] for p in program.pieces for v in seen_by_casts(p.program) if v < len(p.reads))
    return any(slot >= len(program.leaves) for slot in seen) or any(d.size > 2 for d in floats)


class _Text:
    """The parts of one struct."""

    def __init__(self, program: RowProgram):
        self.program = program
        self.exact = is_exact(program)
        self._first = len(program.leaves)
        self._sums = exponential_sums(program)

    def slot(self, k: int) -> str:
        """The value in slot k as an expression, valid in every function of the struct."""
        if k < self._first:
            return f"x{k}"
        k -= self._first
        return (
            ("row.length", "row.wide_length", "row.position")[k]
            if k < len(ROW_INPUTS)
            else f"row.r{k - len(ROW_INPUTS)}"
        )

    def inputs(self) -> str:
        return ", ".join(f"{C_TYPES[DTYPES[d].compute]} x{k}" for k, d in enumerate(self.program.leaves))

    def outputs(self) -> str:
        return ", ".join(f"{C_TYPES[DTYPES[d].compute]}& y{k}" for k, d in enumerate(self.program.outputs))

    def statements(self, piece: Piece, exact: bool) -> tuple[list[str], list[str]]:
        sums = {n for n, k in enumerate(piece.reads) if k in self._sums}
        return statements(piece.program, [self.slot(k) for k in piece.reads], exact, sums)

    def row_statements(self, piece: Piece) -> tuple[list[str], list[str]]:
        """The statements of a row piece, without divisions that branch: all lanes wait for the values of a row."""
        program = piece.program
        first = len(program.inputs)
        code = list(program.code)

        def definition(k: int) -> Instruction | None:
            return code[k - first] if k >= first else None

        for k, step in enumerate(code):
            if step.op != "div" or step.dtype != "float32":
                continue
            above, below = (definition(a) for a in step.args)
            if step.args[1] < first and piece.reads[step.args[1]] == self._first:
                code[k] = dataclasses.replace(step, op="div_by_count")
            elif above and above.op == "const" and above.value == 1.0 and below and below.op == "sqrt":
                code[k] = dataclasses.replace(step, op="inverse_sqrt", args=below.args)
        return self.statements(dataclasses.replace(piece, program=dataclasses.replace(program, code=tuple(code))), True)

    def reads(self, piece: Piece | None) -> str:
        """The leaves that a piece reads, as a bit mask."""
        return hex(sum(1 << k for k in (piece.reads if piece else ()) if k < self._first)) + "u"

    def row(self) -> list[str]:
        values = self.program.slots[self._first + len(ROW_INPUTS) :]
        fields = [f"  {C_TYPES[d]} r{k};" for k, d in enumerate(values)]
        return ["struct Row {", "  float length;", "  double wide_length;", "  int64_t position;", *fields, "};"]

    def stage(self, k: int, stage: Stage, first: int) -> list[str]:
        """The struct of stage k. first: the row value that holds the stage's first reduced value."""
        dtypes = [C_TYPES[d] for d in stage.element.program.outputs]
        alignment = max(_WORD, *(DTYPES[d].size for d in stage.element.program.outputs))
        pairs = list(zip(dtypes, stage.reductions, strict=True))
        body, results = self.statements(stage.element, self.exact)
        merged = [_MERGE[r] for r in stage.reductions]
        finish = [f"row.r{first + n} = partial.p{n};" for n in range(len(pairs))]
        if stage.row is not None:
            row_body, values = self.row_statements(stage.row)
            finish += [*row_body, *(f"row.r{first + len(pairs) + n} = {v};" for n, v in enumerate(values))]
        return [
            f"struct Stage{k} {{",
            f"  static constexpr unsigned kReads = {self.reads(stage.element)};",
            f"  struct alignas({alignment}) Partial {{",
            *(f"    {dtype} p{n};" for n, dtype in enumerate(dtypes)),
            "  };",
            "  __device__ static Partial identity() {",
            f"    return {{{', '.join(f'Identity<{dtype}>::{r}()' for dtype, r in pairs)}}};",
            "  }",
            "  __device__ static void merge(Partial& p, const Partial& q) {",
            *(f"    p.p{n} = {f}(p.p{n}, q.p{n});" for n, f in enumerate(merged)),
            "  }",
            "  __device__ static Partial exchange(const Partial& p, int mask) {",
            f"    return {{{', '.join(f'shuffle_xor(p.p{n}, mask)' for n in range(len(pairs)))}}};",
            "  }",
            f"  __device__ static void accumulate(Partial& partial, const Row& row, {self.inputs()}) {{",
            *(f"    {line}" for line in body),
            *(f"    partial.p{n} = {f}(partial.p{n}, {results[n]});" for n, f in enumerate(merged)),
            "  }",
            f"  __device__ static void finish(Row& row, const Partial& partial, {self.inputs()}) {{",
            *(f"    {line}" for line in finish),
            "  }",
            "};",
        ]

    def output(self, function: str, piece: Piece | None, stored: Sequence[int], exact: bool) -> list[str]:
        """The function that computes the outputs `stored`."""
        body, results = self.statements(piece, exact) if piece else ([], [])
        body += [f"y{k} = {value};" for k, value in zip(stored, results, strict=True)]
        return [
            f"__device__ static void {function}(const Row& row, {self.inputs()}, {self.outputs()}) {{",
            *(f"  {line}" for line in body),
            "}",
        ]


def _struct(name: str, program: RowProgram) -> list[str]:
    text = _Text(program)
    stages: list[str] = []
    first = 0
    for k, stage in enumerate(program.stages):
        stages += text.stage(k, stage, first)
        first += len(stage.reductions) + (len(stage.row.program.outputs) if stage.row else 0)
    row_inputs = sum(1 << k for k, o in enumerate(program.operands) if o.row)
    row_outputs = sum(1 << k for k in program.stored("row"))
    body = [
        f"using Inputs = List<{', '.join(DTYPES[d].cuda for d in program.leaves)}>;",
        f"using Outputs = List<{', '.join(DTYPES[d].cuda for d in program.outputs)}>;",
        *_index(program),
        f"static constexpr unsigned kRowInputs = {hex(row_inputs)}u;",
        f"static constexpr unsigned kRowOutputs = {hex(row_outputs)}u;",
        f"static constexpr bool kStoresElements = {'true' if program.output else 'false'};",
        f"static constexpr unsigned kOutputReads = {text.reads(program.output)};",
        f"static constexpr unsigned kEarlyOutputs = {hex(_early_outputs(program))}u;",
        *text.row(),
        *stages,
        f"using Stages = List<{', '.join(f'Stage{k}' for k in range(len(program.stages)))}>;",
        *text.output("output", program.output, program.stored("element"), text.exact),
        *text.output("row_output", program.row_output, program.stored("row"), True),
    ]
    return [f"struct {name} {{", *(f"  {line}" for line in body), "};"]


def _early_outputs(program: RowProgram) -> int:
    """The element outputs that read no reduced value and only inputs that the first stage reads, as a bit mask."""
    if program.output is None:
        return 0
    piece = program.output
    leaves_read = {k for k in program.stages[0].element.reads if k < len(program.leaves)}
    first = len(piece.reads)
    fits = [k in leaves_read for k in piece.reads]
    for step in piece.program.code:
        fits.append(all(fits[a] for a in step.args))
    stored = zip(program.stored("element"), piece.program.results, strict=True)
    return sum(1 << k for k, result in stored if fits[result] and result >= first)


def _index(program: RowProgram) -> list[str]:
    """The conditions that guard each input, the range of each condition, and the index forms."""
    lines = [f"static constexpr unsigned guards[] = {{{', '.join(map(str, program.guards))}}};"]
    if program.index is None:
        return [*lines, "using Forms = AnyTerms;"]
    lines += index_forms.of_rows(program.index, product(program.domain))
    conditions = program.index.conditions
    if conditions:
        lows = ", ".join(str((c.low - c.offset).number) for c in conditions)
        lines.append(f"static constexpr long long low[] = {{{lows}}};")
        extents = ", ".join(map(_extent, conditions))
        lines.append(f"static constexpr long long extent[] = {{{extents}}};")
    return lines


def _extent(condition: Condition) -> str:
    """How many numbers from `low` on a condition allows, all where it has no upper bound that a row reaches."""
    number = (condition.high - condition.low).number
    return _ALL if number is None else str(number)


def _entry(name: str, program: RowProgram, variant: RowVariant) -> list[str]:
    index = INDEX[variant.index]
    modes = "".join(f", '{mode}'" for mode in variant.modes)
    block = "SplitParams" if variant.layout in SPLIT else "RowParams"
    params = f"{block}<{index}, {len(program.leaves)}, {len(program.outputs)}>"
    size = f"{variant.vector}, {variant.unroll}"
    held = f"{size}, {variant.lanes}, {variant.threads}, {variant.columns}"
    piped = f"{size}, {variant.threads}, {variant.cluster}, {variant.columns}, {hex(variant.fetched)}u"
    arguments = {
        "held": held,
        "ragged": held,
        "piped": piped,
        "ring": f"{piped}, {variant.depth}",
        "looped": f"{size}, {variant.threads}, {variant.cluster}",
        "split": f"{size}, {variant.threads}, {variant.launch}",
        "split_strided": f"{variant.vector}, {variant.lanes}, {variant.threads}, {variant.launch}",
        "strided": f"{size}, {variant.lanes}, {variant.threads}",
    }[variant.layout]
    call = f"  {variant.layout}<{name}, {index}, {arguments}{modes}>(params);"
    resident = f", {variant.resident}" if variant.resident else ""
    bounds = f"__launch_bounds__({variant.threads}{resident})"
    if variant.cluster == 1:
        return [
            f'extern "C" __global__ void {bounds}',
            f"{variant.symbol}(const __grid_constant__ {params} params) {{",
            call,
            "}",
            "",
        ]
    return [
        f"{_HAS_CLUSTERS}",
        f'extern "C" __global__ void __cluster_dims__({variant.cluster}, 1, 1) {bounds}',
        f"{variant.symbol}(const __grid_constant__ {params} params) {{",
        call,
        "}",
        "#else",
        f'extern "C" __global__ void {variant.symbol}(const __grid_constant__ {params}) {{}}',
        "#endif",
        "",
    ]
