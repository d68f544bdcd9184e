"""Running the command in tests, and what every refusal looks like."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner, Result

from onnxopt.tools.cli import main
from tests.support import forks

# How lines of progress begin, which a log gets from commands that take longer than a second.
_PROGRESS = ("Compiling kernels", "Running the original", "Verifying", "Timing", "Quantizing", "Measuring ranges")


def run(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], input=input)


def forked(*arguments: str | Path, seconds: float = 60.0, **environment: Path) -> tuple[int, str]:
    """Exit code and stderr of the command in a process of its own, for what may hang and for variables read once.

    AssertionError where it takes too long.
    """
    with tempfile.NamedTemporaryFile() as errors:
        variables = {name: str(value) for name, value in environment.items()}
        given = (errors.name, [str(a) for a in arguments], variables)
        process = forks.started(_in_a_fork, *given)
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"{given[1]} did not end in {seconds} s")
        return process.exitcode, errors.read().decode()


def _in_a_fork(errors: str, arguments: list[str], variables: Mapping[str, str]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(errors, os.O_WRONLY), 2)
    forks.enter(variables)
    with open(1, "w", closefd=False) as sys.stdout, open(2, "w", closefd=False) as sys.stderr:
        code: object = 1
        try:
            main(arguments, prog_name="onnxopt")
        except SystemExit as ended:
            code = ended.code
        except BaseException:  # noqa: BLE001 - as an interpreter prints it
            traceback.print_exc()
    os._exit(code if isinstance(code, int) else 0)


def assert_refused(result: Result, *words: str, code: int = 2) -> None:
    """Beside progress one line on stderr, "error:" and the words; nothing on stdout; the exit code."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith(_PROGRESS)]
    assert len(lines) == 1 and lines[0].startswith("error: ") and result.stderr.endswith(f"{lines[0]}\n")
    for word in words:
        assert word in lines[0]
