"""`onnxopt report`: the page of an artifact, made again with measurements, and its graph in Netron."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.errors import UsageError
from onnxopt.tools.commands.options import json_option, print_result


@click.command()
@click.argument("artifact", type=Path)
@click.option("--bench", multiple=True, type=Path, help="What `onnxopt bench --json` printed, to add; repeat for more.")
@click.option("-o", "--output", type=Path, help="HTML file to write. Default: report.html of the artifact.")
@click.option("--netron", is_flag=True, help="Open the artifact's graph in Netron (pip install netron) until ctrl-C.")
@json_option
def report(artifact: Path, bench: tuple[Path, ...], output: Path | None, netron: bool, as_json: bool) -> None:
    """Write ARTIFACT's report.html again, with measurements."""
    from onnxopt.artifact.report import making

    if netron:
        _open_in_netron(artifact)
        return
    written = making.report(artifact, bench=bench, output=output)
    print_result({"report": str(written)}, f"wrote {written}", as_json)


def _open_in_netron(artifact: Path) -> None:
    from onnxopt.artifact.open import open_artifact

    model = open_artifact(artifact).model
    try:
        import netron
    except ImportError:
        raise UsageError("Netron is not installed; run: pip install netron") from None
    netron.start(str(model))
    netron.wait()
