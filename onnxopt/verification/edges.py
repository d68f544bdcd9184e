"""Kinds of cases beyond random noise: edges of what inputs may hold, and of how large they may be.

Each is a case of its own, with a name, so that a message says which inputs show a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from onnxopt.graph.input_uses import Use
from onnxopt.graph.signature import Sizes, Tensor, roles, symbols
from onnxopt.graph.traits import Traits

Array = np.ndarray[Any, Any]

ZEROS = "zeros and tiny values"  # also the first and the last row of tables, and masks with holes
LARGE, LESS_LARGE = "values up to 10000", "values up to 100"
NONFINITE = "NaN and infinities"
LONG, EMPTY = "long", "empty"
_UP_TO = {LARGE: 1e4, LESS_LARGE: 1e2}

_ELEMENTWISE = frozenset(
    {"Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "Constant", "Cos", "Div", "Dropout", "Equal", "Erf", "Exp",
     "Expand", "Floor", "Gather", "Gelu", "Gemm", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
     "IsInf", "IsNaN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "MatMul", "Max", "Min", "Mul",
     "Neg", "Not", "Or", "PRelu", "Pow", "RMSNormalization", "Reciprocal", "ReduceMean", "ReduceSum", "Relu", "Reshape",
     "Shape", "Sigmoid", "Sign", "Sin", "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
     "Swish", "Tanh", "Transpose", "Unsqueeze", "Where", "Xor"}
)  # fmt: skip
# Operators that ONNX Runtime is known to run, or to refuse with an error, where a dim is 0. Others can end the process.
_TAKE_EMPTY = _ELEMENTWISE
# Operators of which NaN cannot end the process: none sorts, searches, or computes an index of it.
_TAKE_NAN = _ELEMENTWISE | {
    "AveragePool", "BatchNormalization", "Conv", "Flatten", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization",
    "InstanceNormalization", "MaxPool", "Pad", "ReduceL2", "ReduceMax", "ReduceMin"}  # fmt: skip
LENGTHS = (65, 129, 257, 513, 1025, 2049, 4097, 16385, 70001)
_SIDES = (131, 259)


def sprinkled(random: np.random.Generator, values: Array, kind: str, dtype: np.dtype[Any]) -> Array:
    """Noise, with elements of the kind at random places. Of NaN and infinities one each, in the last rows of axis 0."""
    if kind == ZEROS and values.size:
        smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
        edges = np.array([0.0, 0.0, 0.0, -0.0, 1.0, -1.0, 1e-6, -1e-6, 3 * smallest, -3 * smallest])
        return np.where(random.random(values.shape) < 0.35, random.choice(edges, values.shape), values)
    if kind in _UP_TO and values.size:
        factors = np.exp(random.uniform(np.log(3.0), np.log(_UP_TO[kind]), values.shape))
        return np.where(random.random(values.shape) < 0.25, np.sign(values) * factors, values)
    if kind == NONFINITE and values.size:
        values = np.array(values, copy=True)
        rows = values.reshape(values.shape[0] if values.ndim > 1 else 1, -1)
        for k, value in enumerate((np.nan, np.inf, -np.inf)):
            rows[-1 - min(k, len(rows) - 1), random.integers(rows.shape[1])] = value
        return rows.reshape(values.shape)
    return values


def kinds(traits: Traits, on_gpu: bool) -> tuple[str, ...]:
    """The kinds of values to try for a model, most telling first. on_gpu: where cuDNN's convolutions spread NaN."""
    is_rounding = traits.precision in ("float32", "float64", "bfloat16", "float16")
    free = any(is_free(tensor, traits.uses.get(tensor.name, ())) for tensor in traits.inputs)
    found = [ZEROS] if free or any(_has_ends(t, traits.uses.get(t.name, ())) for t in traits.inputs) else []
    if not free or traits.random or traits.traps:
        return tuple(found)
    if is_rounding and traits.operators <= _TAKE_NAN and not (on_gpu and "Conv" in traits.operators):
        found.append(NONFINITE)
    # Rounding to 16 bits or to codes takes networks of such inputs as far from float32 as wrong kernels do.
    return (*found, LARGE) if traits.precision in ("float32", "float64") else tuple(found)


def is_free(tensor: Tensor, uses: Sequence[Use]) -> bool:
    """Whether an input is of floats that may have any value."""
    named = any(word in tensor.name.lower() for word in ("mask", "scale", "temperature"))
    is_float = tensor.dtype in ("", "float32", "float64", "float16", "bfloat16")
    return is_float and tensor.kind == "tensor" and not named and not uses


def _has_ends(tensor: Tensor, uses: Sequence[Use]) -> bool:
    """Whether an input is a mask, by 1 and 0 or by what is added to scores, or names rows of a table."""
    return "mask" in tensor.name.lower() or any(use.role in ("additive_mask", "index") for use in uses)


def empty_sizes(traits: Traits, sizes: Sizes) -> Iterator[Sizes]:
    """The sizes with the batch 0, and with all other dims 0; none where that might end the process."""
    if traits.operators <= _TAKE_EMPTY and not traits.traps and not traits.random:
        batch, space = roles(traits.inputs)
        rest = [name for name in sizes if name not in batch and name not in space]
        for names in (sorted(batch), rest):
            if names:
                yield sizes | dict.fromkeys(names, 0)


def long_sizes(traits: Traits, pinned: Sizes) -> Iterator[tuple[int, Sizes]]:
    """Growing sizes of all dims but the batch, which is 1; with each the size of the longest."""
    batch, _ = roles(traits.inputs)
    if all(name in batch or name in pinned for name in symbols(traits.inputs)):
        return
    for k, length in enumerate(LENGTHS):
        side = _SIDES[min(k, len(_SIDES) - 1)]
        yield length, at_length(traits, pinned, length, side)


def at_length(traits: Traits, pinned: Sizes, length: int, side: int = _SIDES[-1]) -> Sizes:
    """Sizes at which sequences are so long, and images have these sides."""
    batch, space = roles(traits.inputs)
    sizes: Mapping[str, int] = {
        n: 1 if n in batch else max(side // space[n], 1) if n in space else length for n in symbols(traits.inputs)
    }
    return {**sizes, **pinned}
