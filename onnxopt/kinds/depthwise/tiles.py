"""How blocks of depthwise kernels share a result, and the shared memory that this takes.

The numbers are those of cuda_kernels/depthwise/banded_tile.cuh; the generated source asserts that both are equal.
"""

from __future__ import annotations

import dataclasses

from onnxopt.program.depthwise import DepthwiseVariant
from onnxopt.program.window import Window

FIRST_BANDED = 90  # compute capability, times 10, from which matrices can be transposed on their way to shared memory
BANDED_CHANNELS = 8  # of one access


def extent(window: Window) -> tuple[int, int]:
    """Rows and columns of inputs from the first to the last that one output sees."""
    (height, width), (down, across) = window.kernel, window.dilations
    return (height - 1) * down + 1, (width - 1) * across + 1


def seen(window: Window, rows: int, columns: int) -> tuple[int, int]:
    """Rows and columns of inputs from the first to the last that a tile of outputs sees."""
    (height, width), (down, across) = extent(window), window.strides
    return (rows - 1) * down + height, (columns - 1) * across + width


def shared_bytes(window: Window, variant: DepthwiseVariant) -> int:
    """Bytes of shared memory of a block of a banded entry point: planes of inputs, and the table of weights."""
    tile = _Planes(window, variant.across, variant.down, variant.chunks, variant.images)
    channels = BANDED_CHANNELS * variant.chunks
    table_words = (window.kernel[1] - 1) * window.dilations[1] + 3
    return channels * tile.octets() * 16 + channels * window.kernel[0] * table_words * 4


def slots(window: Window, variant: DepthwiseVariant) -> int:
    """Inputs that a tile of an expanded entry point sees, in whole products of 16."""
    rows, columns = seen(window, variant.down, variant.across)
    return -(-rows * columns // 16) * 16


def expanded_bytes(window: Window, variant: DepthwiseVariant, narrow: int) -> int:
    """Bytes of shared memory of a block of an expanded entry point: inputs of so many channels, what they are expanded
    to for some channels, and sums."""
    channels = 8 * variant.chunks
    positions = variant.down // variant.strip * variant.across
    return slots(window, variant) * ((narrow // 8 | 1) * 16 + channels * 2) + positions * channels * 4


@dataclasses.dataclass(frozen=True)
class _Planes:
    """Where the inputs and outputs of a channel lie. Lengths in octets of 16 bytes."""

    window: Window
    across: int
    down: int
    chunks: int
    images: int

    @property
    def _segments(self) -> int:
        return 16 // self.across // self.images

    @property
    def _image_rows(self) -> int:
        return seen(self.window, self.down * self._segments, 1)[0]

    def _segment_row(self, segment: int) -> int:
        image_row = segment // self._segments * self._image_rows
        return image_row + segment % self._segments * self.down * self.window.strides[0]

    def _conflicts(self, row: int, reads_inputs: bool) -> int:
        hits = [0] * 8
        for m in range(8):
            segment, octet = divmod(m, self.across)
            down = self._segment_row(segment) if reads_inputs else segment * self.down
            hits[(down * row + octet * (self.window.strides[1] if reads_inputs else 1)) % 8] += 1
        return 2 * max(hits) + (4 // self.chunks > 1 and row % 2 == 0)

    def _best_row(self, minimum: int, reads_inputs: bool) -> int:
        return min(range(minimum, minimum + 3), key=lambda row: self._conflicts(row, reads_inputs))

    def octets(self) -> int:
        """Of the plane of one channel."""
        together = 4 // self.chunks
        depth = (seen(self.window, 1, 8)[1] + 7) // 8
        row = self._best_row((self.across - 1) * self.window.strides[1] + depth, reads_inputs=True)
        rows = -(-self._image_rows * self.images // together) * together
        outputs = self.down * self._segments * self.images * self._best_row(self.across, reads_inputs=False)
        size = max(rows * row, outputs)
        while size % (2 * together) != together % (2 * together):
            size += 1
        return size
