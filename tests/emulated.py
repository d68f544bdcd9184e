"""Device code compiled by g++ and run on the CPU: emulation/cuda.h stands for the language, files.h holds tensors."""

from __future__ import annotations

import subprocess
from pathlib import Path

from onnxopt import paths

_EMULATION = Path(__file__).with_name("emulation")
_OPTIONS = ("-std=c++20", "-O1", "-w", "-pthread", f"-I{_EMULATION}", f"-I{paths.cuda_kernels()}")


def run(folder: Path, main: str) -> None:
    """Compile the text of a main.cc and run it in the folder. CalledProcessError unless it ends with 0."""
    (folder / "main.cc").write_text(main)
    subprocess.run(["g++", *_OPTIONS, "-o", "run", "main.cc"], cwd=folder, check=True)
    subprocess.run(["./run"], cwd=folder, check=True, timeout=300)
