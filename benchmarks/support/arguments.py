"""The command lines of the benchmarks. On the GPU: `prepare DIR` anywhere, `run DIR` on the machine with the GPU."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import pathlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


Case = TypeVar("Case", bound=Named)
Rows = Iterable[tuple[str, Callable[[], dict[str, Any]]]]  # the name of each, and what measures it


def command(doc: str | None, *others: str) -> tuple[argparse.ArgumentParser, list[argparse.ArgumentParser]]:
    """The parser, and those of its verbs "prepare", "run" and the others, each with a folder; prepare has --arch."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    added = parser.add_subparsers(dest="verb", required=True)
    verbs = [added.add_parser(verb) for verb in ("prepare", "run", *others)]
    for verb in verbs:
        verb.add_argument("folder", type=pathlib.Path)
    verbs[0].add_argument("--arch", default="sm_90")
    return parser, verbs


def of_cpu(doc: str | None, seconds: float) -> argparse.Namespace:
    """The arguments of a benchmark on the CPU: `names` to measure (none: all of them) and `seconds` to time each."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="measure only these; the results are then not written")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"timing of each (default {seconds})")
    return parser.parse_args()


def add_device_and_out(ran: argparse.ArgumentParser) -> None:
    """--device for a run that can make its comparisons without a GPU, and --out for what it measures."""
    ran.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every case")


def main_over_models(
    doc: str | None,
    models: Sequence[str],
    prepare: Callable[[pathlib.Path, str, list[str]], None],
    run: Callable[[pathlib.Path, str, list[str], pathlib.Path | None], int],
) -> int:
    """The whole command of a benchmark that goes through models, all of them or those that --only names."""
    parser, (prepared, ran) = command(doc)
    add_device_and_out(ran)
    for verb in (prepared, ran):
        verb.add_argument("--only", nargs="*", default=list(models))
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.only)
        return 0
    return run(args.folder, args.device, args.only, args.out)


def over_models(
    names: Sequence[str],
    measure: Callable[[str], dict[str, Any]],
    disagreeing: Callable[[dict[str, Any]], list[str]],
    table: Callable[[dict[str, Any]], str],
    out: pathlib.Path | None,
) -> int:
    """Measure the models and print the table; 0 if every output agrees. One that fails leaves its row {"error": ...}.

    Each is measured in a process of its own: a profiler, once used, makes CUDA graphs 3 to 4 % slower in its process.
    So `measure` times first and profiles last. disagreeing: what of a row does not agree, by name.
    """
    rows: dict[str, Any] = {}
    bad = []
    for name in names:
        start = time.perf_counter()
        rows[name] = _apart(measure, name)
        bad += [name] if "error" in rows[name] else [f"{name} {which}" for which in disagreeing(rows[name])]
        print(f"{name} ({time.perf_counter() - start:.0f} s): {rows[name].get('error', 'measured')}", flush=True)
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))
    print(table(rows))
    print(f"FAILED: {', '.join(bad)}" if bad else "all agree")
    return 1 if bad else 0


def _apart(measure: Callable[[str], dict[str, Any]], name: str) -> dict[str, Any]:
    """The row of a model, measured in a fork of this process, which has not used the GPU."""
    forking = multiprocessing.get_context("fork")
    rows, sent = forking.Pipe(duplex=False)

    def work() -> None:
        try:
            row = measure(name)
        except Exception as error:  # noqa: BLE001 - the other models' numbers are worth having
            row = {"error": f"{type(error).__name__}: {error}"[:500]}
        sent.send(json.dumps(row))

    child = forking.Process(target=work)
    child.start()
    sent.close()
    try:
        found: dict[str, Any] = json.loads(rows.recv())
    except EOFError:
        child.join()
        found = {"error": f"its process ended with {child.exitcode}"}
    child.join()
    return found


def named(cases: Sequence[Case], parts: str) -> list[Case]:
    """The cases whose name has one of these parts, which commas separate."""
    return [c for c in cases if any(part in c.name for part in parts.split(","))]


def main_over_cases(
    doc: str | None,
    cases: Sequence[Case],
    prepare: Callable[[pathlib.Path, str, bool, str], None],
    measure: Callable[[Case, pathlib.Path], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
) -> int:
    """The whole command of a benchmark that goes through cases, with --sweep for other tiles."""
    parser, (prepared, ran) = command(doc)
    prepared.add_argument("--sweep", action="store_true")
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every case")
    ran.add_argument("--seconds", type=float, default=0, help="start no further case after this many")
    for verb in (prepared, ran):
        verb.add_argument("--only", default="", help="comma-separated parts of names")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.sweep, args.only)
        return 0
    return _over_cases(named(cases, args.only), args, measure, table)


def main_over_rows(
    doc: str | None, prepare: Callable[[pathlib.Path, str], None], rows: Callable[[pathlib.Path], Rows]
) -> int:
    """The whole command of a benchmark of single kernels: 1 where a row raises, as for a wrong result.

    rows: of a prepared folder. What a row has under "all" is written, and not printed.
    """
    parser, (_, ran) = command(doc)
    ran.add_argument("--out", type=pathlib.Path, help="JSON, rewritten after every row")
    ran.add_argument("--only", default="", help="run the rows whose name contains this")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
        return 0
    found: dict[str, dict[str, Any]] = {}
    for name, measure in rows(args.folder):
        if args.only not in name:
            continue
        try:
            found[name] = measure()
        except Exception as error:  # noqa: BLE001 - the other rows are worth having
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(name, {k: v for k, v in found[name].items() if k != "all"}, flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(found, indent=1))
    failed = sum("error" in row for row in found.values())
    print(f"FAILED: {failed} of {len(found)}" if failed else "all agree")
    return 1 if failed else 0


def _over_cases(
    cases: Sequence[Case],
    args: argparse.Namespace,
    measure: Callable[[Case, pathlib.Path], dict[str, Any]],
    table: Callable[[dict[str, Any]], str],
) -> int:
    """Measure every case that there is time for; 1 where something of a row is a text, which says what failed."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    begun = time.perf_counter()
    rows: dict[str, Any] = {}
    for case in cases:
        if args.seconds and time.perf_counter() - begun > args.seconds:
            print(f"out of time before {case.name}")
            break
        rows[case.name] = measure(case, args.folder)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1))
        torch.cuda.empty_cache()
    print(table(rows))
    bad = [f"{name} {k}: {v}" for name, row in rows.items() for k, v in row.items() if isinstance(v, str)]
    print("\n".join(bad))
    print(f"{time.perf_counter() - begun:.0f} s;", "FAILED" if bad else "all agree with float64")
    return 1 if bad else 0
