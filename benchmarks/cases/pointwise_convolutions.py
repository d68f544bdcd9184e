"""1x1 convolutions that become products: those of common networks with bias, residual and ReLU, by batch and map."""

from __future__ import annotations

import dataclasses

from cases.convolution import Layer

# batch, height and width, channels of x and y, what is added and the activation: "+" a residual, "r" a ReLU
_FLOAT16 = (
    (32, 112, 16, 16, ""), (32, 112, 32, 16, ""), (32, 112, 16, 64, "r"), (32, 112, 16, 96, ""), (32, 112, 32, 64, "r"),
    (32, 56, 24, 72, "r"), (32, 56, 24, 144, ""), (32, 56, 72, 24, "+"), (32, 56, 144, 24, "+"), (32, 56, 96, 24, ""),
    (32, 56, 64, 64, "r"), (32, 56, 64, 256, "+r"), (32, 56, 256, 64, "r"), (32, 56, 256, 128, "r"),
    (32, 28, 40, 240, ""), (32, 28, 120, 40, "+"), (32, 28, 32, 192, ""), (32, 28, 192, 32, "+"),
    (32, 28, 128, 512, "+r"), (32, 28, 512, 128, "r"), (32, 28, 512, 256, "r"), (32, 28, 120, 120, "r"),
    (32, 14, 80, 480, ""), (32, 14, 480, 80, "+"), (32, 14, 112, 672, ""), (32, 14, 336, 336, "+r"),
    (32, 14, 256, 1024, "+r"), (32, 14, 1024, 256, "r"), (32, 14, 1024, 512, "r"),
    (32, 7, 160, 960, ""), (32, 7, 960, 160, "+"), (32, 7, 512, 2048, "+r"), (32, 7, 2048, 512, "r"),
    (1, 56, 64, 256, "+r"), (1, 56, 256, 64, "r"), (1, 28, 128, 512, "+r"), (1, 28, 512, 128, "r"),
    (1, 14, 256, 1024, "+r"), (1, 14, 1024, 256, "r"), (1, 7, 512, 2048, "+r"), (1, 7, 2048, 512, "r"),
    (1, 112, 16, 96, ""), (1, 112, 32, 16, ""), (1, 56, 144, 24, "+"),
    (8, 80, 128, 80, ""), (8, 40, 256, 80, ""), (8, 20, 512, 80, ""), (4, 64, 320, 320, "+"), (128, 56, 64, 256, "+r"),
    (64, 112, 32, 16, ""),
)  # fmt: skip
_OTHERS = (
    ("bfloat16", (32, 56, 64, 256, "+r")),
    ("float32", (32, 56, 64, 256, "+r")),
    ("float32", (32, 14, 1024, 256, "r")),
)


def _layer(n: int, size: int, c: int, k: int, behind: str, dtype: str = "float16") -> Layer:
    residual, activation = "before" if "+" in behind else "", "relu" if "r" in behind else ""
    return Layer(n=n, h=size, w=size, c=c, k=k, kernel=(1, 1), dtype=dtype, residual=residual, activation=activation)


LAYERS = (*(_layer(*row) for row in _FLOAT16), *(_layer(*row, dtype=dtype) for dtype, row in _OTHERS))


@dataclasses.dataclass(frozen=True)
class Channels:
    """A product of pixels [rows, c], the last channels of x_of, to the last k channels of y_of."""

    name: str
    rows: int
    c: int
    x_of: int
    k: int
    y_of: int


CHANNELS = (
    Channels("SqueezeNet, 32x55x55, 16 -> 64 of 128", 32 * 55 * 55, 16, 32, 64, 128),
    Channels("SqueezeNet, 32x27x27, 32 -> 128 of 256", 32 * 27 * 27, 32, 64, 128, 256),
    Channels("GoogLeNet, 32x28x28, 192 -> 64 of 256", 32 * 28 * 28, 192, 256, 64, 256),
    Channels("GoogLeNet, 32x14x14, 512 -> 160 of 512", 32 * 14 * 14, 512, 640, 160, 512),
    Channels("ShuffleNet, 64x14x14, 116 of 232 -> 116 of 232", 64 * 14 * 14, 116, 232, 116, 232),
    Channels("ShuffleNet, 64x28x28, 64 of 128 -> 64 of 128", 64 * 28 * 28, 64, 128, 64, 128),
    Channels("CSP, 8x80x80, 64 of 128 -> 64 of 128", 8 * 80 * 80, 64, 128, 64, 128),
    Channels("CSP, 8x40x40, 128 of 256 -> 128 of 256", 8 * 40 * 40, 128, 256, 128, 256),
)
