"""Random convolutions: every window, stride, padding, dilation, group, dtype and epilogue that the kind takes."""

from __future__ import annotations

import numpy as np

from cases.convolution import Layer

_DTYPES = ("float16", "bfloat16", "float32")
_EPILOGUES = (
    ("", ""), ("", "relu"), ("", "silu"), ("before", ""), ("before", "relu"), ("last", "silu"), ("", "clip"),
    ("", "leaky_relu"), ("last", "leaky_relu"), ("last", "clip"), ("", "hardswish"), ("last", "hardswish_of_gate"),
    ("", "prelu"), ("last", "prelu"), ("", "hardswish_scaled_gate"), ("", "hardswish_scaled_product"),
)  # fmt: skip
_OF_PRODUCTS = (("", ""), ("", "relu"), ("before", ""), ("before", "relu"))  # epilogues that cuBLASLt has as well


def draw_product(seed: int) -> Layer:
    """A 1x1 convolution that becomes a product, which cuBLASLt or cuDNN runs."""
    rng = np.random.default_rng(seed)
    residual, activation = _OF_PRODUCTS[rng.integers(len(_OF_PRODUCTS))]
    channels = [1, 3, 8, 12, 16, 24, 40, 64, 100, 128]
    return Layer(
        n=int(rng.integers(1, 9)), h=int(rng.integers(1, 40)), w=int(rng.integers(1, 40)), c=int(rng.choice(channels)),
        k=int(rng.choice(channels)), kernel=(1, 1), dtype=_DTYPES[rng.integers(3)], bias=bool(rng.random() < 0.8),
        residual=residual, activation=activation, symbolic=("N",) if rng.random() < 0.3 else (), seed=seed,
    )  # fmt: skip


def draw(seed: int) -> Layer:
    """A layer whose result has at least one element, of at most some million multiplications."""
    rng = np.random.default_rng(seed)

    while True:
        residual, activation = _EPILOGUES[rng.integers(len(_EPILOGUES))]
        group = int(rng.choice([1, 1, 1, 2, 4]))
        wide = activation not in ("", "relu")  # the kind leaves it to another kernel for few channels
        transposed = bool(rng.random() < 0.25) and not (wide and group > 1)  # nor activations of such
        of_group = [32, 64] if wide else [1, 3, 4, 8, 12, 16, 32, 40]
        kernel = (int(rng.choice([1, 2, 3, 3, 3, 5, 7])), int(rng.choice([1, 2, 3, 3, 3, 5])))
        same = rng.random() < 0.2 and not transposed
        dilations = (1, 1) if same else (int(rng.choice([1, 1, 1, 2, 3])), int(rng.choice([1, 1, 1, 2])))
        pads = (0, 0, 0, 0) if same else tuple(int(p) for p in rng.integers(0, 3, 4))
        if not same and rng.random() < 0.5:
            pads = tuple(d * (k - 1) // 2 for d, k in zip(dilations, kernel, strict=True)) * 2
        strides = (int(rng.choice([1, 1, 2, 3])), int(rng.choice([1, 1, 2])))
        added = tuple(int(rng.integers(0, stride)) for stride in strides) if transposed else (0, 0)
        layer = Layer(
            n=int(rng.integers(1, 5)), h=int(rng.integers(1, 30)), w=int(rng.integers(1, 30)),
            c=group * int(rng.choice(of_group)) * (2 if wide and group == 1 else 1),
            k=group * int(rng.choice(of_group)) * (2 if wide and group == 1 else 1),
            kernel=kernel, strides=strides, dilations=dilations, pads=pads,  # type: ignore[arg-type]
            transposed=transposed, output_padding=added,  # type: ignore[arg-type]
            auto_pad=str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])) if same else "NOTSET",
            group=group, dtype=_DTYPES[rng.integers(3)], bias=bool(rng.random() < 0.8), residual=residual,
            activation=activation, symbolic=("N",) if not wide and rng.random() < 0.3 else (), seed=seed,
        )  # fmt: skip
        (height, width), _ = layer.placed()
        # Those of other kinds: depthwise ones, and images in 16 bits.
        is_depthwise = group > 1 and layer.c == layer.k == group and not transposed
        is_image = group == 1 and layer.c <= 4 and layer.dtype != "float32" and not transposed
        if min(height, width) >= 1 and not is_depthwise and not is_image:
            return layer
