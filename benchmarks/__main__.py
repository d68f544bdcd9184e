"""`python -m benchmarks [optimizers | cpu_chains | cpu_models] [NAME ...]`: without a name of a benchmark, all three.

The GPU's have verbs of their own: `python -m benchmarks.gpu_models` and others, see README.md.
"""

from __future__ import annotations

import argparse


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "benchmark", nargs="?", default="all", choices=("all", "optimizers", "cpu_chains", "cpu_models")
    )
    parser.add_argument("names", nargs="*", help="only these models or chains; results are then not written")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to time each model or chain")
    args = parser.parse_args()

    # what a benchmark imports counts as its memory, so each is imported when it is run
    if args.benchmark in ("all", "optimizers"):
        from benchmarks import optimizers

        optimizers.run(args.names)
    if args.benchmark in ("all", "cpu_chains"):
        from benchmarks import cpu_chains

        cpu_chains.run(args.seconds, args.names)
    if args.benchmark in ("all", "cpu_models"):
        from benchmarks import cpu_models

        cpu_models.run(args.seconds, args.names)


if __name__ == "__main__":
    main()
