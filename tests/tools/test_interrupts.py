"""Ctrl-C, SIGTERM, SIGPIPE: the command ends within a second in every step, without a traceback, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnxopt import background
from tests.support.small_models import CHAIN, write

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 2.0  # an idle machine takes 0.6
# A shell starts background jobs with SIGINT ignored, and Python leaves it so.
# SIGHUP stays ignored in a process that inherits that, as below nohup.
_HEED = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
)
# Stops in a step, in C code that no signal interrupts, as ONNX Runtime's and NVRTC's: the second lock waits for ever.
_STOP = """
import contextlib, ctypes, sys
from onnxopt.__main__ import run
from onnxopt import phases
steps = phases.Phases.__call__

@contextlib.contextmanager
def stopping(self, name):
    with steps(self, name):
        if name == {step!r}:
            print("at", name, flush=True)
            {action}
        yield

phases.Phases.__call__ = stopping
sys.argv = ["onnxopt", "optimize", {model!r}, "-o", {output!r}, *{options!r}]
run()
"""
_BLOCK = "mutex = ctypes.create_string_buffer(64); [ctypes.CDLL(None).pthread_mutex_lock(mutex) for _ in range(2)]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def _begun(folder: Path, output: Path, step: str, action: str, options: list[str]) -> subprocess.Popen[str]:
    """The command that optimizes a model of the folder, where it stops in a step. Temporary files go to folder/tmp."""
    model, temporary = write(folder / "chain.onnx", CHAIN), folder / "tmp"
    temporary.mkdir(exist_ok=True)
    program = _HEED + _STOP.format(
        step=step, action=action, model=str(model), output=str(output), options=[*options, "--quiet"]
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(folder.parent / "cache")},
    )
    assert process.stdout is not None
    for line in iter(process.stdout.readline, f"at {step}\n"):
        assert line, process.communicate()
    return process


def _interrupted(
    folder: Path, number: signal.Signals, step: str, action: str, options: list[str], delay: float = 0.3
) -> float:
    """Seconds until the command ended after a signal in a step; asserts how it ended and that nothing is left."""
    model, temporary = folder / "chain.onnx", folder / "tmp"
    process = _begun(folder, folder / "new" / "out", step, action, options)
    time.sleep(delay)
    started = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    seconds = time.monotonic() - started
    assert errors == ""
    assert process.returncode == 128 + number
    assert sorted(folder.rglob("*")) == [model, temporary]
    return seconds


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("step", ["load", "package", "verify"])
def test_a_step_inside_c_code(folder: Path, step: str) -> None:
    assert _interrupted(folder, signal.SIGINT, step, _BLOCK, ["--arch", "none"]) < SECONDS


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_plain_kill_and_a_terminal_that_goes_away(folder: Path, number: signal.Signals) -> None:
    assert _interrupted(folder, number, "verify", _BLOCK, ["--arch", "none"]) < SECONDS


@pytest.mark.usefixtures("library")
def test_what_a_killed_run_leaves_is_removed_by_a_later_one_and_what_a_running_one_writes_is_not(folder: Path) -> None:
    temporary, own = folder / "tmp", folder / "onnxopt.own"
    own.mkdir()
    killed, running = (_begun(folder, folder / name, "verify", _BLOCK, ["--arch", "none"]) for name in ("a", "b"))
    before = {*folder.glob(".*.partial"), *temporary.glob("onnxopt.*")}
    assert len(before) >= 4
    killed.kill()
    killed.communicate()
    later = _begun(folder, folder / "c", "verify", "pass", ["--arch", "none"])
    _, errors = later.communicate(timeout=60)
    assert (later.returncode, errors) == (0, "") and (folder / "c" / "model.onnx").is_file()
    left = {*folder.glob(".*.partial"), *temporary.glob("onnxopt.*")}
    assert left < before and len(left) == len(before) / 2
    assert all(path.name.startswith(".b.") for path in left if path.parent == folder) and own.is_dir()
    running.terminate()
    running.communicate()
    assert not {*folder.glob(".*.partial"), *temporary.glob("onnxopt.*")}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("delay", [pytest.param(0.1, marks=pytest.mark.exhaustive), 1.0])
def test_compiling_for_all_architectures(folder: Path, delay: float) -> None:
    """NVRTC takes many seconds here, and handles signals itself; nobody waits for it, and it leaves no half image."""
    assert _interrupted(folder, signal.SIGINT, "dims", "pass", [], delay) < SECONDS  # which begins beside compiling
    assert not list((folder.parent / "cache").rglob("*.partial"))


def test_while_importing_the_process_ends_silently(tmp_path: Path) -> None:
    program = _HEED + (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'click': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import onnxopt.__main__"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_an_ignored_signal_stays_ignored() -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from onnxopt.__main__ import run; from onnxopt.tools import interrupts; interrupts.install()\n"
        "import os; os.kill(os.getpid(), signal.SIGINT); print('goes on')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "goes on\n", "")


def test_from_python_the_exception_comes_at_once() -> None:
    """Library code is not ended: KeyboardInterrupt is raised, work that has not begun is dropped, the rest is left."""
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        time.sleep(0.5)

    def interrupted() -> None:
        with background.threads() as pool:
            for number in range(100):
                pool.submit(work, number)
            raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - started < 0.4
    time.sleep(0.7)
    assert len(begun) <= (os.cpu_count() or 1)


def test_a_reader_that_goes_away_is_no_finding() -> None:
    """Code 1 of doctor says that there are problems."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "onnxopt", "doctor"], stdout=writer, stderr=subprocess.PIPE, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")
