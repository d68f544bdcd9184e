"""Includes of custom_ops/ and cuda_kernels/ go down through their folders, and nowhere in a circle."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ["program", "program/generated", "program/programs", "support"]
READ = ["kernel_file", "kernel_file/entry_points", "kernel_file/programs", *PROGRAM]
CALL = ["call", "call/generated", "call/programs", *READ]
# Folders, and which others they may include: cpu and cuda do not see each other. What is generated or has a folder of
# its own within a room is one room with it; files are in no circle. Other folders of kernels include device/ alone.
BELOW = {
    "custom_ops": {
        "support": [],
        "program": PROGRAM,
        "program/generated": PROGRAM,
        "program/programs": PROGRAM,
        "kernel_file": ["kernel_file/generated", "kernel_file/programs", *PROGRAM],
        "kernel_file/generated": ["kernel_file", *PROGRAM],
        "kernel_file/programs": ["kernel_file", *PROGRAM],
        "kernel_file/entry_points": ["kernel_file", *PROGRAM],
        "kernel_file/measured": ["support"],
        "call": ["call/generated", *READ],
        "call/generated": ["call", *PROGRAM],
        "call/programs": ["call", *READ],
        "cpu/evaluate": PROGRAM,
        "cpu/blocks": ["cpu/evaluate", *CALL],
        "cpu": ["cpu/blocks", "cpu/evaluate", *CALL],
        "cuda/launch": ["kernel_file/measured", *READ],
        "cuda": ["cuda/launch", *CALL],
        "cuda/programs": ["cuda/launch", *CALL],
        "cuda/convolution": ["cuda/launch", "cuda/own_convolution", "kernel_file/measured", *CALL],
        "cuda/own_convolution": ["cuda/launch", *CALL],
        "cuda/gemm": ["cuda/convolution", "cuda/launch", "kernel_file/measured", *CALL],
        "cuda/experts": ["cuda/gemm", "cuda/launch", *CALL],
        "registry": ["cuda/launch", *CALL],
        "registry/generated": [
            "registry",
            "kernel_file/generated",
            *("cuda", "cuda/convolution", "cuda/experts", "cuda/gemm", "cuda/programs", "cpu"),
            *CALL,
        ],
        ".": ["registry", "support"],
    },
    "cuda_kernels": {
        "device": [],
        "device/products": ["device"],
        "scan": ["rowwise", "device"],
        "gemm": ["device/products", "device"],
        "matmul_nbits": ["gemm", "device"],
        "attention": ["flash_attention", "device"],
        "dense_convolution": ["device/products", "device"],
        "depthwise": ["device/products", "device"],
        "squeeze_excite": ["depthwise", "device"],
        "image_convolution": ["device/products", "device"],
        "flash_attention": ["device/products", "device"],
    },
}
SOURCES = [
    p.relative_to(ROOT) for top in BELOW for p in sorted((ROOT / top).rglob("*.*")) if p.suffix in (".h", ".cc", ".cuh")
]


def included(file: Path) -> list[Path]:
    """The files of ours that a file includes. The host also sees the plain headers (.h) of cuda_kernels/."""
    files = []
    for name in re.findall(r'^#include "(.+)"', (ROOT / file).read_text(), re.MULTILINE):
        paths = [Path(file.parts[0], name), *([Path("cuda_kernels", name)] if name.endswith(".h") else [])]
        known = [p for p in paths if p in SOURCES]
        assert known, f'{file} includes "{name}", which is no path from {file.parts[0]}/'
        files.append(known[0])
    return files


def test_includes_go_down() -> None:
    wrong = []
    for file in SOURCES:
        tree = file.parts[0]
        room = file.parent.relative_to(tree).as_posix()
        allowed = BELOW[tree].get(room, ["device"] if tree == "cuda_kernels" else None)
        assert allowed is not None, f"say in BELOW which folders {tree}/{room}/ may include"
        for other in included(file):
            below = other.parent.relative_to(other.parts[0]).as_posix()
            if not (other.parts[0] != tree or below == room or below in allowed):
                wrong.append(f"{file} includes {other}, but {room}/ may include {allowed} only")
    assert not wrong, "\n".join(wrong)


def test_no_circle() -> None:
    """CycleError names the files of one. A header and what defines it count as one."""
    graph: dict[Path, set[Path]] = {}
    for file in SOURCES:
        unit = file.with_suffix("")
        graph.setdefault(unit, set()).update({p.with_suffix("") for p in included(file)} - {unit})
    TopologicalSorter(graph).prepare()


def test_kernels_include_nothing_else() -> None:
    for file in SOURCES:
        outside = file.parts[0] == "cuda_kernels" and "#include <" in (ROOT / file).read_text()
        assert not outside, f"{file} includes a header from outside cuda_kernels/"
