"""What cores with a prologue and an epilogue have in common as CUDA text: operands, windows, what transforms read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxopt.program.core import HALF, Transform, TransformRead
from onnxopt.program.cuda_text.statements import is_exact, statements
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.pointwise import Program
from onnxopt.program.window import Window


def static_window(window: Window) -> str:
    """The type of a window."""
    numbers = (*window.kernel, *window.strides, *window.dilations)
    plane, depth = f"StaticWindow<{', '.join(map(str, numbers))}>", window.depth
    return plane if depth is None else f"StaticVolume<{plane}, {depth.kernel}, {depth.stride}, {depth.dilation}>"


def data(dtypes: Sequence[str], position: int) -> str:
    """Where an input's elements begin. dtypes: of the kernel's inputs."""
    return f"static_cast<const {DTYPES[dtypes[position]].cuda}*>(p.input[{position}])"


def function_body(
    program: Program, operands: list[str], inputs: tuple[str, ...], outputs: tuple[str, ...] = ()
) -> list[str]:
    """The body of a function that returns a program's one result. inputs, outputs: the dtypes in which the graph stores
    what the kernel computes in between, where they differ from the program's: no more digits are of use."""
    stored = dataclasses.replace(program, inputs=inputs, outputs=outputs or program.outputs)
    body, (result,) = statements(program, operands, is_exact(stored))
    return [*body, f"return {result};"]


def channel_reads(
    reads: Sequence[tuple[str, TransformRead]], first: Sequence[tuple[str, str]], dtypes: Sequence[str], params: str
) -> list[str]:
    """What a program needs of a channel: the struct Of, and the function that reads it from the struct `params`.

    reads: names, and what they read. first: further fields and their values. dtypes: of the kernel's inputs.
    """
    values = list(first)
    for name, read in reads:
        if read.form not in ("element", HALF):
            values.append((name, f"widen({data(dtypes, read.input)}[{'c' if read.form == 'channel' else '0'}])"))
    return [
        f"struct Of {{ {' '.join(f'float {name};' for name, _ in values)} }};",
        f"__device__ static Of channel(const {params}& p, int c) {{",
        f"  return {{{', '.join(text for _, text in values)}}};",
        "}",
    ]


def element_read(part: Transform, dtype: str) -> list[str]:
    """The body of a function that applies a part to one element x0. dtype: in which that is stored in the graph,
    and what else the operator computes."""
    names = ["x0"]
    for k, read in enumerate(part.reads, 1):
        near = {"element": f"widen(near.x{k}.at[v])", HALF: "other"}
        names.append(near.get(read.form, f"of.x{k}"))
    reads = zip(part.reads, part.program.inputs[1:], strict=True)
    return function_body(part.program, names, (dtype, *(dtype if r.form == HALF else stored for r, stored in reads)))
