"""`python -m tests.fuzz.respell`: networks in other spellings, for as long as asked; see tests/fuzz/README.md."""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

import onnxruntime

from tests.fuzz.respell.examining import examine

FOLDER = Path(__file__).resolve().parents[3] / "build" / "fuzz" / "respell"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this long")
    parser.add_argument("--seed", type=int, default=0, help="first seed; later networks take the numbers after it")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="stop after this many networks")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    onnxruntime.set_default_logger_severity(4)
    start, seed, by_spelling = time.monotonic(), options.seed, collections.Counter[str]()
    findings = 0
    while time.monotonic() - start < options.seconds and seed - options.seed < options.count:
        result = examine(seed, FOLDER)
        if result.problem:
            findings += 1
            by_spelling.update({spelling.split(" x ")[0] for spelling in result.spellings})
            usual, found = (", ".join(launches) for launches in result.launches)
            print(f"seed {seed} {result.network}: {' then '.join(result.spellings)}: {result.problem}", flush=True)
            print(f"    usual     {usual}\n    respelled {found}", flush=True)
        else:
            (FOLDER / f"{seed}.onnx").unlink()
        seed += 1
    print(f"seeds {options.seed} to {seed - 1}: {findings} findings; {dict(by_spelling.most_common(12))}")
    sys.exit(1 if findings else 0)


main()
