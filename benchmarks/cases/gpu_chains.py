"""The chains that the GPU benchmarks measure: every kind of broadcast, casts, odd sizes, two outputs."""

from __future__ import annotations

from benchmarks.cases.chains import Chain

_LARGE, _WIDE, _HUGE = (8192, 4096), (16384, 3072), (16384, 8192)
_IMAGE, _SCORES = (32, 256, 64, 64), (16, 12, 512, 512)
_ODD = (8191, 4099)
_ERF_GELU = (("Mul", 0.70710678), ("Erf",), ("Add", 1.0), ("Mul", "@1"), ("Mul", 0.5))

CHAINS = (
    Chain("add_relu", "contiguous", "float16", _LARGE, (("Add", "a"), ("Relu",)), {"a": _LARGE}),
    Chain(
        "fma_tanh_scale",
        "contiguous",
        "float32",
        (4096, 4096),
        (("Mul", "a"), ("Add", "b"), ("Tanh",), ("Mul", 0.5)),
        {"a": (4096, 4096), "b": (4096, 4096)},
    ),
    Chain(
        "swiglu_residual",
        "contiguous",
        "bfloat16",
        _LARGE,
        (("Sigmoid",), ("Mul", "@0"), ("Mul", "up"), ("Mul", 0.5), ("Add", "residual")),
        {"up": _LARGE, "residual": _LARGE},
    ),
    Chain(
        "gelu_gate_11",
        "contiguous",
        "float16",
        _HUGE,
        (("Add", "a"), *_ERF_GELU, ("Mul", "b"), ("Tanh",), ("Add", "a"), ("Mul", 1.5), ("Sub", 0.25)),
        {"a": _HUGE, "b": _HUGE},
    ),
    Chain(
        "sixteen",
        "contiguous",
        "float16",
        _HUGE,
        (
            *(("Abs",), ("Add", 1.0), ("Sqrt",), ("Mul", "@0"), ("Sigmoid",), ("Sub", 0.5), ("Mul", 2.0), ("Tanh",)),
            *(("Mul", "a"), ("Add", "@0"), ("Max", -3.0), ("Min", 3.0), ("Sin",), ("Mul", "@4"), ("Neg",), ("Abs",)),
        ),
        {"a": _HUGE},
    ),
    Chain(
        "bias_gelu_residual",
        "bias",
        "float16",
        _WIDE,
        (("Add", "bias"), ("Gelu",), ("Add", "residual")),
        {"bias": (3072,), "residual": _WIDE},
    ),
    Chain(
        "bias_silu_mul",
        "bias",
        "bfloat16",
        _WIDE,
        (("Add", "bias"), ("Sigmoid",), ("Mul", "@1"), ("Mul", "up")),
        {"bias": (3072,), "up": _WIDE},
    ),
    Chain(
        "affine_relu_residual",
        "bias",
        "float32",
        (8192, 3072),
        (("Mul", "gamma"), ("Add", "beta"), ("Relu",), ("Add", "residual")),
        {"gamma": (3072,), "beta": (3072,), "residual": (8192, 3072)},
    ),
    Chain(
        "channel_affine_hardswish",
        "per-channel",
        "float16",
        _IMAGE,
        (("Mul", "scale"), ("Add", "shift"), ("HardSwish",)),
        {"scale": (256, 1, 1), "shift": (256, 1, 1)},
    ),
    Chain(
        "squeeze_excite",
        "per-channel",
        "float32",
        (16, 256, 64, 64),
        (("Add", "shift"), ("Relu",), ("Mul", "gate"), ("Add", "residual"), ("LeakyRelu",)),
        {"shift": (1, 256, 1, 1), "gate": (16, 256, 1, 1), "residual": (16, 256, 64, 64)},
    ),
    Chain(
        "quantize_like",
        "scalar",
        "float16",
        _LARGE,
        (("Mul", "scale"), ("Add", "zero"), ("Clip", -1.5, 1.5), ("Sub", "zero"), ("Mul", 0.25), ("Softplus",)),
        {"scale": (1,), "zero": ()},
    ),
    Chain(
        "masked_scores",
        "4-d broadcast",
        "float16",
        _SCORES,
        (("Mul", 0.125), ("Add", "position"), ("Add", "mask")),
        {"position": (1, 12, 512, 512), "mask": (16, 1, 1, 512)},
    ),
    Chain(
        "masked_where",
        "4-d broadcast",
        "bfloat16",
        _SCORES,
        (("Mul", 0.125), ("Where", "keep", ".", -30000.0), ("Mul", "head")),
        {"keep": ((16, 1, 512, 512), "bool"), "head": (1, 12, 1, 1)},
    ),
    Chain(
        "odd_size",
        "contiguous, odd",
        "float16",
        _ODD,
        (("Add", "a"), ("Tanh",), ("Mul", "@1"), ("Add", 1.0)),
        {"a": _ODD},
    ),
    Chain(
        "odd_bias",
        "bias, odd",
        "float16",
        _ODD,
        (("Add", "bias"), ("Gelu",), ("Mul", "a")),
        {"bias": (_ODD[1],), "a": _ODD},
    ),
    Chain(
        "cast_up_and_down",
        "contiguous",
        "float16",
        _LARGE,
        (("Cast", "float32"), ("Mul", 0.1), ("Exp",), ("Sub", 1.0), ("Cast", "float16"), ("Mul", "a")),
        {"a": _LARGE},
    ),
    Chain(
        "two_outputs",
        "contiguous",
        "float16",
        _LARGE,
        (("Add", "residual"), ("Mul", 0.5), ("Sigmoid",), ("Mul", "@1")),
        {"residual": _LARGE},
        outputs=("@1",),
    ),
    Chain(
        "bias_gelu_16MB",
        "bias",
        "float16",
        (2048, 4096),
        (("Add", "bias"), ("Gelu",), ("Add", "residual")),
        {"bias": (4096,), "residual": (2048, 4096)},
    ),
    Chain(
        "residual_1MB",
        "contiguous",
        "float16",
        (128, 4096),
        (("Add", "a"), ("Relu",), ("Mul", 0.5), ("Add", "@0")),
        {"a": (128, 4096)},
    ),
)
