"""The compiler's report: registers, stack and spills of each entry point, as ptxas prints them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from onnxopt.fusion.region import Kernel

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclasses.dataclass(frozen=True)
class Usage:
    """The resources of one entry point on one architecture. stack: in bytes. spilled: bytes of spilled registers."""

    registers: int
    stack: int
    spilled: int


def parse(log: str) -> dict[str, Usage]:
    """Entry point -> its usage, from the log of ptxas --verbose."""
    usage: dict[str, Usage] = {}
    name, stack, spilled = "", 0, 0
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            name, stack, spilled = entry[1], 0, 0
        elif (spills := _SPILLS.search(line)) and name:
            stack, spilled = int(spills[1]), int(spills[2])
        elif (registers := _REGISTERS.search(line)) and name:
            usage[name] = Usage(int(registers[1]), stack, spilled)
            name = ""
    return usage


def spilling(kernels: Iterable[Kernel], usage: Mapping[str, Mapping[str, Usage]]) -> set[frozenset[str]]:
    """The node names of every region that can be split and whose kernel spills on some architecture.

    usage: architecture -> entry point -> its resources.
    """
    spilled = {symbol for rows in usage.values() for symbol, u in rows.items() if u.spilled}
    return {
        frozenset(site.replaced)
        for kernel in kernels
        if kernel.kind.splits and any(v.symbol in spilled for v in kernel.variants)
        for site in kernel.sites
    }
