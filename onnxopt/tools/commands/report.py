"""`onnxopt report`: an artifact's page written again with measurements, or its graph shown in Netron."""

from __future__ import annotations

from pathlib import Path

import click

from onnxopt.artifact.open import open_artifact
from onnxopt.errors import UsageError
from onnxopt.tools import report
from onnxopt.tools.commands.options import json_option
from onnxopt.tools.commands.printing import print_result


@click.command("report")
@click.argument("artifact", type=Path)
@click.option(
    "--bench", multiple=True, type=Path, help="Results to add, a file of `onnxopt bench --json`; repeat for more."
)
@click.option("-o", "--output", type=Path, help="HTML file to write. Default: report.html of the artifact.")
@click.option("--netron", is_flag=True, help="Open the artifact's graph in Netron (pip install netron) until ctrl-C.")
@json_option
def command(artifact: Path, bench: tuple[Path, ...], output: Path | None, netron: bool, as_json: bool) -> None:
    """Write the report.html of ARTIFACT again, with measurements."""
    if netron:
        _open_in_netron(artifact)
        return
    page = report.report(artifact, bench=bench, output=output)
    print_result({"report": str(page)}, f"wrote {page}", as_json)


def _open_in_netron(artifact: Path) -> None:
    model = open_artifact(artifact).model
    try:
        import netron
    except ImportError:
        raise UsageError("Netron is not installed; run: pip install netron") from None
    netron.start(str(model))
    netron.wait()
