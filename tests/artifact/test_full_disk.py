"""A full disk: the error names TMPDIR where temporary files did not fit, else the output, and nothing is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

from onnxopt.artifact import archive
from onnxopt.errors import UsageError
from onnxopt.pipeline import flow, forms
from tests.support.artifacts import make, with_weights
from tests.support.command import forked
from tests.support.small_models import CHAIN, RANDOM, write

pytestmark = pytest.mark.usefixtures("library")
BLOCK = 1 << 16


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("only root can mount")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with 9 MB of weights."""
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    draw = np.random.default_rng(0).standard_normal
    weights = [onnx.numpy_helper.from_array(draw((1024, 768), np.float32), f"w{k}") for k in range(3)]
    nodes = [onnx.helper.make_node("MatMul", ["x", f"w{k}"], [f"y{k}"]) for k in range(3)]
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", d]) for n, d in VALUES]
    graph = onnx.helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


# Larger than three pages, with the operators that draw numbers.
_NAME = "c" * 200
LONG_RANDOM = RANDOM.replace("(float[n] y)", "(float y)").replace(
    "y = Mul(b, x)",
    f"{_NAME}0 = Mul(b, x) "
    + " ".join(f"{_NAME}{k + 1} = Neg({_NAME}{k})" for k in range(60))
    + f" y = MatMul({_NAME}60, {_NAME}60)",
)
VALUES = [("x", 1024), ("y0", 768), ("y1", 768), ("y2", 768)]


def fill(folder: Path, free: int) -> None:
    """Leave `free` bytes of a small file system."""
    (folder / "filled").unlink(missing_ok=True)
    (folder / "filled").write_bytes(bytes(shutil.disk_usage(folder).free - free))


def left(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()} - {"filled", ".ses"}  # ONNX Runtime makes the second in TMPDIR


def assert_names(result: tuple[int, str], path: Path, *words: str) -> None:
    code, text = result
    assert code == 2, text
    (line,) = [line for line in text.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {path}: "), text
    for word in ("No space left on device", *words):
        assert word in line
    assert "Traceback" not in text


def test_an_output_that_does_not_fit(small: Path, large: Path, tmp_path: Path) -> None:
    for external in ("--external-data", "--no-external-data"):
        assert_names(forked("optimize", large, "-o", small / "out", "--arch", "none", external), small / "out")
        assert not left(small)


def test_an_archive_that_does_not_fit(small: Path, tmp_path: Path) -> None:
    packed = archive.pack(make(tmp_path / "artifact", CHAIN), tmp_path / "a.zip")
    assert_names(forked("pack", tmp_path / "artifact", small / "a.zip"), small / "a.zip")
    assert_names(forked("unpack", packed, small / "out"), small / "out")
    assert not left(small)


def test_temporary_files_that_do_not_fit_while_rewriting(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewriting joins weights in a temporary file."""

    def rewrite(_model: object, folder: Path, **_: object) -> None:
        (folder / "weights").write_bytes(bytes(2 << 20))

    monkeypatch.setattr(tempfile, "tempdir", str(small))
    monkeypatch.setattr(forms.rewrite, "rewrite", rewrite)
    with pytest.raises(UsageError, match=f"^{small}: cannot be written: No space left on device; .*TMPDIR"):
        flow.optimize(write(tmp_path / "model.onnx", CHAIN), tmp_path / "out", archs=())
    assert not (tmp_path / "out").exists()
    assert not left(small)


@pytest.mark.parametrize("name", ["optimize", "verify", "bench"])
def test_temporary_files_that_do_not_fit_while_verifying(name: str, small: Path, tmp_path: Path) -> None:
    """Verifying a model that draws numbers writes a copy with seeds."""
    model = write(tmp_path / "model.onnx", LONG_RANDOM)
    if name != "optimize":
        assert forked("optimize", model, "-o", tmp_path / "made", "--arch", "none")[0] == 0
    arguments = {
        "optimize": [model, "-o", tmp_path / "out", "--arch", "none"],
        "verify": [model, tmp_path / "made"],
        "bench": [tmp_path / "made"],
    }[name]
    fill(small, 3 * 4096)  # Python looks for another folder where nothing fits at all
    assert_names(forked(name, *arguments, TMPDIR=small), small, "TMPDIR")
    assert not (tmp_path / "out").exists()
    assert not left(small)


def test_a_library_that_does_not_fit_while_verifying(small: Path, tmp_path: Path) -> None:
    """Verifying copies the library into the temporary folder."""
    model = write(tmp_path / "model.onnx", CHAIN)
    fill(small, 200_000)
    assert_names(forked("optimize", model, "-o", tmp_path / "out", "--arch", "none", TMPDIR=small), small, "TMPDIR")
    assert not (tmp_path / "out").exists()
    assert not left(small)


def test_a_library_that_does_not_fit_where_load_copies_it(small: Path, tmp_path: Path) -> None:
    make(tmp_path / "artifact")
    code = (
        "import sys; from pathlib import Path; import onnxopt; from onnxopt.artifact import private\n"
        f"private._places = lambda: iter([Path({str(small)!r})])\n"
        f"onnxopt.load({str(tmp_path / 'artifact')!r}, providers=['CPUExecutionProvider'])\n"
    )
    environment = {**os.environ, "TMPDIR": str(small)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert f"UsageError: {small}: the artifact's library cannot be copied" in done.stderr
    assert "set TMPDIR" in done.stderr
    assert not left(small)


def test_a_cache_that_is_full_is_a_warning(small: Path, tmp_path: Path) -> None:
    fill(small, BLOCK)
    with_weights(tmp_path / "weights")
    packed = archive.pack(make(tmp_path / "artifact"), tmp_path / "a.zip")
    code, text = forked("verify", packed, packed, XDG_CACHE_HOME=small)
    assert code == 0, text
    assert f"{small}/onnxopt/artifacts" in text and "No space left on device" in text
    model = write(tmp_path / "chain.onnx", CHAIN)
    fill(small, 0)
    code, text = forked("optimize", model, "-o", tmp_path / "out", "--arch", "sm_90", XDG_CACHE_HOME=small)
    assert code == 0, text
    assert text.count("compiled kernels are not cached: ") == 1
    assert f"{small}/onnxopt/kernels: No space left on device" in text
