"""Programs that drive the library's own code: one source file, linked with the object files that `make build` left."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnxopt import paths
from onnxopt.fusion.core_growth import CoreKind
from onnxopt.kinds import KINDS
from tests.support import builds
from tests.support.emulation import emulated

ROOT = Path(__file__).resolve().parents[3]
_BUILD = ROOT / "build" / "custom_ops"


def compiled(main: Path, made: Path, *included: Path) -> Path:
    """Compile a source file into the program `made`; what it defines itself is not taken from the library."""
    headers = [word for header in (_precompiled(), *included) for word in ("-include", header)]
    subprocess.run(
        [*_command(), *headers, *emulated.LINKER, "-o", made, main, _archive(), "-ldl", "-lpthread"], check=True
    )
    return made


@functools.cache
def launch_program() -> Path:
    """The program of kernel_launches.cc, which prints how the library would launch a kernel."""

    def build(folder: Path) -> None:
        header = folder / "cores.h"
        header.write_text("".join(_cores()))
        compiled(Path(__file__).with_name("kernel_launches.cc"), folder / "kernel_launches", header)

    return builds.once("kernel_launches", build) / "kernel_launches"


def _cores() -> Iterator[str]:
    """The kinds of cores on images, by the naming convention of registry/generated/kinds.cc."""
    cores = [kind for kind in KINDS if isinstance(kind, CoreKind) and kind.meaning.RESULT]
    yield from (f'#include "cuda/{kind.name}.h"\n' for kind in cores)
    yield "#define CORES"
    for kind in cores:
        last = kind.meaning.RESULT.split()[-1]
        channels = "given.Size(3)" if last == "C" else f"r.{last}"
        yield f" CORE({kind.name}, {kind.meaning.__name__}, {channels})"
    yield "\n"


@functools.cache
def emulation_program(name: str) -> Path:
    """The program of emulation/`name`.cc."""
    source = Path(__file__).with_name(f"{name}.cc")
    return builds.once(name, lambda folder: compiled(source, folder / name)) / name


@functools.cache
def _precompiled() -> Path:
    """The headers of nearly all programs, which are most of what g++ reads."""

    def build(folder: Path) -> None:
        header = folder / "headers.h"
        header.write_text(
            '#include <cstdio>\n#include <cstdlib>\n#include <fstream>\n#include "kernel_file/fields.h"\n'
        )
        subprocess.run([*_command(), "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)

    return builds.once("library_headers", build) / "headers.h"


def _command() -> list[str]:
    headers = _headers()
    includes = (ROOT / "custom_ops", paths.cuda_kernels(), headers, headers / "onnxruntime")
    command = ["g++", "-std=c++17", "-O0", "-w", "-DORT_API_MANUAL_INIT", "-DJSON_USE_IMPLICIT_CONVERSIONS=0"]
    return command + [f"-I{path}" for path in includes]


@functools.cache
def _headers() -> Path:
    """Those that the library is built with."""
    folder = ROOT / "build" / "deps"
    subprocess.run([ROOT / "custom_ops" / "fetch_headers.sh", folder], check=True, capture_output=True)
    return folder / "include"


@functools.cache
def _archive() -> Path:
    """The library's object files, of which the linker takes those that define what is still missing."""
    archive = Path(_folder().name) / "library.a"
    subprocess.run(["ar", "rcsT", archive, *object_files()], check=True)
    return archive


def object_files() -> list[str]:
    """Paths of the library's object files. FileNotFoundError where it was not built."""
    commands = _BUILD / "compile_commands.json"
    if not commands.is_file():
        raise FileNotFoundError(f"{commands.relative_to(ROOT)} is not there; run: make build")
    return [str(_BUILD / row["output"]) for row in json.loads(commands.read_text("utf-8"))]


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """As long as this process lives."""
    return tempfile.TemporaryDirectory()
