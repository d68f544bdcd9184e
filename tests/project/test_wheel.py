"""The wheel: which systems its library runs on, and that it works without a compiler and without the source tree."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / ".ci" / "check_wheel"
# What manylinux_2_28 has: glibc 2.28, and libstdc++ and libgcc of GCC 8.
LIMITS = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
# Libraries that every such system has.
NEEDED = re.compile(r"lib(c|m|dl|gcc_s|stdc\+\+)\.so\.\d|ld-linux-(x86-64|aarch64)\.so\.\d")
TAG = f"manylinux_2_28_{platform.machine()}"


def read(library: Path, *options: str) -> str:
    return subprocess.run(["readelf", *options, library], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", ["onnxopt/lib", "build/custom_ops_aarch64/lib"])
def test_the_library_asks_for_no_newer_system(path: str) -> None:
    library = ROOT / path / "libonnxopt_ops.so"
    if not library.is_file():
        pytest.skip("not built; run: make build, or for 64-bit ARM: make aarch64")
    versions = set(re.findall(r"Name: ([A-Z]+)_([\d.]+)", read(library, "--version-info", "--wide")))
    assert {name for name, _ in versions} >= {"GLIBC", "GLIBCXX", "CXXABI"}
    newer = {f"{name}_{v}" for name, v in versions if tuple(map(int, v.split("."))) > LIMITS[name]}
    assert not newer, "see custom_ops/support/portability.h"
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", read(library, "--dynamic", "--wide"))
    assert needed
    assert not [name for name in needed if not NEEDED.fullmatch(name)]


def test_the_library_exports_one_function(library: Path) -> None:
    symbols = re.findall(r"(?:GLOBAL|WEAK)\s+DEFAULT\s+\d+ (\S+)", read(library, "--dyn-syms", "--wide"))
    assert symbols == ["RegisterCustomOps"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    """As `make wheel` builds it, and everything on the way in a folder of the test's own."""
    folder = tmp_path_factory.mktemp("wheel")
    steps = ["egg_info", "--egg-base", folder, "build", "--build-base", folder]
    steps += ["bdist_wheel", "--plat-name", TAG, "--bdist-dir", folder / "bdist", "--dist-dir", folder]
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", *map(str, steps)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def check(wheel: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("auditwheel", reason='auditwheel is not installed; run: pip install -e ".[dev]"')
    return subprocess.run([CHECK, sys.executable, wheel], capture_output=True, text=True)


def test_auditwheel_agrees_with_the_tag(wheel: Path) -> None:
    assert wheel.name.endswith(f"-py3-none-{TAG}.whl")
    done = check(wheel)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(platform.libc_ver()[1] < "2.33", reason="this system has none of the newer symbols")
def test_a_library_of_newer_systems_is_found(wheel: Path, tmp_path: Path) -> None:
    """A wheel with the same name, whose library calls fstat as glibc 2.33 has it."""
    (tmp_path / "newer.cc").write_text(
        "#include <sys/stat.h>\nbool Exists(int file) { struct stat s{}; return fstat(file, &s) == 0; }\n"
    )
    newer = tmp_path / "newer.so"
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "newer.cc", "-o", newer], check=True)
    changed = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(changed, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, newer.read_bytes() if entry.filename.endswith(".so") else old.read(entry))
    done = check(changed)
    assert done.returncode == 1
    assert f"and its name promises {TAG}" in done.stderr


def test_a_name_without_a_promise_is_refused(wheel: Path, tmp_path: Path) -> None:
    other = shutil.copy(wheel, tmp_path / wheel.name.replace("manylinux_2_28", "linux"))
    done = check(Path(other))
    assert done.returncode == 1
    assert "no tag of manylinux_2_28" in done.stderr


def test_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """Unpacked beside the packages of this environment; `make try-wheel` installs it with pip, and them too."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    env = {**os.environ, "PATH": str(tmp_path / "empty"), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "try_wheel.py"], capture_output=True, text=True, env=env, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("a model was optimized, verified and run\n")
