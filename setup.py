"""The one build step that setup.cfg cannot express: CMake compiles custom_ops/ into onnxopt/lib/libonnxopt_ops.so.

`python setup.py build_ops` runs that step alone, in the source tree, which is what `make build` calls. A wheel for
another machine (`make wheel MACHINE=aarch64`) gets a library that a cross compiler made; the source tree keeps its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.errors import ExecError

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "custom_ops"
LIBRARY = "libonnxopt_ops.so"
HERE = platform.machine()
TOOLCHAINS = {"aarch64": "aarch64.cmake"}  # the machines that a cross compiler is set up for


class BuildOps(Command):
    """Configure and build custom_ops/ with CMake and Ninja; a second run rebuilds only what changed."""

    description = "build libonnxopt_ops.so with CMake"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = [
        ("strict", None, "treat warnings as errors; the library stays in build/"),
        ("machine=", None, "x86_64 or aarch64, by default this one; the library of another one stays in build/"),
    ]
    boolean_options: ClassVar = ["strict"]

    def initialize_options(self) -> None:
        self.strict = False
        self.machine = HERE

    def finalize_options(self) -> None:
        """No option depends on another."""

    def run(self) -> None:
        crossing = self.machine != HERE
        name = "_".join(["custom_ops", *["strict"] * self.strict, *[self.machine] * crossing])
        build = ROOT / "build" / name
        library = (build / "lib" if self.strict or crossing else ROOT / "onnxopt" / "lib") / LIBRARY
        with _one_at_a_time(build):
            _forget_other_tree(build)
            cmake = _tool("cmake")
            _call(
                cmake,
                *("-S", str(SOURCE), "-B", str(build), "-G", "Ninja"),
                f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}",
                "-DCMAKE_BUILD_TYPE=Release",
                f"-DCMAKE_COMPILE_WARNING_AS_ERROR={'ON' if self.strict else 'OFF'}",
                "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                f"-DONNXOPT_LIBRARY_DIR={library.parent}",
                *([f"-DCMAKE_TOOLCHAIN_FILE={_toolchain(self.machine)}"] if crossing else []),
                show=False,
            )
            _call(cmake, "--build", str(build), "--", "--quiet")
        if not library.is_file():
            raise ExecError(f"CMake finished, but {library} is not there")


class BuildPy(build_py):
    """build_py that builds the library first, so that package data finds it."""

    def run(self) -> None:
        # As "linux_aarch64": what the wheel is for decides which library goes into it.
        wheel = self.get_finalized_command("bdist_wheel")
        assert isinstance(wheel, PlatformWheel)
        machine = next((name for name in TOOLCHAINS if str(wheel.plat_name).endswith(name)), HERE)
        build_ops = self.get_finalized_command("build_ops")
        assert isinstance(build_ops, BuildOps)
        build_ops.machine = machine
        self.run_command("build_ops")
        super().run()
        if machine != HERE:
            target = Path(self.build_lib) / "onnxopt" / "lib"
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / "build" / f"custom_ops_{machine}" / "lib" / LIBRARY, target)


class PlatformWheel(bdist_wheel):
    """A wheel for this platform and any Python 3: the library links neither to Python nor to ONNX Runtime."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


@contextlib.contextmanager
def _one_at_a_time(build: Path) -> Iterator[None]:
    """Wait until no other process builds in the folder, as pip does while `make build` does."""
    build.parent.mkdir(exist_ok=True)
    with open(build.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _forget_other_tree(build: Path) -> None:
    """Drop a CMake cache written for another source tree: a copied tree brings the cache of its original."""
    cache = build / "CMakeCache.txt"
    if cache.is_file() and f"CMAKE_HOME_DIRECTORY:INTERNAL={SOURCE}\n" not in cache.read_text():
        shutil.rmtree(build)


def _toolchain(machine: str) -> Path:
    """CMake's description of the cross compiler for a machine."""
    if machine not in TOOLCHAINS:
        raise ExecError(
            f"this is {HERE}, and there is no cross compiler for {machine}; it knows {', '.join(TOOLCHAINS)}"
        )
    return SOURCE / TOOLCHAINS[machine]


def _tool(name: str) -> str:
    """Path of a build tool: the one installed beside this Python (from its PyPI package), else the system's."""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    path = beside or shutil.which(name)
    if path is None:
        raise ExecError(f"{name} was not found; install it with: pip install {name}")
    return path


def _call(*command: str, show: bool = True) -> None:
    """Run a command; with `show` unset its standard output is dropped, its errors are not.

    Without MAKEFLAGS, by which Ninja would join the jobs of make: Python closes the file descriptors that this needs.
    """
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    try:
        subprocess.run(command, check=True, env=environment, stdout=None if show else subprocess.DEVNULL)
    except subprocess.CalledProcessError as error:
        raise ExecError(f"{Path(command[0]).name} failed with exit code {error.returncode}; see above") from error


setup(
    packages=[*find_packages(str(ROOT), include=["onnxopt", "onnxopt.*"]), "onnxopt.cuda_kernels"],
    distclass=PlatformDistribution,
    cmdclass={"build_ops": BuildOps, "build_py": BuildPy, "bdist_wheel": PlatformWheel},
)
