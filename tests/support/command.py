"""Running the command in tests, and what every refusal looks like."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from onnxopt.tools.cli import main


def run(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], input=input)


def assert_refused(result: Result, *words: str, code: int = 2) -> None:
    """One line on stderr that begins with "error:" and holds the words, the exit code, nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr
