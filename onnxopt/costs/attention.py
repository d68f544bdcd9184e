"""Whether the kernel of attention of many queries is faster than ONNX Runtime's: up to how many keys."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

from onnxopt.costs import flash_attention
from onnxopt.costs.measured import load

# Heads of these sizes are what ONNX Runtime's flash attention has kernels for; it pads the others.
_UNPADDED = (32, 64, 96, 128, 192, 256)


@dataclasses.dataclass(frozen=True)
class AttentionCosts:
    """The numbers of costs/data/attention.json, which says what each is."""

    keys_if_packed: int
    keys_if_apart: int
    keys_if_padded: int
    keys_if_local: int
    keys_if_narrow: int
    narrow: int
    min_queries: int
    keys_if_few_queries: int
    hopper_keys_if_packed: int
    hopper: tuple[Mapping[str, Any], ...]
    theirs: Mapping[str, Any]
    clear: float


@functools.cache
def numbers() -> AttentionCosts:
    """The measured numbers."""
    return load("attention", AttentionCosts)


@dataclasses.dataclass(frozen=True)
class AttentionSize:
    """What decides how long attention takes.

    keys: their expected number; unknown ones may be many. width: elements of a head. packed: queries, keys and values
    would have to be copied out of one product for ONNX Runtime's operator. hopper: there is a kernel for Hopper.
    causal: queries see no later key. bias: what is added to scores, one for each key or one for each score. queries:
    their expected number. seen: keys that a query of local attention sees. alone: ONNX Runtime has no operator, and
    would write the scores to memory. dtype: of q, k and v. heads: of all sequences, their expected number.
    """

    keys: int | None
    width: int
    packed: bool = False
    hopper: bool = False
    causal: bool = False
    bias: Literal["", "keys", "scores"] = ""
    queries: int | None = None
    seen: int | None = None
    alone: bool = False
    dtype: str = "float16"
    heads: int | None = None


def pays(size: AttentionSize) -> bool:
    """Whether the kernel is faster than ONNX Runtime's, by the keys of costs/data/attention.json."""
    limits = numbers()
    few = size.queries is not None and size.queries < limits.min_queries
    if few and (size.keys is None or size.keys > limits.keys_if_few_queries) and (size.alone or size.seen is not None):
        return False
    if size.alone or _is_local(size):
        return True
    if size.dtype == "float32" and not few:  # by no number of keys up to 4,096 is another kernel faster
        unknown = size.keys is None and size.queries is None
        # Of unknown sizes, q, k and v apart and such a bias may be one token and a long cache.
        return not unknown or size.packed or size.causal or size.bias != "scores"
    apart = limits.keys_if_apart if few or size.width in _UNPADDED else limits.keys_if_padded
    limit: float = limits.keys_if_packed if size.packed else apart
    if size.hopper and not few:
        if size.bias == "keys":
            return True
        if _takes_fewer_waves(size):
            return True
        limit = _hopper_keys(size)
    if size.keys is None:  # few take less time than by ONNX Runtime's kernels, many no longer with what these need
        return not few and (size.causal or size.bias == "keys" or (size.hopper and (size.packed or limit == math.inf)))
    return size.keys <= max(limit, limits.keys_if_narrow if size.width <= limits.narrow else 0)


def _is_local(size: AttentionSize) -> bool:
    if size.seen is None:
        return False
    return size.seen <= numbers().keys_if_local or (size.keys is not None and 4 * size.seen <= size.keys)


def _takes_fewer_waves(size: AttentionSize) -> bool:
    """Whether the kernel for Hopper takes less time by the waves of its tiles, which are smaller and of three sizes."""
    theirs = numbers().theirs
    if size.keys is None or size.queries is None or size.heads is None or size.bias or size.causal:
        return False
    if size.width != theirs["width"]:
        return False
    multiprocessors = theirs["multiprocessors"]
    tiles = math.ceil(math.ceil(size.queries / theirs["queries"]) * size.heads / multiprocessors)
    scores = tiles * theirs["queries"] * math.ceil(size.keys / theirs["keys"]) * theirs["keys"] * 1e-6
    of_scores = theirs["scores"] + (theirs["ragged"] if size.keys % theirs["keys"] else 0)
    expected = theirs["call"] + tiles * theirs["wave"] + scores * of_scores
    return flash_attention.numbers().hopper_microseconds(
        size.width, size.heads, size.queries, size.keys, multiprocessors
    ) < numbers().clear * expected  # fmt: skip


def _hopper_keys(size: AttentionSize) -> float:
    """Up to how many keys the kernel for Hopper is faster.

    apart: without copies to save. causal: where queries see no later key. biased: with a bias for each score.
    """
    values = numbers()
    row = next(row for row in values.hopper if size.width <= row["width"])
    apart, causal, biased = (math.inf if row[name] is None else row[name] for name in ("apart", "causal", "biased"))
    if size.bias:
        return biased if size.packed or size.causal else min(apart, biased)
    limit = causal if size.causal else apart
    return max(values.hopper_keys_if_packed, limit) if size.packed else limit
