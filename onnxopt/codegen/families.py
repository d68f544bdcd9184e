"""Families: GPU architectures for which NVRTC's optimizer makes the same PTX of a source.

More than half of NVRTC's time goes into its optimizer, which tells generations of architectures apart. So one PTX
serves a family, and ptxas assembles it for each architecture, scheduled for each as before. benchmarks/notes says
how the machine code compares with that of PTX for each architecture alone.

Machine code runs on later GPUs of the same major number, so where no header tells them apart, that of the oldest one
that is asked for serves them: sm_80's also 8.6 and 8.9. Embedded GPUs (8.7) run their own alone.

What later architectures drop, code may use only where it is compiled for a target of the one architecture, sm_90a for
sm_90. Nothing else runs the machine code of either, so a source that asks for such code gets that target. Its PTX runs
on no later GPU, so it is in no fatbin.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from onnxopt.codegen.architectures import ARCHITECTURES

_SPECIFIC = {a.name: (a.target, a.macro) for a in ARCHITECTURES if a.target}
_EMBEDDED = frozenset(a.name for a in ARCHITECTURES if a.embedded)
_FAMILIES = {a.name: a.family for a in ARCHITECTURES} | {target: target for target, _ in _SPECIFIC.values()}
_CONDITION = re.compile(r"__CUDA_ARCH__\s*([<>]=?|[!=]=)\s*(\d+)")
_HOLDS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_TARGET = re.compile(r"^\.target sm_\w+", re.M)


class Family(NamedTuple):
    """first: what the PTX is compiled for, the oldest member. archs: the members that are asked for."""

    first: str
    archs: tuple[str, ...]


def target(arch: str, texts: Iterable[str]) -> str:
    """What the cubin of an architecture is compiled for. texts: a source and its headers."""
    specific, macro = _SPECIFIC.get(arch, (arch, ""))
    return specific if any(macro in text for text in texts) else arch


def of(archs: Collection[str], texts: Iterable[str]) -> tuple[Family, ...]:
    """The architectures, or targets, in families. texts: a source and its headers, whose conditions split generations.

    A family's first member need not be among `archs`: the same PTX is compiled for every choice of architectures.
    """
    conditions = sorted({condition for text in texts for condition in _CONDITION.findall(text)})
    members: dict[tuple[object, ...], list[str]] = {}
    for arch, family in _FAMILIES.items():
        value = 10 * int(arch.removeprefix("sm_").removesuffix("a"))
        holding = tuple(_HOLDS[comparison](value, int(number)) for comparison, number in conditions)
        members.setdefault((family, holding), []).append(arch)
    families = (Family(row[0], tuple(arch for arch in row if arch in archs)) for row in members.values())
    return tuple(family for family in families if family.archs)


def serving(archs: Collection[str], texts: Iterable[str]) -> dict[str, str]:
    """Whose machine code runs each architecture, or target: its own, or that of another one. texts: as for `of`."""
    serves = {arch: arch for arch in archs}
    for family in of(archs, texts):
        oldest: dict[str, str] = {}
        for arch in family.archs:
            if arch.removeprefix("sm_").isdecimal() and arch not in _EMBEDDED:
                serves[arch] = oldest.setdefault(arch[:-1], arch)
    return serves


def retargeted(ptx: bytes, arch: str) -> bytes:
    """PTX of a family's first member, for another member."""
    return _TARGET.sub(f".target {arch}", ptx.decode(), count=1).encode()
