"""Device code compiled by g++ and run on the CPU: cuda.h of the package is the language, files.h holds tensors."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from onnxopt import paths
from onnxopt.verification.emulation import gcc
from tests.support import builds

# Links in a quarter of the time where it is installed (Debian: binutils, or binutils-gold).
LINKER = ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()
_FILES = Path(__file__).parent


def run(folder: Path, main: str, optimization: str = "-O0") -> None:
    """Compile the text of a main.cc and run it in the folder. CalledProcessError unless it ends with 0.

    optimization: -O0 compiles fastest; what -Og makes of a text that computes for seconds takes half as long.
    """
    (folder / "main.cc").write_text(main)
    command = ["g++", *gcc.FLAGS, *options(optimization), "-o", "run", "main.cc", _tensors()]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run(["./run"], cwd=folder, check=True, timeout=300)


def options(optimization: str) -> tuple[str, ...]:
    """For g++ behind its usual options: the headers of all kernels, most of what it reads, precompiled."""
    return (optimization, f"-I{_FILES}", "-include", str(_precompiled(optimization)), *LINKER)


@functools.cache
def made(optimization: str) -> Path:
    """A folder for what is compiled so and several tests use; it lives as long as this process."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def _tensors() -> Path:
    """The object file of what files.h declares."""

    def build(folder: Path) -> None:
        command = ["g++", *gcc.FLAGS, "-O0", "-c", _FILES / "files.cc", "-o", folder / "files.o"]
        subprocess.run(command, check=True)

    return builds.once("files", build) / "files.o"


@functools.cache
def _precompiled(optimization: str) -> Path:
    kernels = paths.cuda_kernels()
    names = ["cuda.h", "matrix_words.h", "files.h"]
    names += sorted(str(path.relative_to(kernels)) for path in kernels.glob("*/*.cuh") if _is_emulated(path))

    def build(folder: Path) -> None:
        header = folder / "headers.h"
        header.write_text("".join(f'#include "{name}"\n' for name in names))
        command = ["g++", *gcc.FLAGS, optimization, f"-I{_FILES}", "-x", "c++-header", header, "-o", f"{header}.gch"]
        subprocess.run(command, check=True)

    return builds.once(f"headers{optimization}", build) / "headers.h"


def _is_emulated(header: Path) -> bool:
    """Nothing stands in for the products of Hopper's warpgroups, nor for the PTX of device/ptx.cuh."""
    return header.parent.name != "device" and not header.name.startswith(("hopper", "large_products"))
