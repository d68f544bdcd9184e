"""Launch shapes: block sizes, vectors per thread, tiles and early launches, each measured over the same regions.

    python -m benchmarks.kernels.launch prepare DIR --arch sm_90     on any machine, without a GPU
    python -m benchmarks.kernels.launch run DIR                      on the GPU machine: onnxruntime, numpy, torch, onnx

onnxopt/costs/data/pointwise.json was made from these results. For every launch shape, the outputs are compared with
float64 first.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import lzma
import pathlib
import shutil
import sys
import tarfile
import tempfile
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

from benchmarks.kernels.regions import Measured
from benchmarks.support.arguments import add_device_and_out, command

if TYPE_CHECKING:
    from onnxopt.costs.pointwise import PointwiseCosts

_SIZES = {"256KB": 1 << 18, "1MB": 1 << 20, "4MB": 4 << 20, "16MB": 16 << 20, "64MB": 64 << 20, "256MB": 256 << 20}
_CHAINS = (
    "quantize_like", "channel_affine_hardswish", "add_relu", "bias_gelu_residual", "odd_bias", "masked_scores",
)  # fmt: skip
_TILED = (
    "nchw_to_nhwc_bias_relu", "nhwc_to_nchw_scale_add", "transpose_gelu_float32", "transpose_odd",
    "space_to_depth_relu", "rgb_to_nhwc", "nhwc_to_nchw_7x7", "vit_*_TransposeConcat",
    "vit_*_TransposeReshapeTranspose", "llama_2_TransposeMulSlice", "whisperenc_2_GeluTranspose",
    "convnext_*_AddMulTranspose", "bert_*_TransposeReshapeTranspose",
)  # fmt: skip
_INDEXED = (
    "swin_shift_and_partition", "swin_reverse_and_add", "depth_to_space_silu", "pad_and_add", "masked_odd_columns",
    "qkv_split_heads", "glu_split_silu", "nhwc_bias_relu_256MB", "*_AddGelu", "efficientnet_*_SigmoidMul",
    "bert_*_TransposeMul", "vit_*_TransposeMul", "unet_*_SplitGeluMul", "unet_2_AddConcat", "llama_*",
    "whisperenc_1_*",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to launch. groups: the cases that it is measured on. tiles: (elements, threads).

    columns: of a tile. most_whole: rows of a whole tile.
    """

    groups: tuple[str, ...]
    threads: int = 128
    unroll: int = 1
    tiles: tuple[int, int] | None = None
    columns: int = 64
    most_whole: int = 64

    def numbers(self, normal: PointwiseCosts) -> PointwiseCosts:
        if self.tiles is not None:
            tiles = ({"below": None, "elements": self.tiles[0], "threads": self.tiles[1]},)
            return dataclasses.replace(normal, tiles=tiles)
        return dataclasses.replace(normal, threads=self.threads, unroll=self.unroll)


WAYS = {
    **{
        f"t{threads}u{unroll}": Way(("chains", "indexed"), threads, unroll)
        for threads, unroll in ((128, 1), (256, 1), (512, 1), (128, 2), (256, 2))
    },
    **{
        f"tile{elements}t{threads}c{columns}": Way(("tiled",), tiles=(elements, threads), columns=columns)
        for elements, threads, columns in (
            (1024, 128, 64), (2048, 128, 64), (2048, 256, 64), (4096, 128, 64), (4096, 256, 64), (4096, 512, 64),
            (4096, 256, 32), (4096, 256, 128), (8192, 256, 64), (8192, 512, 64), (8192, 512, 128),
        )
    },
    "tile4096t256c64whole": Way(("tiled",), tiles=(4096, 256), most_whole=256),
}  # fmt: skip


def cases() -> dict[str, list[Any]]:
    """Group -> cases of benchmarks/cases/regions.py."""
    from benchmarks.cases import regions as region_cases
    from benchmarks.cases.gpu_chains import CHAINS

    by_name = {c.name: c for c in CHAINS}

    def sized(names: tuple[str, ...]) -> list[Any]:
        return [
            region_cases.Case(f"{n}_{label}", "chain", region_cases.resized(by_name[n], size).model())
            for n in names
            for label, size in _SIZES.items()
        ]

    known = [*region_cases.spelled(), *region_cases.from_models()]
    return {
        "chains": sized(_CHAINS),
        "tiled": [
            *(c for c in known if any(fnmatch.fnmatch(c.name, pattern) for pattern in _TILED)),
            *(c for c in region_cases.dtypes() if c.name.startswith("turned")),
            *(
                c
                for kind in ("turned", "turned_odd")
                for label, size in _SIZES.items()
                for c in region_cases.sized(kind, ("float16",), label, size)
            ),
        ],
        "indexed": [c for c in known if any(fnmatch.fnmatch(c.name, pattern) for pattern in _INDEXED)],
    }


def prepare(folder: pathlib.Path, arch: str, only: list[str]) -> None:
    """Write the cases once, and for every way the kernels of its cases."""

    from benchmarks.support.collection import Collection
    from onnxopt.artifact.folder import write_library
    from onnxopt.codegen import generate, kernels_json, nvrtc
    from onnxopt.costs import pointwise as launch
    from onnxopt.kinds.pointwise import tiles

    folder.mkdir(parents=True)
    groups, normal = cases(), launch.numbers()
    named: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        lib = pathlib.Path(name) / "lib"
        write_library(lib, "{}", None)
        for label, way in WAYS.items():
            if only and label not in only:
                continue
            collection = Collection()
            with (
                mock.patch.object(launch, "numbers", lambda way=way: way.numbers(normal)),
                mock.patch.object(tiles, "COLUMNS", way.columns),
                mock.patch.object(tiles, "_MAX_WHOLE", way.most_whole),
            ):
                for case in (c for g in way.groups for c in groups[g]):
                    optimized, _ = collection.optimize(case.model)
                    named.setdefault(label, []).append(case.name)
                    (folder / f"{case.name}.onnx").write_bytes(lzma.compress(case.model.SerializeToString()))
                    (folder / f"{case.name}.optimized.onnx").write_bytes(lzma.compress(optimized.SerializeToString()))
            kernels = list(collection.kernels.values())
            fatbin = nvrtc.compile_cuda(generate.generate(kernels), [arch])
            (lib / label).mkdir()
            (lib / label / "kernels.json").write_text(kernels_json.to_json(kernels, fatbin))
            (lib / label / "kernels.fatbin").write_bytes(fatbin)
        with tarfile.open(folder / "lib.tar.xz", "w:xz") as archive:
            archive.add(lib, "lib")
    (folder / "ways.json").write_text(json.dumps(named, indent=1))
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{len(named)} ways, {total / 1e3:.0f} KB")


def run(folder: pathlib.Path, device: str, out: pathlib.Path | None, seconds: float) -> int:
    start, rows, bad = time.perf_counter(), {}, []
    ways: dict[str, list[str]] = json.loads((folder / "ways.json").read_text())
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(folder / "lib.tar.xz") as archive:
            archive.extractall(name, filter="data")
        (binary,) = (pathlib.Path(name) / "lib").glob("*.so")
        for label in ways:
            shutil.copy(binary, pathlib.Path(name) / "lib" / label)
        for case in dict.fromkeys(c for names in ways.values() for c in names):
            if time.perf_counter() - start > seconds:
                print(f"out of time before {case}", flush=True)
                break
            measured = Measured(case, folder, device, str(binary))
            row: dict[str, Any] = {"bytes": measured.bytes}
            if device != "cpu":
                row["copy"] = measured.copy()
            for label in (w for w, names in ways.items() if case in names):
                measured.library = str(pathlib.Path(name) / "lib" / label / binary.name)
                try:
                    if not measured.compare() <= 1:
                        bad.append(f"{case} {label}")
                    row[label] = measured.fused() if device != "cpu" else None
                except Exception as error:  # noqa: BLE001 - one that fails must not cost the others their numbers
                    bad.append(f"{case} {label}")
                    print(f"{case} {label}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            rows[case] = row
            print(case, {k: round(v, 2) for k, v in row.items() if isinstance(v, float)}, flush=True)
            if out is not None:
                out.write_text(json.dumps(rows, indent=1))
            del measured
            if device != "cpu":
                torch.cuda.empty_cache()
    print(f"FAILED: {', '.join(bad)}" if bad else f"all agree, {time.perf_counter() - start:.0f} s")
    return 1 if bad else 0


def main() -> int:
    parser, verbs = command(__doc__)
    verbs[0].add_argument("--only", nargs="*", default=[], help="names of ways")
    add_device_and_out(verbs[1])
    verbs[1].add_argument("--seconds", type=float, default=80.0, help="start no case after this long")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.only)
        return 0
    return run(args.folder, args.device, args.out, args.seconds)


if __name__ == "__main__":
    sys.exit(main())
