"""Random graphs in groups, one process each: packed without a GPU, and run on the machine with one.

The kernels travel as source, which is a tenth of the size of their code, and nvcc compiles them where they run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import os
import pathlib
import pickle
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from onnxopt.codegen import sealed_json

_LIBRARY = "libonnxopt_ops.so"


@contextlib.contextmanager
def packing(archive: pathlib.Path) -> Iterator[pathlib.Path]:
    """A folder for groups, with the library and the kernels' headers in it, that ends as this .tar.xz."""
    from onnxopt import paths
    from onnxopt.artifact.folder import write_library

    archive.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name) / "groups"
        (root / "include").mkdir(parents=True)
        write_library(root / "lib", "{}", None)
        for header in paths.cuda_kernels().rglob("*.*h"):
            copy = root / "include" / header.relative_to(paths.cuda_kernels())
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(header.read_text())
        yield root
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            packed.add(root, root.name)
    print(f"{archive}: {archive.stat().st_size / 1e6:.2f} MB")


def add(group: pathlib.Path, kernels: Iterable[Any], graphs: object, *, archs: Sequence[str] = ()) -> None:
    """Write a group. graphs: what its process unpickles. archs: compile here for these, not where it runs."""
    from onnxopt.codegen import generate, kernels_json, nvrtc

    kernels = tuple(kernels)
    source, fatbin = generate.generate(kernels), None
    group.mkdir()
    if archs:
        fatbin = nvrtc.compile_cuda(source, list(archs))
        (group / "kernels.fatbin").write_bytes(fatbin)
    else:
        (group / "kernels.cu").write_text(source)
    (group / "kernels.json").write_text(kernels_json.to_json(kernels, fatbin))
    (group / "graphs.pickle").write_bytes(pickle.dumps(graphs))


def opened(root: pathlib.Path, name: str, device: str) -> tuple[pathlib.Path, str, Any]:
    """A group's folder, its library, whose kernels are compiled now if they are not, and its graphs."""
    group = root / name
    library = group / _LIBRARY
    library.write_bytes((root / "lib" / _LIBRARY).read_bytes())
    if device == "cuda" and not (group / "kernels.fatbin").is_file():
        _compile(root, group)
    return group, str(library), pickle.loads((group / "graphs.pickle").read_bytes())


def _compile(root: pathlib.Path, group: pathlib.Path) -> None:
    """The fatbin of a group, for the GPU of the machine at hand."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    arch = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0].replace(".", "")
    target = f"arch=compute_{arch},code=sm_{arch}"
    options = ["-std=c++17", "--expt-relaxed-constexpr", "-w", f"-I{root / 'include'}", "-gencode", target]
    fatbin = group / "kernels.fatbin"
    subprocess.run(["nvcc", *options, "-fatbin", "-o", str(fatbin), str(group / "kernels.cu")], check=True)
    described = sealed_json.unseal((group / "kernels.json").read_text())
    data = fatbin.read_bytes()
    described["fatbin"] = {"file": fatbin.name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (group / "kernels.json").write_text(sealed_json.seal(described))


def run(
    archive: pathlib.Path,
    module: str,
    device: str,
    only: Sequence[str],
    out: pathlib.Path | None,
    summary: Callable[[list[dict[str, Any]]], str],
) -> int:
    """Run `python -m MODULE group ROOT --group NAME` for the numbered groups, one for each CPU core at once.

    Each leaves result.json in its folder, with "findings" among its members. 0 if there is none and no group failed.
    """
    with tempfile.TemporaryDirectory() as name:
        with lzma.open(archive) as stream, tarfile.open(fileobj=stream) as packed:
            packed.extractall(name, filter="data")
        root = pathlib.Path(name) / "groups"
        wanted = sorted((p.name for p in root.iterdir() if p.name.isdigit() and p.name in (only or [p.name])), key=int)
        command = [sys.executable, "-m", module, "group", str(root), "--device", device, "--group"]
        most, failed = os.cpu_count() or 1, []
        results: dict[str, dict[str, Any]] = {}
        for first in range(0, len(wanted), most):
            running = {g: subprocess.Popen([*command, g]) for g in wanted[first : first + most]}
            for group, process in running.items():
                if process.wait():
                    failed.append(group)
                if (root / group / "result.json").is_file():
                    results[group] = json.loads((root / group / "result.json").read_text())
                    if out is not None:
                        out.write_text(json.dumps(results, indent=1))
    findings = [f"group {g}: {text}" for g, r in results.items() for text in r["findings"]]
    print("\n".join(findings[:40]))
    found = f"{len(findings)} findings, groups that failed: {', '.join(failed) or 'none'}"
    print(f"{summary(list(results.values()))} on {device}, {found}")
    return 1 if findings or failed else 0
