"""Builds the programs that read mutated files, in one of two ways.

With the library's sources under AddressSanitizer and UBSan, in build/fuzz/: that takes ten minutes of a core. Or with
the object files that `make build` left, in build/linked/: that takes seconds. Then a page that nothing may touch lies
behind every tensor, and AddressSanitizer sees leaks, what is freed twice, and what memcpy does beyond a block.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.emulation import library_programs

ROOT = Path(__file__).resolve().parents[3]
_FOLDER = Path(__file__).parent


def build(compiler: str = "g++", *, sanitized: bool = True, libfuzzer: bool = False) -> Path:
    """The folder of the programs and of the stand-ins for cuBLASLt and cuDNN; only what changed is compiled.

    sanitized: the library's sources are, else its object files are linked. libfuzzer: the target for libFuzzer instead,
    which needs Clang. CalledProcessError where something does not build.
    """
    folder = ROOT / "build" / ("libfuzzer" if libfuzzer else "fuzz" if sanitized else "linked")
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:  # tests in several processes ask for the same programs
        fcntl.flock(lock, fcntl.LOCK_EX)
        headers = ROOT / "build" / "deps"
        subprocess.run([ROOT / "custom_ops" / "fetch_headers.sh", headers], check=True, stdout=subprocess.DEVNULL)
        options = {
            "CMAKE_BUILD_TYPE": "None",
            "CMAKE_MAKE_PROGRAM": _tool("ninja"),
            "CMAKE_CXX_COMPILER": compiler,
            "ONNXOPT_INCLUDE_DIR": f"{headers}/include",
            "ONNXOPT_LIBFUZZER": "ON" if libfuzzer else "OFF",
            "ONNXOPT_OBJECTS": "" if sanitized else ";".join(_objects()),
        }
        _run_cmake(folder, options)
    return folder


def _objects() -> list[str]:
    return [path for path in library_programs.object_files() if not path.endswith("/register.cc.o")]


def _run_cmake(folder: Path, options: dict[str, str]) -> None:
    cmake = _tool("cmake")
    configure = [cmake, "-S", _FOLDER, "-B", folder, "-G", "Ninja", *(f"-D{k}={v}" for k, v in options.items())]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", folder, "--", "--quiet"], check=True)


_CACHES = tempfile.TemporaryDirectory(prefix="onnxopt-caches-")


def environment() -> dict[str, str]:
    """Variables for the programs: what is too large is out of memory, a report ends the process, caches are empty."""
    asan = "exitcode=99:allocator_may_return_null=1:max_allocation_size_mb=2048:detect_leaks=0"
    variables = {**os.environ, "XDG_CACHE_HOME": _CACHES.name}  # what a fake cuBLASLt chose would stay in the user's
    return {**variables, "ASAN_OPTIONS": asan, "UBSAN_OPTIONS": "print_stacktrace=0:silence_unsigned_overflow=1"}


def _tool(name: str) -> str:
    """The one installed beside this Python, else the system's. FileNotFoundError where there is none."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} was not found; install it with: pip install {name}")
    return found
