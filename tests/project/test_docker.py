"""The Dockerfiles, as far as that goes without Docker: what they copy, pin and run, and the service's own commands.

`make check` lints them with hadolint.
"""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.parser
import pytest

import onnxopt
from tests.support.small_models import HEADER

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
SERVICE = ROOT / "examples" / "fastapi"
BROUGHT = {"starlette", "pydantic_core"}  # by fastapi


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile with their arguments, each in one line."""
    text = re.sub(r"^#.*\n", "", path.read_text("utf-8"), flags=re.M).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def arguments(path: Path, wanted: str) -> list[str]:
    return [rest for name, rest in instructions(path) if name == wanted]


def test_there_is_one_for_converting_and_one_for_serving() -> None:
    assert [path.name for path in FILES] == ["convert.Dockerfile", "serve.Dockerfile"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_is_pinned_and_runs_without_rights(path: Path) -> None:
    (base,) = arguments(path, "FROM")
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base)
    (user,) = arguments(path, "USER")
    made = [rest for rest in arguments(path, "RUN") if "useradd" in rest]
    assert int(user) >= 1000
    assert f"--uid {user} " in made[0]
    assert instructions(path).index(("USER", user)) > instructions(path).index(("RUN", made[0]))


def test_serving_installs_what_the_service_imports() -> None:
    """And pins it; what the service imports comes from its source, without the standard library and its own files."""
    path = ROOT / "docker" / "serve.Dockerfile"
    (install,) = [rest for rest in arguments(path, "RUN") if rest.startswith("pip install")]
    packages = [word.strip('"') for word in install.split()[2:] if not word.startswith("--")]
    assert all("==" in package for package in packages), packages
    installed = {re.split(r"[\[=]", package)[0].removesuffix("-gpu").replace("-", "_") for package in packages}
    needed = {"uvicorn"}
    for source in set(SERVICE.rglob("*.py")) - {SERVICE / "locustfile.py"}:  # the load test, which comes from elsewhere
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                needed |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                needed.add(str(node.module).split(".")[0])
    own = {source.stem for source in SERVICE.rglob("*.py")} | {folder.name for folder in SERVICE.iterdir()}
    assert needed - set(sys.stdlib_module_names) - own - BROUGHT <= installed


def test_what_they_copy_is_in_the_build_context() -> None:
    """.dockerignore leaves out everything that no Dockerfile takes."""
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    taken = {rest.split()[0] for path in FILES for rest in arguments(path, "COPY")}
    taken |= {found for path in FILES for rest in arguments(path, "RUN") for found in re.findall(r"source=(\w+)", rest)}
    assert {entry.removesuffix("/*.whl") for entry in kept} == taken
    assert all((ROOT / entry).is_dir() for entry in taken - {"dist"})


def test_the_wheel_that_is_installed_is_the_one_that_make_builds() -> None:
    (install,) = [rest for rest in arguments(ROOT / "docker" / "convert.Dockerfile", "RUN") if "pip install" in rest]
    assert "/dist/onnxopt-*-manylinux_2_28_x86_64.whl" in install
    assert "plat-name=manylinux_2_28_$(MACHINE)" in (ROOT / "Makefile").read_text("utf-8")


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def served(port: int, tmp_path: Path, library: Path) -> Iterator[subprocess.Popen[str]]:
    """CMD of serve.Dockerfile as it stands, but for the places of its files, the interface and the port."""
    for name in ("fastapi", "prometheus_client", "uvicorn"):
        pytest.importorskip(name, reason=f'{name} is not installed; run: pip install -e ".[examples]"')
    model = onnx.parser.parse_model(HEADER + "g (float[n, 2] x) => (float[n, 2] y) { a = Tanh(x) y = Mul(a, x) }")
    onnx.save(model, tmp_path / "model.onnx")
    artifact = onnxopt.optimize(tmp_path / "model.onnx", tmp_path / "artifact", archs=(), verify=False).path
    (command,) = arguments(ROOT / "docker" / "serve.Dockerfile", "CMD")
    here = {"/service": str(SERVICE), "0.0.0.0": "127.0.0.1", "8000": str(port)}
    words = [here.get(word, word) for word in json.loads(command)]
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        env={**os.environ, "ARTIFACT": str(artifact)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.terminate()
    process.communicate(timeout=30)


def healthy(port: int) -> bool:
    """What HEALTHCHECK of serve.Dockerfile finds, at this port."""
    (check,) = arguments(ROOT / "docker" / "serve.Dockerfile", "HEALTHCHECK")
    _, *code = json.loads(check.partition("CMD")[2].replace(":8000/", f":{port}/"))
    return subprocess.run([sys.executable, *code], capture_output=True).returncode == 0


def test_the_health_check_tells_a_running_service(served: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 60
    while not healthy(port):
        assert served.poll() is None, served.communicate()[1]
        assert time.monotonic() < deadline, "the service never became healthy"
    served.terminate()
    served.wait(timeout=30)
    assert not healthy(port)
