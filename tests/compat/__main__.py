"""`python -m tests.compat [--ort RELEASE ...] [MODEL ...]`: every model of models/ on every release, unless named.

Each model is optimized once (without GPU kernels); exit code 1 if any release refuses an artifact or disagrees.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

import models
import onnxopt
from models.reference import Reference
from tests.compat import RELEASES, CannotInstall, Outcome, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    parser.add_argument("--ort", nargs="+", default=RELEASES, metavar="RELEASE")
    parser.add_argument("models", nargs="*", default=_default_models(), metavar="MODEL")
    args = parser.parse_args()
    bad: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models:
            bad += [str(o) for o in _outcomes(name, args.ort, pathlib.Path(folder) / name) if not o.ok]
    print(f"{len(bad)} failed" if bad else "all agree", *bad, sep="\n")
    return 1 if bad else 0


def _outcomes(name: str, releases: list[str], artifact: pathlib.Path) -> list[Outcome]:
    """The model on every release, each printed as it comes."""
    reference = Reference.of(name)
    try:
        onnxopt.optimize(models.path(name), artifact, archs=(), verify=False)
    except Exception as error:  # noqa: BLE001 - one model that breaks the optimizer must not hide the others
        outcomes = [Outcome("-", name, False, error=f"cannot be optimized: {type(error).__name__}: {error}"[:400])]
    else:
        outcomes = []
        for release in releases:
            try:
                outcomes += run(release, artifact, reference)
            except CannotInstall as error:
                outcomes.append(Outcome(release, name, False, error=str(error)))
    for outcome in outcomes:
        print(outcome, flush=True)
    return outcomes


def _default_models() -> list[str]:
    return [*models.names("trained", runnable=True), *(n for n in models.names("exported") if "_tiny" in n)]


if __name__ == "__main__":
    sys.exit(main())
