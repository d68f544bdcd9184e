"""Device code compiled by g++ and run on the CPU: cuda.h of the package is the language, files.h holds tensors."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

from onnxopt.verification.emulation import gcc

_FILES = Path(__file__).with_name("emulation")
_COMPILE = ("g++", *gcc.FLAGS, f"-I{_FILES}")


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
    header.write_text('#include "cuda.h"\n#include "files.h"\n')
    subprocess.run([*_COMPILE, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return folder
