"""The library for 64-bit ARM, run by qemu-user in ONNX Runtime's own build for it: `make aarch64`.

Skips where the library, the cross compiler, qemu or ONNX Runtime's wheel is missing, and says what brings it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import onnx
import onnx.parser
import pytest

import onnxopt
from onnxopt.codegen import sealed_json
from tests.support.small_models import HEADER

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build" / "custom_ops_aarch64" / "lib" / "libonnxopt_ops.so"
HEADERS = ROOT / "build" / "deps" / "include" / "onnxruntime"
RUNTIME = ROOT / "build" / "deps" / "aarch64"  # holds the wheel of ONNX Runtime
COMPILER, SYSTEM = "aarch64-linux-gnu-g++", Path("/usr/aarch64-linux-gnu")
# ONNX Runtime reads the kind of CPU here, and crashes on that of an x86; qemu before 8 shows the file of its host.
CPUINFO = """processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
# Elementwise with transcendental functions, integers, a row reduction, and a product's epilogue.
MODEL = """
g (float[n, 96] x) => (float[n, 96] y, float[n, 96] z, int64[n, 96] k) {
  a = Erf(x)  b = Tanh(a)  c = Mul(b, x)  y = Sigmoid(c)
  d = Softmax <axis = -1> (y)  e = Exp(d)  z = Mul(e, x)
  f = Floor(x)  g = Cast <to = 7> (f)  h = Mul(g, g)  k = Sub(h, g)
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs examples/cpp on an emulated CPU; the artifact's path follows."""
    if not LIBRARY.is_file():
        pytest.skip("no library for 64-bit ARM; run: make aarch64")
    if missing := [name for name in (COMPILER, "qemu-aarch64") if shutil.which(name) is None]:
        pytest.skip(f"no {missing[0]}; run: apt-get install g++-aarch64-linux-gnu qemu-user")
    wheels = sorted(RUNTIME.glob("onnxruntime-*_aarch64.whl"))
    if not wheels or not HEADERS.is_dir():
        pytest.skip("no ONNX Runtime for 64-bit ARM; run: make aarch64")
    folder = tmp_path_factory.mktemp("aarch64")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        (name,) = [n for n in wheel.namelist() if "/capi/libonnxruntime.so" in n]
        (folder / "libonnxruntime.so.1").write_bytes(wheel.read(name))
    source, path = ROOT / "examples" / "cpp" / "main.cc", folder / "run"
    include = ["-isystem", HEADERS, "-I", ROOT / "onnxopt" / "include"]
    link = [f"-L{folder}", "-l:libonnxruntime.so.1", "-ldl", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([COMPILER, "-std=c++17", "-O1", *include, source, "-o", path, *link], check=True)
    root = folder / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "cpuinfo").write_text(CPUINFO)
    for entry in SYSTEM.iterdir():
        (root / entry.name).symlink_to(entry)
    return ["qemu-aarch64", "-L", str(root), str(path)]


def run(program: list[str], artifact: Path, *inputs: str) -> dict[str, float]:
    """The largest difference between the library's results and ONNX Runtime's own, by output."""
    shutil.copy(LIBRARY, artifact / "lib")
    done = subprocess.run([*program, artifact, *inputs], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {name: float(number) for name, number in re.findall(r"(\w+) \[.*max difference (\S+)", done.stdout)}


def optimized(folder: Path, model: str, **changed: str) -> Path:
    """An artifact whose kernels all run on the CPU, whether they pay or not. changed: operators in place of others."""
    onnx.save(onnx.parser.parse_model(HEADER + model), folder / "model.onnx")
    artifact = onnxopt.optimize(folder / "model.onnx", folder / "artifact", archs=(), verify=False).path
    described = json.loads((artifact / "lib" / "kernels.json").read_text("utf-8"))
    del described["sha256"]
    for kernel in described["kernels"]:
        kernel["cpu"] = True
        for step in kernel.get("code", ()):
            step["op"] = changed.get(step["op"], step["op"])
    (artifact / "lib" / "kernels.json").write_text(sealed_json.seal(described))
    return artifact


def test_kernels_compute_what_onnx_runtime_does(program: list[str], tmp_path: Path) -> None:
    found = run(program, optimized(tmp_path, MODEL), "x=33x96")
    assert found.keys() == {"y", "z", "k"}
    assert max(found.values()) < 1e-6


def test_the_library_is_what_runs(program: list[str], tmp_path: Path) -> None:
    """A kernel that computes something else than its function shows in the result."""
    small = "g (float[n] x) => (float[n] y) { a = Tanh(x)  y = Mul(a, x) }"
    assert run(program, optimized(tmp_path, small, tanh="cos"), "x=5")["y"] > 0.1
