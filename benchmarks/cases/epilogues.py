"""Convolutions with every activation that the kind takes in, and transposed convolutions, at shapes of networks."""

from __future__ import annotations

from cases.convolution import Layer

_SAME = (1, 1, 1, 1)
_SHAPES = {
    "detector": Layer(n=8, h=80, w=80, c=128, k=128, pads=_SAME, dtype="float16"),
    "residual": Layer(n=32, h=56, w=56, c=64, k=64, pads=_SAME, dtype="float16"),
    "expand": Layer(n=32, h=28, w=28, c=40, k=240, kernel=(1, 1), dtype="float16"),
    "stem": Layer(n=32, h=224, w=224, c=4, k=32, strides=(2, 2), pads=_SAME, dtype="float16"),
}
_ACTIVATIONS = ("relu", "silu", "clip", "leaky_relu", "hardswish", "prelu")
_MAPS = {
    "unet": Layer(n=8, h=40, w=40, c=256, k=128, dtype="float16"),
    "wide": Layer(n=8, h=80, w=80, c=64, k=64, dtype="float16"),
    "text": Layer(n=1, h=160, w=240, c=24, k=24, dtype="float16"),
}


def _with(layer: Layer, **fields: object) -> Layer:
    return Layer(**{**vars(layer), **fields})  # type: ignore[arg-type]


_TRANSPOSED = {
    "2x2": {"kernel": (2, 2), "strides": (2, 2)},
    "3x3": {"kernel": (3, 3), "strides": (2, 2), "pads": _SAME, "output_padding": (1, 1)},
    "4x4": {"kernel": (4, 4), "strides": (2, 2), "pads": _SAME},
}
CASES: dict[str, Layer] = {
    **{
        f"{shape} {activation}": _with(layer, activation=activation)
        for shape, layer in _SHAPES.items()
        for activation in _ACTIVATIONS
    },
    **{
        f"detector {activation} residual": _with(_SHAPES["detector"], activation=activation, residual="last")
        for activation in ("silu", "leaky_relu", "hardswish")
    },
    **{
        f"{shape} transposed {form} {activation}".strip(): _with(
            layer, transposed=True, activation=activation, **fields
        )
        for shape, layer in _MAPS.items()
        for form, fields in _TRANSPOSED.items()
        for activation in ("", "relu")
    },
}
