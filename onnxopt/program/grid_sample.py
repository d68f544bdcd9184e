"""GridSample: samples of maps at computed positions, also weighed and summed over points, a core.

    y[n, c, q] = sum over levels and points p of weights[n, q, p] * map of level[n, c] at grid[n, q, p]

The core's x is the grid. The CUDA side is cuda_kernels/grid_sample/.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from onnxopt.program.core import FLOATS, Core, Transform, transform
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.fields import choice, flag, integer, integers, nested, operand, several
from onnxopt.program.hardware import ACCESS_BYTES
from onnxopt.program.schema import WHOLE_WARPS, Record, Rule, Variant, shared

MODES = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")
MAX_LEVELS = 8
PROLOGUE_FORMS, EPILOGUE_FORMS = ("channel", "scalar"), ("element", "channel", "scalar")


@dataclasses.dataclass(frozen=True)
class GridSampleSteps(Record):
    """How a tensor is read for sample b * heads + head: elements from one b to the next, from one head, output position
    and point to the next."""

    batch: int = integer(1)
    head: int = integer(0)
    position: int = integer(0)
    point: int = integer(0)


@dataclasses.dataclass(frozen=True)
class GridSampleLevel(Record):
    """One map of a view. data, grid: where the map and its part of the grid begin in what one b has. points: of each
    output position that are taken from this map."""

    data: int = integer(0)
    grid: int = integer(0)
    depth: int = integer(1)
    height: int = integer(1)
    width: int = integer(1)
    points: int = integer(1)


@dataclasses.dataclass(frozen=True)
class GridSampleView(Record):
    """Operands that are read where other operators stored them. N = b * heads samples of `channels` channels. size: of
    the grid without N and coordinates, the points of all levels last. batch, head, channel, pixel: elements of the data
    from one to the next. Coordinates of a point are neighbours. weights: begin with the first element."""

    heads: int = integer(1)
    channels: int = integer(1)
    size: tuple[int, ...] = integers(1, max_count=3)
    batch: int = integer(1)
    head: int = integer(0)
    channel: int = integer(0)
    pixel: int = integer(0)
    levels: tuple[GridSampleLevel, ...] = several(GridSampleLevel, 1, MAX_LEVELS)
    grid: GridSampleSteps = nested(GridSampleSteps)
    weights: GridSampleSteps | None = nested(GridSampleSteps, optional=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridSample(Core):
    """The meaning of a kernel. inputs, outputs: storage dtype names. data, x (the grid), weights: positions in inputs.

        data [N, C, *S], grid [N, *So, dims], weights [N, 1, *So], y [N, C, *So]

    S and So have `dims` dims. planes: whether data is stored so, else it is [N, *S, C]. view: how operands are stored
    where that differs; None for operands of these shapes. prologue: computes a coordinate from an element of the grid,
    in float32, which is not rounded. summed: over the last dim of So, which goes, or stays as 1 where it is kept.
    result_planes: whether y is stored so, else it is [N, *So, C], or [b, *So, heads * C] of a view. epilogue: computes
    the output from the sample or the sum, in float32.

    Modes, padding and align_corners are those of ONNX. A coordinate that is infinite, not a number or farther than 2^62
    pixels is the first edge of the map, as in ONNX Runtime 1.31's CPU kernel. A map has pixels.
    """

    KIND: ClassVar = "grid_sample"
    INPUTS: ClassVar = (2, 16)
    ABI_INPUTS: ClassVar = ("grid_sample/abi.h", "kGridSampleInputs")
    INPUT_DTYPES: ClassVar = FLOATS
    OUTPUT_DTYPES: ClassVar = FLOATS
    RULES: ClassVar = (
        Rule("mode", "mode != 'cubic' or dims == 2", "is cubic of three dims"),
        Rule("weights", "weights is None or summed", "are there without a sum"),
        Rule("kept", "not kept or (summed and result_planes)", "is set without a sum, or in another layout"),
        Rule("planes", "planes or view is None", "is not set beside a view"),
        Rule("view", "view is None or len(view.size) == dims", "has another number of dims"),
        Rule("view", "view is None or len(view.levels) == 1 or summed", "has several levels without a sum"),
        Rule("view", "view is None or (view.weights is None) == (weights is None)", "has steps of no weights, or none"),
    )
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dims: int = integer(2, 3, default=2)
    mode: str = choice("GridSampleMode", MODES)
    padding: str = choice("GridSamplePadding", PADDINGS)
    align_corners: bool = flag(default=False)
    planes: bool = flag(default=True)
    result_planes: bool = flag(default=True)
    summed: bool = flag(default=False)
    kept: bool = flag(default=False)
    data: int = operand(default=0)
    x: int = operand(default=1)
    weights: int | None = operand(optional=True)
    view: GridSampleView | None = nested(GridSampleView, optional=True)
    prologue: Transform | None = transform("x", "float32", PROLOGUE_FORMS, optional=True)
    epilogue: Transform = transform("float32", "outputs", EPILOGUE_FORMS)

    @property
    @shared
    def dtype(self) -> str:
        """Of the data."""
        return self.inputs[self.data]

    @property
    @shared
    def output(self) -> str:
        return self.outputs[0]

    @property
    def reads_vectors(self) -> bool:
        """Whether neighbouring channels of the data are neighbours in memory."""
        return not self.planes if self.view is None else self.view.channel == 1 or self.view.channels == 1

    @property
    def taps(self) -> int:
        """Elements of the data that are read for one sample of a channel."""
        of_axis = {"nearest": 1, "linear": 2, "cubic": 4}[self.mode]
        return int(of_axis**self.dims)

    @property
    def widest(self) -> int:
        """The most channels of a thread."""
        return ACCESS_BYTES // max(DTYPES[d].size for d in (self.dtype, self.output))


@dataclasses.dataclass(frozen=True)
class GridSampleVariant(Variant):
    """A thread computes `vector` channels of one output position."""

    KERNEL = GridSample
    RULES = (
        WHOLE_WARPS,
        Rule("index", "index == 32", "is not 32"),
        Rule(
            "vector",
            f"vector * max(size(kernel.dtype), size(kernel.output)) <= {ACCESS_BYTES}",
            "is wider than one access",
        ),
    )
