"""python -m tests.mutation: which faults of kernels verification finds, by class and by kind."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import onnx
import pytest

import models
from tests.mutation import campaign, table
from tests.mutation.campaign import MISSED, WHERE, Plan, Result
from tests.mutation.networks import NETWORKS
from tests.support.fusing import compile_nothing

# An encoder, a convolution network, a decoder with a cache, a network for text lines and one of audio.
CATALOGUE = ("bert_tiny_dyn", "convnext_tiny_dyn", "llama_decode_tiny_dyn", "ppocr_cls_v2", "aecmos_16k_a")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("names", nargs="*", help="networks or models (default: all networks)")
    parser.add_argument("--catalogue", action="store_true", help=f"these models: {', '.join(CATALOGUE)}")
    parser.add_argument("--at-most", type=int, default=1 << 30, help="mutants of each class for a kind of one model")
    parser.add_argument("--only", action="append", default=[], help="a class, such as NaN; may be repeated")
    parser.add_argument("--where", action="append", choices=WHERE, help="what is wrong (default: what takes no g++)")
    options = parser.parse_args()
    plan, results = Plan(options.at_most, options.only, options.where or Plan.where), list[Result]()
    with pytest.MonkeyPatch.context() as patch:
        compile_nothing(patch)
        for name in options.names or (CATALOGUE if options.catalogue else NETWORKS):
            results += _of(name, plan)
    for title, row_of in (("fault", lambda r: r.of), ("kind", lambda r: r.kind)):
        print("", *table.lines(title, results, row_of), sep="\n")


def _of(name: str, plan: Plan) -> list[Result]:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        if name in NETWORKS:
            onnx.save(NETWORKS[name](), path)
        else:
            path = models.path(name)
        found = campaign.run(path, Path(folder) / "artifact", plan)
    print(f"{name}: {len(found)} mutants, {time.monotonic() - begun:.0f} s", flush=True)
    for r in found:
        if r.outcome == MISSED:
            print(f"    missed: {r.of} ({r.where} of {r.kind} {r.kernel}, {r.place}): {r.told[:150]}")
    return found


main()
