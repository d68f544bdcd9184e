"""The commands of the pages in docs/recipes run as they are printed, in their order, with small networks on a CPU.

`make fuzz` runs them (-m exhaustive), so every night does. Export scripts get --small and `optimize` gets --arch none.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.project.test_services import free_port

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(page for page in (ROOT / "docs" / "recipes").glob("*.md") if page.name != "README.md")
Change = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
EXPORTERS = ROOT / ".venv-exporters" / "bin" / "python"
NEEDS_EXPORTERS = {"yolo.py"}


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
    return [line for block in blocks for line in block.splitlines()]


def words(line: str, ports: Mapping[str, int]) -> tuple[dict[str, str], list[str]]:
    """What a line adds to the environment, and its command as it runs here. ports: the page's to those of this run."""
    for shown, port in ports.items():
        line = line.replace(f"localhost:{shown}", f"127.0.0.1:{port}").replace(f"--port {shown}", f"--port {port}")
    parts = shlex.split(line)
    added = dict(parts.pop(0).split("=", 1) for _ in range(len(parts)) if "=" in parts[0] and parts[0][0].isupper())
    if parts[0] == "uvicorn":
        return added, [sys.executable, "-m", *parts, *([] if "--port" in parts else ["--port", str(ports["8000"])])]
    if parts[0] == "onnxopt":
        arch = ["--arch", "none"] if parts[1] == "optimize" else []
        return added, [sys.executable, "-m", *parts, *arch]
    script = Path(parts[1]).name
    python = EXPORTERS if script in NEEDS_EXPORTERS else sys.executable
    return added, [str(python), *parts[1:], *(["--small"] if script != "check.py" else [])]


def wait_until_ready(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    process.kill()
    pytest.fail(f"the service did not start:\n{process.communicate()[0]}")


@pytest.fixture
def services() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_recipe(page: Path, tmp_path: Path, library: Path, services: list[subprocess.Popen[str]]) -> None:
    for package in ("torch", "transformers", "fastapi", "uvicorn", "prometheus_client", "tritonclient.http"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install -e '.[models,examples]'")
    lines = commands(page)
    if page.stem == "diffusion":
        pytest.importorskip("diffusers", reason="diffusers is missing: pip install -e '.[examples]'")
    if any(script in line for script in NEEDS_EXPORTERS for line in lines) and not EXPORTERS.is_file():
        pytest.skip("needs ultralytics of .venv-exporters; run: make exporters")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    ports = {"8000": free_port(), "8001": free_port()}
    for line in lines:
        added, command = words(line, ports)
        environment = {**os.environ, "PYTHONPATH": path, **added}
        if "uvicorn" in command:
            options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            services.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **options))
            wait_until_ready(services[-1], int(command[-1]))
            continue
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert [line for line in lines if "check.py" in line and "localhost" in line], "the page asks no server"
    assert services


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "recipes"))
    return importlib.import_module("check")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda expected: {"y": expected["y"] + 0.1}, "y [2, 2]: max difference from PyTorch 0.1 "),
        (lambda expected: {"y": expected["y"][:1]}, "y: [2, 2], PyTorch gave [1, 2]"),
        (lambda expected: {"y": np.full_like(expected["y"], np.nan)}, "max difference from PyTorch nan"),
    ],
)
def test_check_refuses_other_outputs(
    check: ModuleType, change: Change, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {"y": np.array([[1.0, -0.5], [0.25, 0.0]], np.float32)}
    assert check.report(expected, expected, 1e-3)
    assert not check.report(expected, change(expected), 1e-3)
    assert message in capsys.readouterr().out


def test_check_compares_detections_in_any_order(check: ModuleType) -> None:
    expected = {"selected": np.array([[0, 1, 7], [1, 0, 3], [0, 0, 9]]), "scores": np.array([0.5, 0.4, 0.3])}
    swapped = {name: array[[1, 0, 2]] for name, array in expected.items()}
    assert not check.report(swapped, expected, 1e-3)
    both = [check.in_order(outputs, "selected") for outputs in (swapped, expected)]
    assert check.report(*both, 1e-3)
    other = {**swapped, "scores": swapped["scores"][[1, 0, 2]]}  # a score of another detection
    assert not check.report(check.in_order(other, "selected"), both[1], 1e-3)
    moved = {**swapped, "selected": swapped["selected"] + np.array([0, 0, 1])}  # a neighbouring anchor
    assert not check.report(check.in_order(moved, "selected"), both[1], 1e-3)
