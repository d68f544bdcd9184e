"""Flags: inputs of one element that choose what a model runs, as the branch of an If with or without a cache.

Both values are run, by seed: all flags are true at seed 0, all are false at seed 1, and at others every second one is
true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxopt.graph.input_uses import Use
from onnxopt.graph.signature import Tensor


def is_flag(tensor: Tensor, uses: Sequence[Use]) -> bool:
    """Whether an input is one bool, or one number that If takes for one, that nothing else restricts."""
    if tensor.dims is None or tensor.kind != "tensor" or any(dim != 1 for dim in tensor.dims):
        return False
    if any(use.role != "condition" for use in uses) or "mask" in tensor.name.lower():
        return False
    return bool(uses) or tensor.dtype == "bool"


def numbers(inputs: Sequence[Tensor], uses: Mapping[str, tuple[Use, ...]]) -> dict[str, int]:
    """The flags by name, with the number of each among them."""
    names = [tensor.name for tensor in inputs if is_flag(tensor, uses.get(tensor.name, ()))]
    return {name: number for number, name in enumerate(names)}


def value(number: int, seed: int) -> bool:
    """What a flag is at a seed."""
    return seed == 0 if seed in (0, 1) else number % 2 == 0
