"""The GPU architectures that onnxopt compiles for: a row each, oldest first, and the driver that each needs.

A new architecture has a family of its own, unless the machine code of its kernels proves equal (codegen/families.py).
Sources of the others: CUDA's release notes, which first name an architecture, and their table of toolkit drivers; which
are embedded: CUDA's programming guide, binary compatibility.
"""

from __future__ import annotations

from typing import NamedTuple


class Architecture(NamedTuple):
    """name: as sm_90. family: whose PTX serves it where no header tells the two apart. cuda: the CUDA release that a
    driver must support.

    target, macro: for code that later architectures drop, the target of this architecture alone, as sm_90a, and the
    macro that tells such code. embedded: of a system on a chip, which runs no machine code of other GPUs, nor they its.
    """

    name: str
    family: str
    cuda: str
    target: str = ""
    macro: str = ""
    embedded: bool = False


ARCHITECTURES = (
    Architecture("sm_75", "sm_75", "12.0"),
    Architecture("sm_80", "sm_80", "12.0"),
    Architecture("sm_86", "sm_80", "12.0"),
    Architecture("sm_87", "sm_80", "12.0", embedded=True),
    Architecture("sm_89", "sm_80", "12.0"),
    Architecture("sm_90", "sm_90", "12.0", "sm_90a", "__CUDA_ARCH_FEAT_SM90_ALL"),
    Architecture("sm_100", "sm_100", "12.8"),
    Architecture("sm_120", "sm_100", "12.8"),
)
ARCHS = tuple(architecture.name for architecture in ARCHITECTURES)
# The first driver for Linux on x86-64 that supports a CUDA release. One for 12.0 loads the cubins of every CUDA 12.
DRIVERS = {"12.0": "525.60.13", "12.8": "570.26"}


def cuda_of(arch: str) -> str:
    """The CUDA release that a driver must support to run an architecture's code."""
    return next(architecture.cuda for architecture in ARCHITECTURES if architecture.name == arch)
