"""What the tests marked `gpu` need on a machine with a GPU and its own Python: packages and the library, in one folder.

    python -m tests.support.gpu_bundle build/gpu-tests [--python 3.12]

Such a machine has ONNX Runtime with its CUDA provider, NumPy, onnx, onnxscript, pytest, click, jinja2, rich, sympy,
networkx and CUDA's run-time compiler (torch brings it); the folder brings the rest. Copy it there inside a checkout and
run

    bash build/gpu-tests/run

which unpacks it beside itself, puts the library in its place, and runs `pytest -m gpu`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from onnxopt import paths

# What a machine for torch does not have. nvidia-nvfatbin is the writer of fatbins that cuda-bindings 13 loads.
PACKAGES = (
    "annotated-types",
    "nvidia-nvfatbin",
    "onnx-ir>=1.1,<2",
    "pydantic>=2.9,<3",
    "pydantic-core",
    "typing-inspection",
)
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_12_x86_64")
RUN = """#!/usr/bin/env bash
# Runs the tests marked gpu of the checkout that this folder lies in. Options are pytest's.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
python=${PYTHON:-python3}
site=$here/site
if [ ! -d "$site" ]; then
  mkdir -p "$site"
  for wheel in "$here"/*.whl; do "$python" -m zipfile -e "$wheel" "$site"; done
fi
mkdir -p onnxopt/lib
xz -dc "$here/libonnxopt_ops.so.xz" > onnxopt/lib/libonnxopt_ops.so
nvfatbin=$(dirname "$(find "$site/nvidia" -name 'libnvfatbin.so*' | head -n 1)")
export PYTHONPATH=$PWD:$site${PYTHONPATH:+:$PYTHONPATH} LD_LIBRARY_PATH=$nvfatbin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
alone=tests/library/test_faults_gpu.py  # it fills the GPU's memory, so nothing runs beside it
mapfile -t files < <(grep -rlE 'mark\\.gpu' --include='test_*.py' tests | grep -vx "$alone")
failed=0
"$python" -m pytest -m gpu -p no:cacheprovider "$@" "${files[@]}" || failed=$?
"$python" -m pytest -m gpu -p no:cacheprovider -q "$alone" || failed=$?
exit "$failed"
"""


def make(folder: Path, python: str) -> None:
    """Write the bundle for this version of Python. CalledProcessError where a package cannot be had."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    requirements = list(PACKAGES)
    platforms = [f"--platform={name}" for name in _PLATFORMS]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms,
         f"--python-version={python}", "--implementation=cp", f"--dest={folder}", *_matching(requirements)],
        check=True,
    )  # fmt: skip
    packed = subprocess.run(["xz", "-9e", "-c", str(paths.library())], check=True, stdout=subprocess.PIPE).stdout
    (folder / "libonnxopt_ops.so.xz").write_bytes(packed)
    (folder / "run").write_text(RUN)
    (folder / "run").chmod(0o755)


def _matching(requirements: list[str]) -> list[str]:
    """The requirements with pydantic-core at the version that pydantic asks for: its two packages belong together."""
    pins = {name: metadata.version(name) for name in ("pydantic", "pydantic-core")}
    names = [requirement.partition(">")[0] for requirement in requirements]
    return [f"{name}=={pins[name]}" if name in pins else whole for name, whole in zip(names, requirements)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="version of Python on the machine with the GPU")
    arguments = parser.parse_args()
    make(arguments.folder, arguments.python)
    size = sum(path.stat().st_size for path in arguments.folder.iterdir())
    print(f"{arguments.folder}: {size / 1e6:.1f} MB; run it there with: bash {arguments.folder}/run")


if __name__ == "__main__":
    main()
