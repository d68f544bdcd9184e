"""The command line that the GPU benchmarks share: `prepare DIR` anywhere, `run DIR` on the machine with the GPU."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Sequence


def command(doc: str | None, *others: str) -> tuple[argparse.ArgumentParser, list[argparse.ArgumentParser]]:
    """The parser, and those of its verbs "prepare", "run" and the others, each with a folder; prepare has --arch."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    added = parser.add_subparsers(dest="verb", required=True)
    verbs = [added.add_parser(verb) for verb in ("prepare", "run", *others)]
    for verb in verbs:
        verb.add_argument("folder", type=pathlib.Path)
    verbs[0].add_argument("--arch", default="sm_90")
    return parser, verbs


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
