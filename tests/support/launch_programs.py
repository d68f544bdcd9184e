"""Programs that print how the library would launch kernels: emulation/NAME_launches.cc with sources of custom_ops."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@functools.cache
def launch_program(name: str, sources: tuple[str, ...]) -> Path:
    """The program of emulation/`name`_launches.cc. sources: files of custom_ops, without .cc."""
    folder = Path(_folder().name)
    custom_ops, dependencies = REPOSITORY / "custom_ops", REPOSITORY / "build" / "deps"
    subprocess.run([custom_ops / "fetch_headers.sh", dependencies], check=True, capture_output=True)
    include = dependencies / "include"
    folders = (include, include / "onnxruntime", custom_ops, REPOSITORY / "cuda_kernels")
    command = ["g++", "-std=c++17", "-O0", "-DORT_API_MANUAL_INIT", "-DJSON_USE_IMPLICIT_CONVERSIONS=0"]
    command += [f"-I{p}" for p in folders] + ["-o", str(folder / name)]
    command += [str(Path(__file__).with_name("emulation") / f"{name}_launches.cc")]
    subprocess.run([*command, *(str(custom_ops / f"{source}.cc") for source in sources)], check=True)
    return folder / name


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """As long as this process lives."""
    return tempfile.TemporaryDirectory()
