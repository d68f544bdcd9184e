"""Device code compiled by g++ and run on the CPU: emulation/cuda.h stands for the language, files.h holds tensors."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from onnxopt import paths

_EMULATION = Path(__file__).with_name("emulation")
_COMPILE = ("g++", "-std=c++20", "-O1", "-w", "-pthread", f"-I{_EMULATION}", f"-I{paths.cuda_kernels()}")


def run(folder: Path, main: str) -> None:
    """Compile the text of a main.cc and run it in the folder. CalledProcessError unless it ends with 0."""
    (folder / "main.cc").write_text(main)
    headers = Path(_precompiled().name) / "headers.h"
    subprocess.run([*_COMPILE, "-include", headers, "-o", "run", "main.cc"], cwd=folder, check=True)
    subprocess.run(["./run"], cwd=folder, check=True, timeout=300)


@functools.cache
def _precompiled() -> tempfile.TemporaryDirectory[str]:
    """The folder, as long as this process lives, of the headers that every test includes: most of what g++ reads."""
    folder = tempfile.TemporaryDirectory()
    header = Path(folder.name) / "headers.h"
    header.write_text('#include "cuda.h"\n#include "ptx.h"\n#include "files.h"\n')
    subprocess.run([*_COMPILE, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return folder
