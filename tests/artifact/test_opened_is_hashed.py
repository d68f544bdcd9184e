"""load opens what it hashed: files that are swapped between the two are noticed, or were never used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxopt
from onnxopt.artifact import private
from onnxopt.artifact import session as loading
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.runtime.sessions import CPU
from tests.support.artifacts import make, with_weights
from tests.support.small_models import CHAIN

pytestmark = pytest.mark.usefixtures("library")
OTHER_CHAIN = CHAIN.replace("Tanh", "Erf")


@pytest.fixture
def around_opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Have two functions called: after everything was hashed and before ONNX Runtime opens it, and after that."""
    open_session = loading.configurations.open_session

    def register(before: Callable[[], None], after: Callable[[], None] = lambda: None, times: int = 99) -> None:
        left = [times]

        def opening(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] >= 0:
                before()
            try:
                return open_session(*arguments, **options)
            finally:
                if left[0] >= 0:
                    after()

        monkeypatch.setattr(loading.configurations, "open_session", opening)

    return register


def chain_outputs(session: Any) -> np.ndarray:
    random = np.random.default_rng(0)
    feeds = {"x": (5, 8), "bias": (8,), "weight": (8, 8)}
    return session.run(None, {k: random.standard_normal(s, np.float32) for k, s in feeds.items()})[0]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return make(tmp_path / "artifact"), make(tmp_path / "other", OTHER_CHAIN)


@pytest.mark.parametrize("folder", ["lib", "providers"])
def test_what_runs_or_configures_is_a_copy(
    pair: tuple[Path, Path], around_opening: Callable[..., None], folder: str
) -> None:
    artifact, other = pair
    expected = chain_outputs(onnxopt.load(artifact, providers=[CPU]))

    def swap() -> None:
        shutil.rmtree(artifact / folder)
        shutil.copytree(other / folder, artifact / folder)
        if folder == "providers":
            path = artifact / "providers" / "cpu.json"
            document = json.loads(path.read_text())
            document["session_options"]["intra_op_num_threads"] = "not a number"
            path.write_text(json.dumps(document))

    around_opening(swap)
    np.testing.assert_array_equal(chain_outputs(onnxopt.load(artifact)), expected)
    if folder == "lib":
        with pytest.raises(ArtifactError, match=r"lib/kernels\.json"):  # the next time it is seen
            onnxopt.load(artifact)


def test_a_model_that_is_replaced_after_hashing(pair: tuple[Path, Path], around_opening: Callable[..., None]) -> None:
    artifact, other = pair
    around_opening(lambda: shutil.copy(other / "model.onnx", artifact / "model.onnx"))
    with pytest.raises(ArtifactError, match=r"artifact/model\.onnx: (has|is not the file)"):
        onnxopt.load(artifact)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
def test_a_file_that_is_swapped_and_put_back(tmp_path: Path, around_opening: Callable[..., None], name: str) -> None:
    weight = with_weights(tmp_path / "artifact")
    path, aside, other = (tmp_path / p for p in (f"artifact/{name}", "aside", "swapped"))
    other.write_bytes(path.read_bytes()[:-64] + bytes(64))

    def swap() -> None:
        path.rename(aside)
        shutil.copy(other, path)

    around_opening(swap, lambda: aside.replace(path), times=1)
    session = onnxopt.load(tmp_path / "artifact", providers=[CPU])  # the second time nobody disturbs it
    x = np.eye(64, dtype=np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], weight, rtol=1e-6)

    around_opening(swap, lambda: aside.replace(path))
    with pytest.raises(ArtifactError, match=rf"artifact/{name}: was changed while it was being opened|refused it"):
        onnxopt.load(tmp_path / "artifact", providers=[CPU])


def test_weights_that_are_written_to_in_place(tmp_path: Path, around_opening: Callable[..., None]) -> None:
    with_weights(tmp_path / "artifact")
    path = tmp_path / "artifact" / "model.onnx.data"
    content = path.read_bytes()

    around_opening(lambda: path.write_bytes(bytes(len(content))), lambda: path.write_bytes(content))
    with pytest.raises(ArtifactError, match=r"model\.onnx\.data: was changed while it was being opened"):
        onnxopt.load(tmp_path / "artifact", providers=[CPU])


def test_a_folder_that_is_swapped_and_put_back(
    pair: tuple[Path, Path], tmp_path: Path, around_opening: Callable[..., None]
) -> None:
    artifact, other = pair
    expected = chain_outputs(onnxopt.load(artifact, providers=[CPU]))

    def swap(first: Path, second: Path) -> None:
        first.rename(tmp_path / "between")
        second.rename(first)
        (tmp_path / "between").rename(second)

    around_opening(lambda: swap(artifact, other), lambda: swap(artifact, other))
    np.testing.assert_array_equal(chain_outputs(onnxopt.load(artifact, providers=[CPU])), expected)


def test_messages_and_sessions_have_the_artifacts_own_path(pair: tuple[Path, Path]) -> None:
    artifact, _ = pair
    session = onnxopt.load(artifact, providers=[CPU])
    expected = chain_outputs(session)
    session.set_providers([CPU])  # opens the model again
    np.testing.assert_array_equal(chain_outputs(session), expected)
    with pytest.raises(UsageError, match=f"^{artifact}: has no configuration 'none'; it has cpu, cuda"):
        onnxopt.load(artifact, configuration="none")


def test_sessions_of_one_artifact_share_one_library(pair: tuple[Path, Path]) -> None:
    sessions = [onnxopt.load(pair[0], providers=[CPU]) for _ in range(3)]
    maps = Path("/proc/self/maps").read_text()
    copy = private.folder("x").parent
    loaded = {line.split()[-1] for line in maps.splitlines() if line.endswith("libonnxopt_ops.so")}
    assert sum(path.startswith(str(copy)) for path in loaded) >= 1
    before = len(list(copy.iterdir()))
    sessions.append(onnxopt.load(pair[0], providers=[CPU]))
    assert len(list(copy.iterdir())) == before


CHILD = """
import os, signal, sys, tempfile, onnxopt
onnxopt.load(sys.argv[1], providers=["CPUExecutionProvider"])
print(len([n for n in os.listdir(os.environ["TMPDIR"]) if n.startswith("onnxopt.")]), flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_copies_go_with_the_process_or_with_the_next(pair: tuple[Path, Path], tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()

    def child(how: str) -> str:
        command = [sys.executable, "-c", CHILD, str(pair[0]), how]
        environment = {**os.environ, "TMPDIR": str(temporary)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120).stdout

    assert child("kill") == "1\n"
    (left,) = temporary.glob("onnxopt*")
    os.utime(left, (0, 0))
    assert child("end") == "1\n"
    assert not list(temporary.glob("onnxopt*"))


def test_a_temporary_folder_that_programs_cannot_be_run_from(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "_roots", {})
    monkeypatch.setattr(private, "_places", lambda: iter([Path("/proc")]))
    with pytest.raises(UsageError, match=r"cannot be copied to a temporary folder: .*set TMPDIR"):
        onnxopt.load(pair[0])


def test_a_read_only_file_system_needs_no_copy(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have no folder that can be written, and its image cannot be changed."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode != 0:
        pytest.skip("only root can mount")
    try:
        shutil.copytree(pair[0], folder / "artifact")
        monkeypatch.setattr(private, "_roots", {})
        monkeypatch.setattr(private, "_places", lambda: iter([]))
        with pytest.raises(UsageError, match="cannot be copied"):
            onnxopt.load(folder / "artifact", providers=[CPU])
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        assert chain_outputs(onnxopt.load(folder / "artifact", providers=[CPU])).shape == (5, 8)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
