"""Every entry point of attention of many queries at small shapes, compared with float64, for compute-sanitizer.

    python -m benchmarks.checks.attention_layouts prepare DIR --arch sm_90                 on any machine, without a GPU
    compute-sanitizer --tool racecheck python -m benchmarks.checks.attention_layouts run DIR --only "256 "    on the GPU

Heads of 20 to 256 elements, each plain, causal, with a mask of keys, and with a bias, and some with a cap, a window or
sinks. A library for each number of elements. On the GPU machine it needs what the tests marked gpu need there.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import multiprocessing
import pathlib
import sys
from typing import Any

from benchmarks.support.arguments import Rows, main_over_rows
from tests.support.wrong_bodies import with_wrong_bodies

_WIDTHS = (256, 192, 160, 128, 96, 80, 72, 64, 40, 32, 24, 20)
_ENTRIES = "entries.json"  # case -> names of its models -> the entry point of each


def _cases(width: int) -> dict[str, Any]:
    """The cases by name. Lengths leave part of a tile over; queries of several blocks see whole and partial tiles."""
    from cases.extended_attention import Extended
    from cases.flash_attention import Case

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
    from cases import flash_attention as flash_attention_models

    own = folder / str(width)
    own.mkdir()
    collection, rows = Collection(), dict[str, dict[str, str]]()
    for label, case in _cases(width).items():
        fused = flash_attention_models.fused(case)
        optimized = with_wrong_bodies(fused.optimized)
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


def rows(folder: pathlib.Path) -> Rows:
    """Every entry point in turn; one that takes no such lengths says so."""
    for width in _WIDTHS:
        own, cases = folder / str(width), _cases(width)
        for label, models in json.loads((own / _ENTRIES).read_text()).items():
            for model, entry in models.items():
                yield f"{width} {label} {entry}", functools.partial(_compare, cases[label], own, f"{model}.onnx")


def _compare(case: Any, folder: pathlib.Path, model: str) -> dict[str, Any]:
    """The largest difference from float64 in units of what rounding allows. ValueError where it is more than one."""
    from benchmarks.support.gpu_timing import library, session

    feeds = case.feeds()
    try:
        (y,) = session(str(folder / model), library(folder), "cuda").run(["y"], feeds)
    except Exception as error:
        if "no variant fits" in str(error):
            return {"not run": "it takes no such lengths"}
        raise
    worst = float(case.worst(y, case.expected(feeds)))
    if not worst <= 1:
        raise ValueError(f"{worst} of what rounding allows")
    return {"of what rounding allows": round(worst, 3)}


if __name__ == "__main__":
    sys.exit(main_over_rows(__doc__, prepare, rows))
