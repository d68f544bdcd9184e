"""Every entry point of attention of many queries at small shapes, compared with float64, for compute-sanitizer.

    python -m benchmarks.gpu.attention_layouts prepare DIR --arch sm_90                   on any machine, without a GPU
    compute-sanitizer --tool racecheck python -m benchmarks.gpu.attention_layouts run DIR    on the GPU machine

Heads of 20 to 256 elements, each plain, causal, with a mask of keys, and with a bias, and some with a cap, a window or
sinks. A library for each number of elements. On the GPU machine it needs what the tests marked gpu need there.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import pathlib
import sys
from typing import Any

from benchmarks.support.arguments import command

_WIDTHS = (256, 192, 160, 128, 96, 80, 72, 64, 40, 32, 24, 20)
_IDLE = "takes no such lengths"
_ENTRIES = "entries.json"  # case -> names of its models -> the entry point of each


def _cases(width: int) -> dict[str, Any]:
    """The cases by name. Lengths leave part of a tile over; queries of several blocks see whole and partial tiles."""
    from tests.support.extended_attention import Extended
    from tests.support.flash_attention_models import Case

    masked = {"bias": (True, False), "by_query": False}
    found: dict[str, Any] = {
        "plain": Case(2, 150, 150, 2, width, layout="split"),
        "long": Case(1, 70, 300, 2, width, layout="heads"),
        "causal": Extended(2, 270, 270, 2, width, groups=1, after=0),
        "mask": Extended(2, 190, 190, 2, width, padded=60, **masked),
        "bias": Case(2, 130, 130, 2, width, bias=(False, True)),
        "causal_bias": Extended(1, 140, 140, 2, width, bias=(True, True), after=0),
    }
    if width in (64, 128, 256):
        found |= {
            "cap": Extended(1, 200, 200, 2, width, after=0, cap=5.0),
            "sinks": Extended(1, 150, 150, 2, width, groups=1, after=0, sunk=True),
            "window": Extended(1, 700, 700, 1, width, before=550, after=0),
            "hidden": Extended(1, 300, 300, 1, width, before=40, after=40, padded=200, **masked),
        }
    return found


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Write the models of every number of elements, and a library for each, side by side."""
    folder.mkdir(parents=True)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(mp_context=spawn, max_tasks_per_child=1) as pool:
        for said in pool.map(_prepare_one, [folder] * len(_WIDTHS), [arch] * len(_WIDTHS), _WIDTHS):
            print(said, flush=True)


def _prepare_one(folder: pathlib.Path, arch: str, width: int) -> str:
    import onnx

    from benchmarks.support.collection import Collection
    from tests.support import depthwise_models, flash_attention_models

    own = folder / str(width)
    own.mkdir()
    collection, rows = Collection(), dict[str, dict[str, str]]()
    for label, case in _cases(width).items():
        fused = flash_attention_models.fused(case)
        optimized = depthwise_models.bodiless(fused.optimized)
        (kernel,) = fused.kernels
        (node,) = (node for node in optimized.graph.node if node.op_type == kernel.name)
        rows[label] = {}
        for number, variant in enumerate(kernel.variants):
            name = f"{kernel.name}_{label}_{number}"
            symbol = variant.symbol.replace(kernel.name, name, 1)
            alone = (dataclasses.replace(variant, symbol=symbol),)
            collection.kernels[name] = dataclasses.replace(kernel, name=name, variants=alone)
            node.op_type = name
            onnx.save(optimized, own / f"{label}_{number}.onnx")
            rows[label][f"{label}_{number}"] = variant.symbol.rpartition("_")[2]
    collection.write_library(own, [arch])
    (own / _ENTRIES).write_text(json.dumps(rows))
    return f"{width} elements: {len(collection.kernels)} entry points"


def _error(case: Any, model: pathlib.Path, library: str) -> float | str:
    """The largest difference from float64 in units of what rounding allows, or why there is none."""
    from benchmarks.support.gpu_timing import session

    feeds = case.feeds()
    try:
        (y,) = session(str(model), library, "cuda").run(["y"], feeds)
    except Exception as error:  # noqa: BLE001 - an entry point that takes no such lengths, or a finding
        return _IDLE if "no variant fits" in str(error) else str(error)[-200:]
    return round(float(case.worst(y, case.expected(feeds))), 3)


def run(folder: pathlib.Path, args: argparse.Namespace) -> int:
    """Compare every entry point of this share; 0 if all agree."""
    from benchmarks.support.gpu_timing import library

    first, step = map(int, args.share.split("/"))
    found: dict[str, float | str] = {}
    for width in _WIDTHS[first::step]:
        own, cases = folder / str(width), _cases(width)
        for label, models in json.loads((own / _ENTRIES).read_text()).items():
            for model, entry in models.items():
                name = f"{width} {label} {entry}"
                found[name] = _error(cases[label], own / f"{model}.onnx", library(own))
                print(f"{name:40} {found[name]}", flush=True)
    idle = [name for name, error in found.items() if error == _IDLE]
    bad = [name for name, error in found.items() if name not in idle and (isinstance(error, str) or not error <= 1)]
    print(f"{len(found)} entry points, {len(idle)} not run: {', '.join(idle)}; {len(bad)} findings: {', '.join(bad)}")
    return 1 if bad else 0


def main() -> int:
    parser, (_, ran) = command(__doc__)
    ran.add_argument("--share", default="0/1", help="K/N: every Nth library from the Kth on, for several at once")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
        return 0
    return run(args.folder, args)


if __name__ == "__main__":
    sys.exit(main())
