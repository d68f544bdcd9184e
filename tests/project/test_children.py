"""Children: processes that answer once, are killed on request, and end with their parent."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from onnxopt import children
from onnxopt.children import ChildEnded, Children

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 20.0  # an idle machine takes 0.2


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "answering.py").write_text(
        "import os, sys, time\n"
        "def serve():\n"
        "    message = sys.stdin.buffer.read()\n"
        "    if message == b'die': os.abort()\n"
        "    if message == b'exit': os._exit(4)\n"
        "    if message == b'sleep': time.sleep(600)\n"
        "    print('noise', file=sys.stderr)\n"
        "    sys.stdout.buffer.write(message.upper())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "answering"


def test_an_answer(module: str) -> None:
    with Children() as children:
        assert children.ask(module, b"hello") == b"HELLO"


def test_onnx_runtime_is_silent_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the user has said otherwise."""
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **__: environments.append(env))
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    children.start("a")
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    children.start("a", "/scratch")
    assert [env["ORT_DISABLE_TELEMETRY"] for env in environments] == ["1", "0"]
    assert environments[1]["TMPDIR"] == "/scratch"


@pytest.mark.parametrize(("message", "how"), [(b"die", "SIGABRT"), (b"exit", "exit code 4")])
def test_how_a_child_ended_is_said(module: str, message: bytes, how: str) -> None:
    with Children() as children, pytest.raises(ChildEnded, match=f"^{how}$"):
        children.ask(module, message)


def test_leaving_the_block_ends_what_runs_and_what_would_begin(module: str) -> None:
    ended: list[str] = []

    def ask() -> None:
        try:
            children.ask(module, b"sleep")
        except ChildEnded as error:
            ended.append(str(error))

    with Children() as children:
        thread = threading.Thread(target=ask)
        thread.start()
        time.sleep(0.3)
    thread.join(SECONDS)
    ask()
    assert ended == ["SIGKILL", "SIGKILL"]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a child that its parent ended")
def test_a_child_ends_with_its_parent(module: str, tmp_path: Path) -> None:
    program = (
        f"import sys, time; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n"
        "from onnxopt import children\n"
        f"child = children.start({module!r})\n"
        "child.stdin.write(b'sleep'); child.stdin.close()\n"
        "time.sleep(1); print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert _runs(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    started = time.monotonic()
    while _runs(child) and time.monotonic() - started < SECONDS:
        time.sleep(0.05)
    assert not _runs(child)


def _runs(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
