"""Models of lower precision open at every optimization level of every release, wherever its fusions meet a Cast.

One process of each release opens all of them; a process that ends says which model it had begun.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat import RELEASES, CannotInstall, install
from tests.support.precision import lowered_models

_OPSET = 18  # of the operators that all releases have
_OPEN = """
import sys
import onnxruntime as ort
folder, release = sys.argv[1:]
assert ort.__version__ == release, ort.__file__
for name in open(folder + "/names").read().splitlines():
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        print(name, level, end=" ", flush=True)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        try:
            ort.InferenceSession(f"{folder}/{name}.onnx", options, providers=["CPUExecutionProvider"])
            print("opened")
        except Exception as error:
            print(str(error).splitlines()[0])
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models, and their names in the file `names`."""
    folder = tmp_path_factory.mktemp("lowered")
    names: dict[str, str] = {}
    for fusion, columns in lowered_models.cases():
        (folder / "scratch").mkdir(exist_ok=True)
        for model, kept in lowered_models.converted(fusion, columns, folder / "scratch", _OPSET).items():
            name = f"m{len(names)}"
            (folder / f"{name}.onnx").write_bytes(model)
            names[name] = f"{fusion} of {columns}, with {kept} in float32"
    (folder / "names").write_text("\n".join(names), "utf-8")
    (folder / "what").write_text("\n".join(names.values()), "utf-8")
    return folder


@pytest.mark.compat
@pytest.mark.parametrize("release", RELEASES)
def test_converted_models_open(release: str, models: Path) -> None:
    try:
        path = install(release)
    except CannotInstall as error:
        pytest.skip(str(error))
    command = [sys.executable, "-s", "-c", _OPEN, str(models), release]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(path)}, capture_output=True, text=True, cwd=models
    )
    rows = [line.split(" ", 2) for line in done.stdout.splitlines()]
    what = dict(zip(*((models / file).read_text("utf-8").splitlines() for file in ("names", "what")), strict=True))
    wrong = [f"{what[name]}, {level}: {found}" for name, level, found in rows if found != "opened"]
    assert not wrong
    assert done.returncode == 0, what[rows[-1][0]] if rows else done.stderr
    assert len(rows) == 4 * len(what)
