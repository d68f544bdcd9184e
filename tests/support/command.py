"""Running the command in tests, and what every refusal looks like."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from onnxopt.tools.cli import main

# How lines of progress begin, which a log gets from commands that take longer than a second.
_PROGRESS = ("Compiling kernels", "Running the original", "Verifying", "Timing", "Quantizing", "Measuring ranges")


def run(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], input=input)


def assert_refused(result: Result, *words: str, code: int = 2) -> None:
    """Beside progress one line on stderr, "error:" and the words; nothing on stdout; the exit code."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith(_PROGRESS)]
    assert len(lines) == 1 and lines[0].startswith("error: ") and result.stderr.endswith(f"{lines[0]}\n")
    for word in words:
        assert word in lines[0]
