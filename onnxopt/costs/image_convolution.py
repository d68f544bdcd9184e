"""The tiles of convolutions of images."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load

ImageTile = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class ImageConvolutionCosts:
    """The numbers of costs/data/image_convolution.json, which says what each is."""

    tile: ImageTile
    tile_of_large: ImageTile
    large_window: int
    smaller: tuple[ImageTile, ...]
    many_filters: int
    max_filters: int
    others: tuple[ImageTile, ...]
    prologue_cost: int

    def tile_of(self, places: int) -> ImageTile:
        """The tile of a window of so many places."""
        return self.tile_of_large if places >= self.large_window else self.tile


@functools.cache
def numbers() -> ImageConvolutionCosts:
    """The measured numbers."""
    return load("image_convolution", ImageConvolutionCosts)
