"""Mutations of the files beside the library: of a JSON document's parts, and of single bits."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 127, 128, 255, 256, 1000, 1024, 4096, 65535, 65536,
    2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**33, 2**40, 2**48, 2**56, 2**61, 2**62, 2**63 - 1, 2**63,
    2**64 - 1, 2**64, -2, -3, -8, -128, -(2**31), -(2**32), -(2**56), -(2**62), -(2**63), -(2**63) - 1,
    0.5, -0.0, 1e-40, 3.5e38, 1e308,
)  # fmt: skip
TEXTS = (
    "",
    "x",
    "\x00",
    "nan",
    "inf",
    "-inf",
    "float32",
    "int64",
    "bool",
    "*" * 40,
    "F" * 3,
    "../k",
    "a" * 5000,
    "\u00e9",
)
_OF_NUMBERS = 0.6  # of the mutations: a damaged structure is mostly found by the reader, a damaged number is not
_LENGTHS = (1, 2, 3, 40, 300)  # by which arrays grow

Path = tuple[Any, ...]


def mutated(document: dict[str, Any], rng: random.Random, spared: frozenset[str]) -> dict[str, Any]:
    """A copy with one to three parts changed; the top-level fields `spared` stay."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = [p for p in _places(changed) if p and p[0] not in spared]
        numbers = [p for p in places if isinstance(_at(changed, p), int | float)]
        if rng.random() < _OF_NUMBERS and numbers:
            owner, key = _at(changed, (path := rng.choice(numbers))[:-1]), path[-1]
            owner[key] = not owner[key] if isinstance(owner[key], bool) else _number(owner[key], rng)
        elif places:
            _change(changed, rng.choice(places), places, rng)
    return changed


def flipped(text: bytes, rng: random.Random) -> bytes:
    """A copy with one bit flipped."""
    at = rng.randrange(len(text))
    return text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1 :]


def cut(text: bytes, rng: random.Random) -> bytes:
    """A copy in which some bytes are missing, doubled, cleared or random."""
    begin = rng.randrange(len(text))
    end = min(len(text), begin + rng.choice((1, 2, 4, 8, 16, 64, 256, len(text))))
    middle = rng.choice((b"", text[begin:end] * 2, bytes(end - begin), rng.randbytes(end - begin)))
    return text[:begin] + middle + text[end:]


def _places(value: Any, path: Path = ()) -> list[Path]:
    """The paths of a value and of everything in it."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        found += _places(part, (*path, key))
    return found


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


def _change(document: dict[str, Any], path: Path, places: list[Path], rng: random.Random) -> None:
    owner, key = _at(document, path[:-1]), path[-1]
    value = owner[key]
    roll = rng.random()
    if roll < 0.08:
        del owner[key]
    elif roll < 0.16:  # any other part of the document, whatever its type
        owner[key] = copy.deepcopy(_at(document, rng.choice(places)))
    elif isinstance(value, bool):
        owner[key] = not value
    elif isinstance(value, int | float):
        owner[key] = _number(value, rng)
    elif isinstance(value, str):
        owner[key] = _text(value, document, places, rng)
    elif isinstance(value, list):
        owner[key] = _list(value, rng)
    elif isinstance(value, dict):
        _object(value, rng)
    else:
        owner[key] = rng.choice((0, [], {}, "x", False, [0], [0, 0]))


def _number(value: float, rng: random.Random) -> Any:
    roll = rng.random()
    if roll < 0.35:
        return rng.choice(NUMBERS)
    if roll < 0.9 and isinstance(value, int):
        return rng.choice(
            (value + 1, value - 1, value * 2, value // 2, value + 64, value * 1024, -value, value ^ 1 << 20)
        )
    if roll < 0.95:  # an extent with symbols
        return [rng.choice((value, 1, 2**31, 2**62)), *(rng.randrange(3) for _ in range(rng.choice((0, 1, 2, 9))))]
    return rng.choice(("1", None, [], {}, True, value / 3))


def _text(value: str, document: Any, places: list[Path], rng: random.Random) -> Any:
    others = [v for p in places if isinstance(v := _at(document, p), str)]
    roll = rng.random()
    if roll < 0.5:
        return rng.choice(others)
    if roll < 0.7:
        return rng.choice(TEXTS)
    if value and roll < 0.9:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "F", "S", "R", "*", "P", "T", value[at] * 2)) + value[at + 1 :]
    return rng.choice((0, None, [], {}, True))


def _list(value: list[Any], rng: random.Random) -> list[Any]:
    changed = list(value)
    roll = rng.random()
    if roll < 0.15 or not changed:
        return rng.choice(([], [0], [[]], [None], [0, 0, 0], [1] * 40))
    if roll < 0.45:  # longer
        extra = [copy.deepcopy(rng.choice(changed)) for _ in range(rng.choice(_LENGTHS))]
        at = rng.randrange(len(changed) + 1)
        return changed[:at] + extra + changed[at:]
    if roll < 0.65:  # shorter
        del changed[rng.randrange(len(changed)) :]
        return changed
    if roll < 0.85:  # another order
        rng.shuffle(changed)
        return changed
    at, other = rng.randrange(len(changed)), rng.randrange(len(changed))
    changed[at] = copy.deepcopy(changed[other])
    return changed


def _object(value: dict[str, Any], rng: random.Random) -> None:
    if not value:
        value["x"] = 0
        return
    key, other = rng.choice(list(value)), rng.choice(list(value))
    if rng.random() < 0.5:
        value[key], value[other] = value[other], value[key]
    else:
        value[f"{key}_"] = value.pop(key)


def text(document: Any) -> str:
    """JSON as the library's files have it."""
    return json.dumps(document, indent=1) + "\n"
