"""The `onnxopt` command. Results go to stdout, progress, warnings and errors to stderr.

Exit codes: 0 done, 1 two models do not agree (verify) or one is worse than before (check), 2 bad input, 3 the result
could not be verified. Codes 2 and 3 come with one line that begins with "error:"; verify prints its report instead.
With --json the error is on stdout too, as JSON.
A signal ends the command with 128 + its number (tools/interrupts.py). With ONNXOPT_TRACEBACK=1 the traceback of an
error is printed too.

A command's module is imported when the command runs, so that --help and --version take no time: COMMANDS is all that
they need. `onnxopt NAME` is the object `command` of the module of that name in tools/commands/.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import signal
import traceback
import warnings
from typing import Any, NoReturn

import click

from onnxopt import onnxruntime_package, versions
from onnxopt.errors import NotVerifiedError, OnnxoptError, UsageError, describe
from onnxopt.imports import imported
from onnxopt.printable import printable
from onnxopt.runtime import time_limit
from onnxopt.runtime.time_limit import TimeIsUp
from onnxopt.tools import interrupts
from onnxopt.tools.commands import printing

# Every command with the first sentence of its help.
COMMANDS = {
    "add-arch": "Add machine code of architectures or GPUs (h100,l4) to ARTIFACT, without verifying it again.",
    "batch": "Optimize many models in processes of their own, and go on where an earlier run ended.",
    "bench": "Time ARTIFACT against the original, in turn in one process, after comparing their outputs.",
    "check": "Compare the figures of ARTIFACT with an earlier one's: is its error, a count, a time or its size worse?",
    "doctor": "Examine this machine, and how ARTIFACT runs on it; name each problem with a fix.",
    "explain": "Say what ARTIFACT fuses, what that saves, and why other nodes were not fused.",
    "export-ortpackage": "Write ARTIFACT as an ONNX Runtime model package, FOLDER.ortpackage.",
    "export-triton": "Write ARTIFACT into a model REPOSITORY of Triton Inference Server.",
    "inspect": "Count the operators, inputs, outputs, parameters and functions of MODEL.",
    "keygen": "Make a key pair: the secret key FILE, and the public key FILE.pub.",
    "optimize": "Optimize MODEL into a verified artifact folder, or all models of a folder into a copy of it.",
    "pack": "Write ARTIFACT as one FILE, a zip that is the same for the same artifact, byte for byte.",
    "quantize": "Quantize MODEL, a float32 model file, into a standard ONNX model that `optimize` takes.",
    "refit": "Make an artifact with other WEIGHTS of the same network, in seconds: with the kernels of ARTIFACT.",
    "report": "Write the report.html of ARTIFACT again, with measurements.",
    "sign": "Sign the manifest of ARTIFACT, which holds the hash of every file, after checking every hash.",
    "tune": "Find the fastest options for ARTIFACT on this machine by measurement, and write them into it.",
    "unpack": "Make the artifact FOLDER from FILE, with every hash checked.",
    "verify": "Compare two models, each a model file or an artifact.",
    "verify-signature": "Check the signature of ARTIFACT, a folder or an archive, then the hash of every file.",
}
_TRACEBACK = "ONNXOPT_TRACEBACK"
_JSON = "onnxopt.json"  # in the context: whether a program reads the result
_LONGEST_LINE = 1000  # a compiler's log can be many pages; from Python the exception holds all of it


class _Commands(click.Group):
    """The commands of COMMANDS; prints every error as one line, and exits with its code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = imported(f"onnxopt.tools.commands.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_JSON] = "--json" in args
        if not args:  # the help, which click raises as an error
            return super().parse_args(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:  # an option in front of the command
            _fail(ctx, "UsageError", f"{error.format_message()} (options come after the command; see onnxopt --help)")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = [] if args[0] in COMMANDS else difflib.get_close_matches(args[0], COMMANDS, n=1)
        if near:
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{near[0]}'?", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        warnings.formatwarning = _warning_line
        try:
            return super().invoke(ctx)
        except interrupts.Interrupted as interrupt:
            interrupts.end(interrupt.number)
        except OnnxoptError as error:
            _fail(ctx, type(error).__name__, str(error), error.exit_code)
        except click.UsageError as error:
            _fail(ctx, "UsageError", f"{error.format_message()} (see onnxopt {ctx.invoked_subcommand or ''} --help)")
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:  # as where the signal ends a program, and not code 1, which has a meaning
            interrupts.end(signal.SIGPIPE)
        except OSError as error:
            named = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
            _fail(ctx, "OSError", f"{named}{error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - a traceback tells a user nothing
            text = f"onnxopt failed: {describe(error)}; please report it, with what {_TRACEBACK}=1 prints"
            _fail(ctx, type(error).__name__, text)


def _warning_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning for users: without the place in the source that Python adds."""
    return f"warning: {' '.join(str(message).split())}\n"


def _fail(ctx: click.Context, kind: str, message: str, exit_code: int = 2) -> NoReturn:
    """Print the error, and exit. kind: the class of the error, for programs."""
    if os.environ.get(_TRACEBACK):
        traceback.print_exc()
    _print_error(ctx, kind, message, exit_code)
    ctx.exit(exit_code)


def _print_error(ctx: click.Context, kind: str, message: str, exit_code: int) -> None:
    line = printable(" ".join(message.split()))
    if ctx.meta[_JSON]:
        printing.print_json({"error": {"kind": kind, "message": line, "exit_code": exit_code}})
    click.echo(f"error: {line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + ' ...'}", err=True)


def _end_hanging(ctx: click.Context, reason: TimeIsUp) -> NoReturn:
    """End the program while its main thread is inside a run that does not return."""
    try:
        message = f"{reason}; it did not return either when it was told to end, as a kernel that hangs does not"
        _print_error(ctx, NotVerifiedError.__name__, message, NotVerifiedError.exit_code)
    finally:
        interrupts.end_with(NotVerifiedError.exit_code)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"onnxopt {versions.onnxopt()}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Make ONNX models faster on ONNX Runtime; the result is still an ONNX model that any runtime loads."""
    for library in ("onnx_ir", "onnxscript"):  # their warnings are about the user's model, as are our errors and notes
        logging.getLogger(library).setLevel(logging.CRITICAL)
    if ctx.invoked_subcommand != "doctor":  # which lists it beside everything else that is wrong
        if missing := onnxruntime_package.missing():
            raise UsageError(str(missing))
        if doubled := onnxruntime_package.doubled():
            warnings.warn(str(doubled), RuntimeWarning, stacklevel=1)
    if ctx.obj is not None:
        ctx.obj()
        time_limit.end_hanging_program(functools.partial(_end_hanging, ctx))
