"""`python -m benchmarks` lists the benchmarks; `python -m benchmarks NAME [ARGUMENT ...]` runs one of them."""

from __future__ import annotations

import ast
import pathlib
import runpy
import sys

_FOLDERS = ("cpu", "models", "kernels", "checks")


def summaries() -> dict[str, str]:
    """Name of every benchmark, such as "models.peers" -> the first sentence of its docstring.

    The files are read, not imported: most import torch, and what a process imported counts as its memory.
    """
    here = pathlib.Path(__file__).parent
    paths = sorted(path for folder in _FOLDERS for path in (here / folder).glob("*.py"))
    docstrings = {f"{path.parent.name}.{path.stem}": ast.get_docstring(ast.parse(path.read_text())) for path in paths}
    return {name: (text or "").partition("\n")[0] for name, text in docstrings.items()}


def main(arguments: list[str]) -> int:
    """Exit code: 2 for a name that no benchmark has; the benchmark's own code leaves through SystemExit."""
    known = summaries()
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__, end="\n\n")
        width = max(map(len, known))
        print("\n".join(f"{name:{width}}  {summary}" for name, summary in known.items()))
        print("\npython -m benchmarks NAME --help prints the arguments of one.")
        return 0
    name, *rest = arguments
    if name not in known:
        print(f"No benchmark is named {name}; the names are: {', '.join(known)}", file=sys.stderr)
        return 2
    sys.argv[1:] = rest
    runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
