"""`onnxopt add-arch`: machine code of further architectures for a finished artifact."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from onnxopt.artifact.result_table import predicted_table
from onnxopt.tools import add_arch, progress
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import columns, print_result
from onnxopt.tools.secret_keys import read_secret_key


@click.command("add-arch")
@click.argument("artifact", type=Path)
@click.argument("archs", metavar="ARCH,...", nargs=-1, required=True)
@click.option("--sign", "key", type=Path, help="Secret key to sign the changed artifact with.")
@options.quiet
@options.json_option
def command(artifact: Path, archs: tuple[str, ...], key: Path | None, quiet: bool, as_json: bool) -> None:
    """Add machine code of architectures or GPUs (h100,l4) to ARTIFACT, without verifying it again.

    The kernels stay those that were chosen and verified. A signature of ARTIFACT is removed, as it no longer fits;
    --sign makes a new one.
    """
    secret = None if key is None else read_secret_key(key)
    with progress.shown(quiet) as advance:
        done = add_arch.add_arch(artifact, archs, sign=secret, progress=advance)
    width, colour = columns()
    times = predicted_table(done.predicted, str(artifact), width, colour=colour) if done.predicted else ""
    added = f"added {', '.join(done.added)}" if done.added else "nothing to add"
    said = f"{artifact}: {added}; it has code for {', '.join(done.archs)}"
    text = "\n".join([*(f"note: {note}" for note in done.notes), *([f"{times}\n"] if times else []), said])
    print_result({**dataclasses.asdict(done), "path": str(done.path)}, text, as_json)
