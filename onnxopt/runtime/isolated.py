"""ONNX Runtime in a process of its own, for models that can end the process that runs them.

ONNX Runtime checks neither integer division by zero nor INT_MIN / -1, and asserts on sizes near 2^63: the process gets
SIGFPE or SIGABRT, and no exception is raised. A trial runs such a model in a child process first.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, BinaryIO

from onnxopt import children
from onnxopt.runtime import sessions, time_limit
from onnxopt.runtime.sessions import Array, RunError, RunTimeout


class Trial:
    """A model in a child process, started again where it died.

    provider, library: as for sessions.open_session. The child ends with this process.
    """

    def __init__(self, model: Path, *, provider: str, library: Path | None) -> None:
        self._arguments = (str(model), provider, None if library is None else str(library))
        self._child: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Create a session. RunError where ONNX Runtime refuses the model, or its process ends."""
        self._child = children.start(__name__)
        self._ask(self._arguments)

    def run(self, feeds: Mapping[str, Array]) -> None:
        """Run the model, without its outputs. RunError where ONNX Runtime refuses, or its process ends."""
        if self._child is None:
            self.open()
        self._ask(dict(feeds))

    def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()

    def _wait(self, answers: IO[bytes]) -> None:
        """Until there is an answer. RunTimeout where that takes longer than a run may, which ends the child."""
        limit = time_limit.current()
        if limit is not None and not select.select([answers], [], [], limit.seconds)[0]:
            raise RunTimeout(str(time_limit.TimeIsUp(limit)))

    def _ask(self, message: object) -> None:
        assert self._child is not None and self._child.stdin is not None and self._child.stdout is not None
        answer = b""
        try:
            with contextlib.suppress(BrokenPipeError):  # it died; its exit code says how
                pickle.dump(message, self._child.stdin, protocol=5)
                self._child.stdin.flush()
                self._wait(self._child.stdout)
                answer = self._child.stdout.readline()
        except BaseException:
            self.close()
            raise
        if answer:
            if text := json.loads(answer):
                raise RunError(text)
            return
        child, self._child = self._child, None
        child.communicate()
        raise RunError(f"ONNX Runtime ended its process ({children.ending(child.returncode)})")


def serve() -> None:
    """The child: create the session that the first message names, run it for the others, answer with an error or "".

    Messages are pickles, which are safe here: the parent alone writes to this pipe.
    """
    answers = sys.stdout.buffer
    model, provider, library = pickle.load(sys.stdin.buffer)
    session = None
    try:
        session = sessions.open_session(
            Path(model), provider=provider, library=None if library is None else Path(library)
        )
    except RunError as error:
        _answer(answers, str(error))
        return
    _answer(answers, "")
    while True:
        try:
            feeds = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            sessions.run(session, feeds)
            _answer(answers, "")
        except RunError as error:
            _answer(answers, str(error))


def _answer(answers: BinaryIO, text: str) -> None:
    answers.write(json.dumps(text).encode() + b"\n")
    answers.flush()
