"""Kernels are compiled while the rest of an artifact is made and verified: what each of the two may do to the other."""

from __future__ import annotations

import os
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

import onnxopt
from onnxopt import children
from onnxopt.children import ChildEnded, Children
from onnxopt.codegen.nvrtc import Compiled
from onnxopt.errors import CompileError, VerificationError
from onnxopt.pipeline import fused, making
from onnxopt.pipeline.machine_code import MachineCode
from tests.support.fakes.custom_ops_fake_driver import fatbin

pytestmark = pytest.mark.usefixtures("library")
_SECONDS = 20.0
_TEXT = """
    <ir_version: 10, opset_import: ["" : 20]>
    g (float[N, 64] x) => (float[N, 64] y) { r = Relu (x) s = Sigmoid (r) t = Mul (r, s) y = Add (t, s) }
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(_TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def _compile_by(monkeypatch: pytest.MonkeyPatch, work: Callable[[Children], None]) -> None:
    def compiled(
        source: str, archs: object, cache: object, progress: object, beside: Children
    ) -> types.SimpleNamespace:
        work(beside)
        return types.SimpleNamespace(fatbin=fatbin((90, False)), usage={})

    monkeypatch.setattr(fused, "compiled", compiled)


def test_the_result_is_known_before_kernels_are_compiled(
    model: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = threading.Event()
    results: list[onnxopt.Artifact] = []

    def waited(_: Children) -> None:
        assert known.wait(_SECONDS), "verification waits for the compiler"

    class Shown:
        def __call__(self, phase: str, detail: str, done: int, total: int) -> None: ...

        def result(self, made: onnxopt.Artifact) -> None:
            results.append(made)
            assert not artifact.exists()
            known.set()

    _compile_by(monkeypatch, waited)
    made = onnxopt.optimize(model, artifact, archs=("sm_90",), progress=Shown())
    (first,) = results
    assert first.result.verify == made.result.verify == "passed"
    assert not first.result.library_bytes
    assert made.result.library_bytes
    assert first.result.sentence == made.result.sentence
    assert (artifact / "lib" / "kernels.fatbin").is_file()


def test_an_error_of_the_compiler_leaves_nothing(model: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Children) -> None:
        raise CompileError("no such header")

    _compile_by(monkeypatch, fails)
    with pytest.raises(CompileError, match="no such header"):
        onnxopt.optimize(model, artifact, archs=("sm_90",))
    assert os.listdir(model.parent) == [model.name]


def test_an_error_of_verification_ends_the_compiler(
    model: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), list[str]()

    def endless(beside: Children) -> None:
        begun.set()
        try:
            beside.run(["/bin/sleep", "600"], ())
        except ChildEnded as error:
            ended.append(str(error))
            raise

    def fails(*_: object, **__: object) -> Any:
        assert begun.wait(_SECONDS)
        raise VerificationError("outputs differ")

    _compile_by(monkeypatch, endless)
    monkeypatch.setattr(making, "verify_and_leave_out", fails)
    started = time.monotonic()
    with pytest.raises(VerificationError, match="outputs differ"):
        onnxopt.optimize(model, artifact, archs=("sm_90",))
    while not ended and time.monotonic() - started < _SECONDS:
        time.sleep(0.01)
    assert ended == ["SIGKILL"]
    assert os.listdir(model.parent) == [model.name]


def test_progress_comes_on_the_thread_that_waits() -> None:
    calls: list[tuple[int, int, int]] = []

    def compile(progress: Callable[[int, int], None], _: Children) -> Compiled:
        for done in range(3):
            progress(done, 2)
        return Compiled(b"", {})

    with MachineCode("", compile) as code:
        while not code.is_done:
            time.sleep(0.01)
        assert code.wait(lambda *step: calls.append((threading.get_ident(), *step))) == Compiled(b"", {})
    assert calls == []
    go = threading.Event()

    def later(progress: Callable[[int, int], None], beside: Children) -> Compiled:
        assert go.wait(_SECONDS)
        return compile(progress, beside)

    with MachineCode("", later) as code:
        threading.Timer(0.1, go.set).start()
        code.wait(lambda *step: calls.append((threading.get_ident(), *step)))
    assert calls == [(threading.get_ident(), done, 2) for done in range(3)]


def test_compilers_stand_still_while_a_run_is_timed() -> None:
    beside, alone = Children(beside=True), Children()
    threads = [threading.Thread(target=_sleep, args=(all_of,)) for all_of in (beside, alone)]
    with beside, alone:
        for thread in threads:
            thread.start()
        while _states(beside) != ["S"] or _states(alone) != ["S"]:
            time.sleep(0.01)
        with children.none_beside():
            _await(lambda: _states(beside) == ["T"])
            assert _states(alone) == ["S"]
        _await(lambda: _states(beside) == ["S"])
    for thread in threads:
        thread.join(_SECONDS)
        assert not thread.is_alive()


def _sleep(by: Children) -> None:
    with pytest.raises(ChildEnded):
        by.run(["/bin/sleep", "600"], ())


def _await(condition: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < _SECONDS
        time.sleep(0.01)


def _states(by: Children) -> list[str]:
    """S for a process that sleeps, T for one that is stopped, of those that execute their program already."""
    found = [Path(f"/proc/{child.pid}/stat").read_text() for child in list(by._running)]
    return [text.rpartition(")")[2].split()[0] for text in found if "(sleep)" in text]
