"""The demo behind `make demo`: two trained models, each taken out of a package of the package index.

For each model it runs the commands that a user would run: optimize (which compiles and verifies), verify, explain, and
bench on the CPU. Then it runs the artifact from Python and from a C++ program, with the library and without it.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "demo"
sys.path.insert(0, str(ROOT))

import models  # noqa: E402  (the folder models/ beside this one, not an installed package)


@dataclasses.dataclass(frozen=True)
class Example:
    """A model of models/, what it is, and the shapes it runs at."""

    name: str
    what: str
    shapes: tuple[str, ...]


EXAMPLES = (
    Example("magika_v3_3", "Magika, which detects the type of a file", ("bytes=1x2048",)),
    Example(
        "minilm_l3_paraphrase_fp32",
        "MiniLM, which encodes sentences; exported from PyTorch with a dynamic batch and sequence",
        ("input_ids=8x64", "attention_mask=8x64"),
    ),
)


def main() -> None:
    start = time.perf_counter()
    shutil.rmtree(BUILD, ignore_errors=True)
    program = BUILD / "run"
    run([str(ROOT / "examples/cpp/build"), sys.executable, str(program)])
    for example in EXAMPLES:
        show(example, program)
    print("\nThe times above are those of this CPU. On a GPU:")
    for example in EXAMPLES:
        print(f"    {sentence(BUILD / example.name)}")
    print(f"\nmake demo: {len(EXAMPLES)} models in {time.perf_counter() - start:.0f} s; artifacts in build/demo/")


def show(example: Example, program: Path) -> None:
    print(f"\n━━━ {example.name}: {example.what}", flush=True)
    model, artifact = models.path(example.name), BUILD / example.name
    shapes = [option for shape in example.shapes for option in ("--shape", shape)]
    onnxopt("optimize", model, "-o", artifact, "--arch", "h200", *shapes)
    onnxopt("verify", model, artifact, *shapes)
    onnxopt("explain", artifact, most_lines=24)
    onnxopt("bench", artifact, "--against", model, "--seconds", "2", *shapes)
    run([sys.executable, str(ROOT / "examples/python/run.py"), str(artifact), *example.shapes])
    run([str(program), str(artifact), *example.shapes])


def sentence(artifact: Path) -> str:
    """What an artifact gains, in plain words."""
    command = [str(Path(sys.executable).with_name("onnxopt")), "explain", "--json", str(artifact)]
    explained = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    return str(explained["result"]["sentence"])


def onnxopt(*arguments: str | Path, most_lines: int | None = None) -> None:
    run([str(Path(sys.executable).with_name("onnxopt")), *map(str, arguments)], most_lines)


def run(command: list[str], most_lines: int | None = None) -> None:
    """Print a command as a user would type it, and run it; the demo ends where it fails.

    most_lines: print no more than so many lines of its output.
    """
    shown = [word.removeprefix(f"{Path(sys.executable).parent}/").removeprefix(f"{ROOT}/") for word in command]
    print(f"\n$ {' '.join(shown)}", flush=True)
    result = subprocess.run(command, cwd=ROOT, text=True, stdout=None if most_lines is None else subprocess.PIPE)
    if result.stdout:
        lines = result.stdout.splitlines()
        print("\n".join(lines[:most_lines]))
        if len(lines) > (most_lines or 0):
            print(f"    ... and {len(lines) - (most_lines or 0)} lines more")
    if result.returncode:
        sys.exit(f"make demo: the command above ended with exit code {result.returncode}")


if __name__ == "__main__":
    main()
