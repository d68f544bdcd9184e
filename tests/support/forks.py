"""Functions in processes of their own: what may crash, and libraries and variables that a process reads once.

Each is a fork of a process that has imported everything, as that takes seconds, and has run nothing: a fork of this one
would wait for threads of ONNX Runtime that it does not have.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.support import idle_threads


def started(function: Callable[..., object], *arguments: Any) -> BaseProcess:
    """A process that calls the function of a module."""
    process = _context().Process(target=function, args=arguments)
    process.start()
    return process


def result(
    function: Callable[..., Any],
    *arguments: Any,
    variables: Mapping[str, str],
    libraries: Sequence[Path],
    seconds: float = 300.0,
) -> Any:
    """What the function of a module returns in a process of its own. AssertionError where it fails or takes too long.

    libraries: loaded first; who opens one of their sonames gets them.
    """
    here, there = _context().Pipe(duplex=False)
    process = started(_call, there, function, arguments, dict(variables), [str(path) for path in libraries])
    there.close()
    try:
        assert here.poll(seconds), f"{function.__name__} did not end in {seconds} s"
        found = here.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"{function.__name__} ended with {process.exitcode}") from None
    finally:
        here.close()
        process.kill()
        process.join()
    return found


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["onnxopt.tools.cli", "onnxopt.pipeline", "onnxopt.verification.emulation.run"])
    return context


def _call(
    there: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    variables: dict[str, str],
    libraries: list[str],
) -> None:
    enter(variables)
    for path in libraries:
        ctypes.CDLL(path)
    there.send(function(*arguments))
    os._exit(0)  # as threads of ONNX Runtime may still run


def enter(variables: Mapping[str, str]) -> None:
    """Begin as a process with these variables, as the tests' own processes do."""
    idle_threads.stop_spinning()
    os.environ.update(variables)
    tempfile.tempdir = None  # as in a process that has not asked for it yet
