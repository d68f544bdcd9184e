"""The README: what its example prints is what a run prints, and its figures are those of the result files.

python -m tests.project.test_readme     runs the example and writes its output into the page
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.support import claims, measured_models

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
SHOWN = re.compile(r"^\$ (onnxopt optimize .*)\n((?:.*\n)*?)```\n", re.M)
LEFT_OUT = (
    "CPUExecutionProvider: ",
    "wrote ",
)  # lines for which the page has "...": what a busy machine changes


def printed(folder: Path) -> list[str]:
    """The lines of stdout of the page's command, on the model that its first Python block exports."""
    text = README.read_text("utf-8")
    export = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)[0]
    subprocess.run([sys.executable, "-c", export], cwd=folder, check=True, capture_output=True)
    shown = SHOWN.search(text)
    assert shown is not None
    main = "import sys; from onnxopt.tools.cli import main; main()"
    words = shown[1].split()[1:]
    done = subprocess.run([sys.executable, "-c", main, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines: list[str] = []
    for line in done.stdout.splitlines():
        if not line.startswith(LEFT_OUT):
            lines.append(line)
        elif lines[-1:] != ["..."]:
            lines.append("...")
    return lines


def masked(lines: list[str]) -> list[str]:
    """Without what another processor or a busy machine changes: numbers of cases, and errors."""
    return [re.sub(r"(?<= passed) .*", " #", line) for line in lines]


def test_the_example_prints_what_the_page_shows(tmp_path: Path, library: Path) -> None:
    shown = SHOWN.search(README.read_text("utf-8"))
    assert shown is not None
    lines = shown[2].splitlines()
    assert lines[0] and "..." in lines
    assert masked(lines) == masked(printed(tmp_path)), "run: python -m tests.project.test_readme"


def test_the_picture_has_every_model() -> None:
    """tests/project/test_docs.py compares it with the result files."""
    drawn = measured_models.picture()
    assert drawn.count('<rect class="onnxopt"') == 1 + len(list(measured_models.measured()))


def test_its_figures_are_those_of_the_result_files() -> None:
    """The sentences about all networks, and about CPUs."""
    text = " ".join(README.read_text("utf-8").split())
    figures = claims.figures()
    every = "transformers, convolution networks, speech, volumes, recommenders, beside the best of ONNX Runtime"
    count, least, most, average = re.findall(r"[\d.]+", figures[every])
    assert f"{count} networks of every kind: {least} to {most} times as fast" in text
    assert f"({average} in the geometric mean; two recurrent networks" in text
    compiled = "the same beside the best of `torch.compile`, where it was timed"
    count, least, most, average = re.findall(r"[\d.]+", figures[compiled])
    assert f"{count} of them were also timed with `torch.compile`: onnxopt was {least} to {most} times as fast" in text
    rows = json.loads((claims.RESULTS / "models/gpu_networks_h200.json").read_text())
    torch = {
        n: [v for k, v in row.items() if k.startswith("torch") and isinstance(v, float)] for n, row in rows.items()
    }
    usual = [min(times) / rows[name]["onnxopt"] for name, times in torch.items() if times and min(times) < 11]
    assert int(count) - len(usual) == 4
    without = f"{statistics.geometric_mean(usual):.2f} without four speech and recurrent networks"
    assert f"times as fast ({average} in the geometric mean), {without} that take torch above 11 ms" in text
    _, _, least, most, _ = re.findall(r"[\d.]+", figures["chains on a CPU beside ONNX Runtime"])  # 13 chains of 16 MB
    assert f"run {float(least):.1f} to {float(most):.1f} times as fast on two cores" in text
    total, faster, slower = re.findall(r"\d+", figures["trained models on a CPU beside ONNX Runtime"])
    assert f"Of {total} trained models {faster} became faster by more than the noise, and {slower} slower" in text


def test_it_is_short() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 180


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        output = "".join(f"{line}\n" for line in printed(Path(scratch)))
    README.write_text(
        SHOWN.sub(lambda found: f"$ {found[1]}\n{output}```\n", README.read_text("utf-8"), count=1), "utf-8"
    )
