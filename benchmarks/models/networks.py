"""Every network that the repository can build, beside ONNX Runtime's and torch's best, on the GPU machine.

    python -m benchmarks models.networks [NAME ...] [--folder build/networks] [--limit 540] [--out OUT.json]

NAME: patterns of names, or groups: open (the 14 that nobody tuned), further, convolutions, transformers, dynamic,
catalogue; without any, all but `dynamic`; also timm:NAME and torchvision:NAME, networks of these libraries. Needs
torch, transformers, timm, onnxscript and what the tests marked gpu need there (build/gpu-tests).

Networks are exported, optimized and compiled by torch several at a time, each in its own process that waits; then each
is timed, alone on the GPU and on cores of its own. Before that its outputs are compared with torch's in float32 without
TF32. All run in CUDA graphs. ONNX Runtime's best is the faster of no options and, where there are convolutions,
prefer_nhwc with fuse_conv_bias; torch's best is the fastest of reduce-overhead, channels_last for networks of
two-dimensional convolutions, and cuDNN's attention. TF32 is allowed on all sides, or with --exact on none. --kinds also
times onnxopt without each kind of its kernels (`onnxopt.leave_out`), and a row then names what is faster without.
After --limit seconds nothing more begins: the same command continues with what has no row in --folder. Exit code 1
where an output differs or onnxopt fails.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import pathlib
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from benchmarks.support.networks import NETWORKS, named
from benchmarks.support.workers import Job, Workers

Row = Mapping[str, Any]
_ANSWER_SECONDS = 240.0  # to open three sessions, compare and time them
_PREPARING = 0.7  # of the time that is left, after which those that are ready are timed
_WORST = 10
_GOALS = {"ORT": 1.0, "torch": 0.95}
_TOO_LATE = "ran out of time"


def chosen(patterns: Sequence[str]) -> list[str]:
    """Names of networks by patterns or groups. SystemExit for one that names nothing."""
    if not patterns:
        return [name for name, network in NETWORKS.items() if network.group != "dynamic"]
    found: dict[str, None] = {}
    for pattern in patterns:
        if ":" in pattern:
            named(pattern)
            found[pattern] = None
            continue
        members = [n for n, network in NETWORKS.items() if network.group == pattern or fnmatch.fnmatch(n, pattern)]
        if not members:
            raise SystemExit(f"{pattern} is no group and no network; the networks are: {', '.join(NETWORKS)}")
        found |= dict.fromkeys(members)
    return list(found)


def measure(names: Sequence[str], args: argparse.Namespace, log: TextIO) -> None:
    """Prepare and time those that have no row yet.

    Torch compiles on the GPU, so with it nothing is timed before a batch is ready; without it each is, as it is ready.
    """
    end = time.perf_counter() + args.limit
    waiting = [name for name in names if not _row(args.folder, name).exists()]
    size = len(waiting) or 1 if args.without_torch else 2 * args.jobs
    for batch in (waiting[k : k + size] for k in range(0, len(waiting), size)):
        left = end - time.perf_counter()
        if left <= 0:
            break
        workers = Workers({name: _job(name, args) for name in batch}, log, args.jobs, 2 * args.jobs)
        try:
            ready = workers.ready(end if args.without_torch else time.perf_counter() + _PREPARING * left)
            for name, said in ready if args.without_torch else list(ready):
                _time(name, workers, said, end, args)
        finally:
            workers.end()
    late = [name for name in waiting if not _row(args.folder, name).exists()]
    if late:
        print(f"{len(late)} have no row yet, and the next call continues with {', '.join(late[:5])}")


def _job(name: str, args: argparse.Namespace) -> Job:
    flags = [
        "--device",
        args.device,
        *["--without-torch"] * args.without_torch,
        *["--exact"] * args.exact,
        *["--kinds"] * args.kinds,
    ]
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(args.folder.resolve() / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "2",
        "OMP_NUM_THREADS": "2", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",  # which does not tell kernels of attention apart
    }  # fmt: skip
    place = str(args.folder / "work" / name)
    return Job((sys.executable, "-m", "benchmarks.support.network_worker", name, place, *flags), environment)


def _time(name: str, workers: Workers[str], said: Row, end: float, args: argparse.Namespace) -> None:
    """Write the row of a network, and print it; none where there was no time."""
    if said.get("failed", "").startswith(_TOO_LATE) or time.perf_counter() > end:
        return
    place = args.folder / "work" / name
    if "failed" not in said:
        said = {**workers.answer(name, _ANSWER_SECONDS), "seconds until ready": said["ready"]}
        workers.end(name)
    written = place / "row.json"
    row = {**(json.loads(written.read_text()) if written.exists() else {}), **said}
    row.pop("done", None)
    _row(args.folder, name).write_text(json.dumps(row))
    shutil.rmtree(place, ignore_errors=True)  # gigabytes
    print(line(name, row), flush=True)


def _row(folder: pathlib.Path, name: str) -> pathlib.Path:
    return folder / f"{name}.json"


def _times(row: Row, side: str) -> dict[str, float]:
    """Milliseconds by label, of the labels that begin with `side`."""
    return {k: v for k, v in row.items() if k.startswith(side) and not k.endswith("cosine") and type(v) is float}


def best(row: Row, side: str) -> float | None:
    """Milliseconds of the fastest of the labels that begin with `side`."""
    return min(_times(row, side).values(), default=None)


def ratio(row: Row, side: str) -> float | None:
    """The side's best time over onnxopt's; None where one of them has none."""
    ours, other = best(row, "onnxopt"), best(row, side)
    return None if ours is None or other is None else other / ours


def line(name: str, row: Row) -> str:
    cells = [f"{value:9.3f}" if (value := best(row, side)) else f"{'-':>9}" for side in ("ORT", "torch", "onnxopt")]
    ratios = [f"{value:6.2f}" if (value := ratio(row, side)) else f"{'-':>6}" for side in _GOALS]
    faster = [f" without {kind} {value:.3f}" for kind, value in faster_without(row).items()]
    failure = str(row.get("failed", row.get("onnxopt"))).strip().rpartition("\n")[2]
    problem = f"  DIFFERS ({row.get('onnxopt cosine')})" if best(row, "onnxopt") else f"  FAILED: {failure}"
    return (
        " ".join([f"{name:32}", *cells, *ratios]) + "".join(faster) + problem * (row.get("onnxopt agrees") is not True)
    )


def faster_without(row: Row) -> dict[str, float]:
    """Kinds of kernels -> milliseconds of onnxopt without them, where that is faster by more than two percent."""
    ours = best(row, "onnxopt") or 0.0
    return {k.removeprefix("without "): ms for k, ms in _times(row, "without ").items() if ms < 0.98 * ours}


def report(rows: Mapping[str, Row]) -> Iterable[str]:
    """The worst ratios, the geometric means, what misses the goals, and what differs or failed."""
    for side, goal in _GOALS.items():
        ratios = {name: value for name, row in rows.items() if (value := ratio(row, side)) is not None}
        if not ratios:
            continue
        worst = sorted(ratios, key=ratios.__getitem__)
        yield f"worst beside {side}'s best: {', '.join(f'{name} {ratios[name]:.2f}' for name in worst[:_WORST])}"
        of_open = [value for name, value in ratios.items() if named(name).group == "open"]
        means = f"{_mean(ratios.values()):.2f} ({len(ratios)})"
        yield f"geometric mean: {means}" + (f"; open {_mean(of_open):.2f} ({len(of_open)})" if of_open else "")
        below = [name for name in worst if ratios[name] < goal]
        yield f"below {goal:g} of {side}'s best: {', '.join(below) or 'none'}"
    wrong = disagreeing(rows)
    yield f"{len(rows) - len(wrong)} of {len(rows)} agree" + (f"; not {', '.join(wrong)}" if wrong else "")


def disagreeing(rows: Mapping[str, Row]) -> list[str]:
    return [name for name, row in rows.items() if row.get("onnxopt agrees") is not True]


def _mean(ratios: Iterable[float]) -> float:
    logarithms = [math.log(value) for value in ratios]
    return math.exp(sum(logarithms) / len(logarithms))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/networks"))
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=8, help="networks that are prepared side by side")
    parser.add_argument(
        "--device", default="cuda", choices=("cuda", "cpu"), help="cpu: the first sample alone, for tests"
    )
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--exact", action="store_true", help="without TF32, on all sides")
    parser.add_argument("--kinds", action="store_true", help="also time onnxopt without each kind of kernels")
    parser.add_argument("--again", action="store_true", help="remove these networks' rows first")
    parser.add_argument("--out", type=pathlib.Path, help="JSON of all rows")
    args = parser.parse_args()
    names = chosen(args.names)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in names if args.again else ():
        _row(args.folder, name).unlink(missing_ok=True)
    print(f"{'milliseconds':32} {'ORT':>9} {'torch':>9} {'onnxopt':>9} {'/ ORT':>6} {'torch':>6}", flush=True)
    with (args.folder / "log").open("a") as log:
        measure(names, args, log)
    files = {name: _row(args.folder, name) for name in names}
    rows = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    print("\n".join(report(rows)))
    if args.out is not None:
        args.out.write_text(json.dumps(rows, indent=1))
    return 1 if disagreeing(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
