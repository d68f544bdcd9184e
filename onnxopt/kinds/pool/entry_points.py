"""Entry points of pools, and their CUDA text on top of cuda_kernels/pool/.

A thread computes a tile of neighbouring outputs of some neighbouring channels, so that windows that overlap share what
they read. The library runs the first entry point whose vector divides the channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from onnxopt.costs.pool import numbers
from onnxopt.fusion.region import Kernel, Region
from onnxopt.graph.shapes.shapes import Shapes
from onnxopt.program.cuda_text.cores import static_window
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.hardware import ACCESS_BYTES
from onnxopt.program.pool import Pool, PoolVariant
from onnxopt.program.window import Window

HEADER = "pool/pool.cuh"
_MAX_UNROLLED = 25  # places of a window; of a larger one, the rows are a loop (kUnrolledTaps of pool.cuh)
_WIDEST = 16  # columns of a window whose columns are unrolled (kUnrolledColumns of pool.cuh)


def choose(name: str, meaning: Pool, regions: Sequence[Region], shapes: Shapes) -> tuple[PoolVariant, ...]:
    """The widest vectors that the channels of the regions may have, and single channels.

    Large windows that share nothing also have narrow vectors, which more threads load where there are few outputs.
    """
    channels = [(shapes.dims(r.inputs[0]) or (None,))[-1] for r in regions]
    widths = {1, *(_width(meaning, c) for c in channels)}
    window = meaning.window
    shares = any(stride < side for stride, side in zip(window.strides, window.kernel, strict=True))
    planes = 1 if window.depth is None else window.depth.kernel
    if not shares and planes * window.kernel[0] * window.kernel[1] > _MAX_UNROLLED:
        widths |= {min(max(numbers().min_access // DTYPES[meaning.dtype].size, 1), width) for width in widths}
    tile = _tile(window, [shapes.dims(r.outputs[0]) for r in regions])
    return tuple(variant(name, width, tile) for width in sorted(widths, reverse=True))


def alternatives(kernel: Kernel) -> Iterable[PoolVariant]:
    """The other tiles, for `tune`."""
    meaning = cast(Pool, kernel.program)
    widest = max(v.vector for v in kernel.variants)
    return [variant(kernel.name, widest, tile) for tile in numbers().tiles if _runs(meaning.window, tile)]


def variant(name: str, width: int, tile: tuple[int, int]) -> PoolVariant:
    down, across = tile
    symbol = f"{name}_w{width}d{down}a{across}"
    return PoolVariant(symbol, "", 32, width, 1, numbers().threads, waits=True, down=down, across=across)


def _width(meaning: Pool, channels: int | str | None) -> int:
    """The most channels of one access."""
    widest = ACCESS_BYTES // DTYPES[meaning.dtype].size
    return widest if not isinstance(channels, int) else min(widest, channels & -channels)


def _tile(window: Window, outputs: Sequence[Sequence[int | str | None] | None]) -> tuple[int, int]:
    """Two outputs along each axis along which windows overlap by half or more, where some region has more than one.

    Four across where windows are wide (costs/data/pool.json).
    """
    wanted = [1, 1]
    for axis in (0, 1):
        single = bool(outputs) and all(dims is not None and dims[axis - 3] == 1 for dims in outputs)
        if not single:
            wanted[axis] = numbers().outputs(window.kernel[axis], window.strides[axis], across=axis == 1)
    down, across = wanted
    return next(t for t in ((down, across), (1, across), (1, 1)) if _runs(window, t))


def _runs(window: Window, tile: tuple[int, int]) -> bool:
    """Whether pool.cuh has code for this tile."""
    if window.dilations != (1, 1) or window.kernel[1] > _WIDEST:
        return tile == (1, 1)
    return tile[0] == 1 or window.kernel[0] * window.kernel[1] <= _MAX_UNROLLED


def lines(kernel: Kernel) -> list[str]:
    """CUDA text of the entry points."""
    meaning = cast(Pool, kernel.program)
    window, dtype = static_window(meaning.window), DTYPES[meaning.dtype].cuda
    text: list[str] = []
    for v in kernel.variants:
        assert isinstance(v, PoolVariant)
        if meaning.operation == "max":
            result = f"Greatest<{dtype}, {v.vector}>"
        else:
            result = f"Mean<{dtype}, {v.vector}, {'true' if meaning.count_include_pad else 'false'}>"
        text += [
            f'extern "C" __global__ void __launch_bounds__({v.threads})',
            f"{v.symbol}(const __grid_constant__ PoolParams params) {{",
            f"  pool<{result}, {window}, {v.down}, {v.across}, {v.threads}>(params);",
            "}",
            "",
        ]
    return text
