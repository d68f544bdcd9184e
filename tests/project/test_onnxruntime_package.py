"""No ONNX Runtime, two builds over each other, and what is left when one of them was removed: one clear line each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

ROOT = Path(__file__).resolve().parents[2]
REINSTALL = "pip install --force-reinstall --no-deps onnxruntime-gpu"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages: those of this environment, without any ONNX Runtime."""
    folder = tmp_path / "site"
    folder.mkdir()
    for entry in Path(onnx.__file__).parents[1].iterdir():
        if not entry.name.startswith(("onnxruntime", "onnxopt", "__editable__")):
            (folder / entry.name).symlink_to(entry)
    return folder


def install(site: Path, *builds: str, files: bool = True) -> None:
    """What pip makes of the builds: a folder of metadata each, and one module. files: whether the module has any."""
    for build in builds:
        (site / f"{build.replace('-', '_')}-1.31.1.dist-info").mkdir()
    (site / "onnxruntime" / "capi").mkdir(parents=True)
    if files:
        (site / "onnxruntime" / "__init__.py").write_text("")


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python without this environment's packages (-S), and with those of `site`."""
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    return subprocess.run([sys.executable, "-S", *arguments], capture_output=True, text=True, env=env)


def imported(site: Path) -> subprocess.CompletedProcess[str]:
    return run(site, "-c", "import onnxopt")


@pytest.mark.parametrize("builds", [["onnxruntime"], ["onnxruntime-gpu"]])
def test_one_build(site: Path, builds: list[str]) -> None:
    install(site, *builds)
    done = imported(site)
    assert (done.returncode, done.stderr) == (0, "")


def test_neither(site: Path) -> None:
    done = imported(site)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: ONNX Runtime is not installed; pip install onnxruntime"
    )
    done = run(site, "-m", "onnxopt", "keygen", "key")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ONNX Runtime is not installed; ")
    assert done.stderr.count("\n") == 1


def test_both(site: Path) -> None:
    install(site, "onnxruntime", "onnxruntime-gpu")
    line = "onnxruntime and onnxruntime-gpu are both installed: they are one Python package and overwrite each other; "
    done = imported(site)
    assert done.returncode == 0
    assert f"RuntimeWarning: {line}pip uninstall onnxruntime onnxruntime-gpu, " in done.stderr
    assert done.stderr.count("\n") == 1
    done = run(site, "-m", "onnxopt", "keygen", str(site / "key"))
    assert done.stderr.startswith(f"warning: {line}")


def test_one_of_two_was_removed(site: Path) -> None:
    """Python then takes the folder for a namespace package, where every name is an AttributeError."""
    install(site, "onnxruntime-gpu", files=False)
    done = imported(site)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: ONNX Runtime in ")
    assert done.stderr.endswith(f"{REINSTALL}\n")
    done = run(site, "-m", "onnxopt", "keygen", "key")
    assert done.returncode == 2
    assert "AttributeError" not in done.stderr
    assert done.stderr.endswith(f"{REINSTALL}\n")
