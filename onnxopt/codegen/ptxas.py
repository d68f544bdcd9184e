"""ptxas: PTX to the machine code of one architecture, by the assembler of the wheel nvidia-cuda-nvcc-cu12.

NVRTC holds the same assembler, but takes CUDA source only. Without the wheel NVRTC does both, for each architecture
anew, which takes nearly twice as long.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import BinaryIO

from onnxopt.children import ChildEnded, Children
from onnxopt.errors import CompileError

OPTIONS = ("--verbose",)
_WHEEL = "nvidia-cuda-nvcc-cu12"


def installed(release: tuple[int, int]) -> Path | None:
    """The ptxas of the installed wheel; None without one, or where it is of another CUDA release than NVRTC."""
    try:
        version = importlib.metadata.version(_WHEEL)
    except importlib.metadata.PackageNotFoundError:
        return None
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec is not None else None
    programs = (Path(folder, "cuda_nvcc", "bin", "ptxas") for folder in folders or ())
    same = version.split(".")[:2] == [str(number) for number in release]
    return next((path for path in programs if same and os.access(path, os.X_OK)), None)


def assemble(program: Path, children: Children, ptx: bytes, arch: str) -> tuple[bytes, str]:
    """The cubin of PTX, and the report of ptxas. CompileError with its messages where it refuses the PTX.

    Input and output are files in memory, so that nothing is left behind where this process is killed.
    """
    with _memory_file("ptx", ptx.rstrip(b"\0")) as source, _memory_file("cubin", b"") as binary:
        paths = [f"/proc/self/fd/{file.fileno()}" for file in (source, binary)]
        command = [str(program), f"-arch={arch}", *OPTIONS, paths[0], "-o", paths[1]]
        try:
            log = children.run(command, (source.fileno(), binary.fileno()))
        except ChildEnded as error:
            raise CompileError(f"ptxas does not assemble for {arch} ({error})") from error
        binary.seek(0)
        return binary.read(), log


def _memory_file(name: str, content: bytes) -> BinaryIO:
    file = os.fdopen(os.memfd_create(name), "w+b")
    file.write(content)
    file.flush()
    return file
