"""The `onnxopt` command. Results go to stdout, progress and errors to stderr.

Exit codes: 0 done, 1 two models do not agree (verify), 2 bad input, in one line that begins with "error:".
Each command imports what it needs when it runs, so that --help and --version are immediate.
"""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from onnxopt.errors import OnnxoptError
from onnxopt.tools.commands import archives, exports, options, signatures
from onnxopt.tools.commands.doctor import doctor
from onnxopt.tools.commands.fleets import Question, fleet_options
from onnxopt.tools.commands.report import report
from onnxopt.tools.commands.tune import tune

if TYPE_CHECKING:
    from onnxopt.artifact.manifest import Manifest
    from onnxopt.verification.verify import Report

_LONGEST_LINE = 1000  # a compiler's log can be many pages; from Python the exception holds all of it


class _Commands(click.Group):
    """Prints every error that onnxopt or click raises on purpose as one line, and exits with 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OnnxoptError as error:
            _fail(ctx, str(error))
        except click.UsageError as error:
            _fail(ctx, f"{error.format_message()} (see onnxopt {ctx.invoked_subcommand or ''} --help)")


def _fail(ctx: click.Context, message: str) -> NoReturn:
    line = " ".join(message.split())
    click.echo(f"error: {line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + ' ...'}", err=True)
    ctx.exit(2)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from onnxopt import versions

        click.echo(f"onnxopt {versions.onnxopt()}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
def main() -> None:
    """Make ONNX models faster on ONNX Runtime; the result is still an ONNX model that any runtime loads."""


@main.command()
@click.argument("model", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Artifact folder to make; must not exist.")
@options.shape
@click.option(
    "--arch", "archs", multiple=True, help="GPU to compile for (sm_90); repeat for more. Default: all. `none`."
)
@click.option("--no-verify", is_flag=True, help="Keep the result without comparing it with the original.")
@click.option("--external-data/--no-external-data", default=None, help="Weights beside the model. Default: above 2 GB.")
@click.option("--portable", is_flag=True, help="Also write model.portable.onnx, without com.microsoft operators.")
@click.option("--ort-min", metavar="VERSION", help="Oldest ONNX Runtime it has to run on, as 1.25. Default: 1.21.")
@click.option("--launch-choices", is_flag=True, help="Compile other launch shapes too, for `tune` to choose from.")
@click.option("--cache", type=Path, help="Folder of compiled kernels. Default: ~/.cache/onnxopt/kernels.")
@options.json_option
def optimize(
    model: Path,
    output: Path,
    shapes: tuple[str, ...],
    archs: tuple[str, ...],
    no_verify: bool,
    external_data: bool | None,
    portable: bool,
    ort_min: str | None,
    launch_choices: bool,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Optimize MODEL into a verified artifact folder."""
    from onnxopt import pipeline
    from onnxopt.tools import progress

    # A plain kill must clean up as ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with progress.shown("Starting") as advance:
        artifact = pipeline.optimize(
            model,
            output,
            shapes=options.parse_shapes(shapes),
            archs=() if archs == ("none",) else archs or None,
            verify=not no_verify,
            external_data=external_data,
            portable=portable,
            ort_min=ort_min,
            launch_choices=launch_choices,
            progress=advance,
            cache=cache,
        )
    if as_json:
        options.print_json({"artifact": str(artifact.path), "manifest": artifact.manifest.model_dump(mode="json")})
    else:
        click.echo(_optimize_text(artifact.path, artifact.manifest))


@main.command()
@click.argument("original", type=Path)
@click.argument("optimized", type=Path)
@options.shape
@click.option("--provider", "providers", multiple=True, help="ORT's name of it. Default: CPU, and CUDA where usable.")
@options.json_option
@click.pass_context
def verify(
    ctx: click.Context,
    original: Path,
    optimized: Path,
    shapes: tuple[str, ...],
    providers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare two models, each a model file or an artifact folder. Exit code 1 if they do not agree."""
    from onnxopt.verification import verify as verification

    report = verification.verify(original, optimized, shapes=options.parse_shapes(shapes), providers=providers or None)
    if as_json:
        options.print_json({**dataclasses.asdict(report), "failures": len(report.failures)})
    else:
        click.echo(_verify_text(report))
    ctx.exit(0 if report.status == "passed" else 1)


@main.command()
@click.argument("artifact", type=Path)
@click.option("--against", type=Path, help="Model or artifact to compare with. Default: the original.")
@options.shape
@click.option("--provider", help="ORT's name of it. Default: CUDA where usable, else CPU.")
@click.option("--iterations", type=int, help="Runs of each. Default: what fits in 5 seconds.")
@fleet_options
@options.json_option
def bench(
    artifact: Path,
    against: Path | None,
    shapes: tuple[str, ...],
    provider: str | None,
    iterations: int | None,
    as_json: bool,
    **question: Any,
) -> None:
    """Time ARTIFACT against the original, in turn in one process, after comparing their outputs."""
    from onnxopt.tools import bench as benchmark

    asked = Question(**question)
    asked.check(artifact)
    result = benchmark.bench(
        artifact, against=against, shapes=options.parse_shapes(shapes), provider=provider, iterations=iterations
    )
    fleet = asked.answer(artifact, result)
    if as_json:
        options.print_json(dataclasses.asdict(result) | ({"fleet": fleet.model_dump()} if fleet else {}))
        return
    click.echo(f"{result.provider}, {result.case}; outputs agree ({result.compared:.2g} of the limit)")
    click.echo(f"{'':10}{'p50 ms':>10}{'p95 ms':>10}{'mean ms':>10}{'runs':>7}")
    for name, timing in (("before", result.baseline), ("artifact", result.artifact)):
        click.echo(f"{name:10}{timing.p50:10.3f}{timing.p95:10.3f}{timing.mean:10.3f}{timing.runs:7}")
    click.echo(f"{result.ratio:.2f} times as fast as {result.against}")
    if fleet:
        click.echo(fleet.text())


@main.command()
@click.argument("artifact", type=Path)
@click.option("--all", "every_refusal", is_flag=True, help="List every refused node, not just a few a reason.")
@options.json_option
def explain(artifact: Path, every_refusal: bool, as_json: bool) -> None:
    """Say what ARTIFACT fuses, what that saves, and why the rest stayed as it is."""
    from onnxopt.artifact import archive
    from onnxopt.artifact import manifest as manifests
    from onnxopt.tools import explain as explanation

    manifest = manifests.load(archive.folder_of(artifact))
    if as_json:
        fields = {"rewrites", "kernels", "refusals", "left_out", "traffic", "notes"}
        options.print_json(manifest.model_dump(mode="json", include=fields))
    else:
        click.echo(explanation.describe(manifest, every_refusal=every_refusal))


@main.command()
@click.argument("model", type=Path)
@options.json_option
def inspect(model: Path, as_json: bool) -> None:
    """Count what MODEL holds: operators, inputs and outputs, parameters, functions."""
    from onnxopt.graph import signature
    from onnxopt.tools import explain as explanation
    from onnxopt.tools import inspect as model_summary

    summary = model_summary.inspect(model)
    if as_json:
        options.print_json(dataclasses.asdict(summary))
        return
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in summary.opsets.items())
    click.echo(f"{model}: {explanation.size_text(summary.bytes)}, {summary.producer or 'unknown producer'}")
    click.echo(f"opsets: {opsets}; IR version {summary.ir_version}")
    for kind, tensors in (("input", summary.inputs), ("output", summary.outputs)):
        for tensor in tensors:
            click.echo(f"{kind}: {signature.tensor_text(tensor)}")
    click.echo(f"parameters: {summary.parameters:,} in {explanation.size_text(summary.parameter_bytes)}")
    click.echo(f"nodes: {summary.nodes}, {summary.elementwise} of them elementwise")
    for op, count in summary.ops.items():
        click.echo(f"{count:8} {op}")
    if summary.functions:
        click.echo(f"functions: {', '.join(summary.functions)}")
    click.echo(explanation.placement_text(summary.host, summary.cuda_graph))


def _optimize_text(path: Path, manifest: Manifest) -> str:
    from onnxopt.tools import explain as explanation

    places = sum(len(k.sites) for k in manifest.kernels)
    ops = sum(len(k.ops) * len(k.sites) for k in manifest.kernels)
    lines = [f"{manifest.source.name}: {ops} nodes fused into {places} calls of {len(manifest.kernels)} kernels"]
    lines += [f"rewritten: {text}" for text in [explanation.rewrites_text(manifest.rewrites)] if text]
    if manifest.kernels:
        lines.append(f"predicted: {explanation.totals_text(manifest.traffic)}")
    lines += [f"left out: {row.name}: {row.reason}" for row in manifest.left_out]
    lines += [f"note: {note}" for note in manifest.notes]
    lines.append(_verify_text(manifest.verify))
    phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in manifest.seconds.items())
    lines.append(f"wrote {path} in {sum(manifest.seconds.values()):.1f} s ({phases})")
    return "\n".join(lines)


def _verify_text(report: Report) -> str:
    if report.status == "skipped":
        return "verify: skipped"
    if report.status == "not_run":
        return f"verify: not run, ONNX Runtime cannot run the original here: {report.reason}"
    lines = []
    for provider in report.providers:
        for library in (True, False):
            checks = [c for c in report.checks if c.provider == provider and c.library is library]
            if checks:
                cases = len({c.case for c in checks})
                worst = max((c.difference.excess or 0.0 for c in checks if c.difference), default=0.0)
                label = f"{provider} {'with' if library else 'without'} the library"
                state = "passed" if all(c.ok for c in checks) else "FAILED"
                lines.append(f"verify: {state}, {label}, {cases} cases, worst difference {worst:.2g} of the limit")
                exact = [c.exactness for c in checks if c.exactness is not None]
                if exact:
                    found, own = max(e.found for e in exact), max(e.original for e in exact)
                    lines.append(f"    from float32: {found:.2g} of the limit, the original {own:.2g}")
                above = [c for c in checks if c.ok and c.difference is not None and not c.difference.ok]
                noisy = sum(c.exactness is None for c in above)
                if noisy:
                    lines.append(f"    {noisy} outputs above it, within what the original differs from itself by")
    lines += [f"    {note}" for note in report.notes]
    lines += [f"    not run by the original: {s.case}: {s.reason}" for s in report.skipped]
    if report.status == "failed":
        lines.append(f"verify: FAILED: {report.reason}")
    return "\n".join(lines)


for _command in (
    archives.pack,
    archives.unpack,
    signatures.keygen,
    signatures.sign,
    signatures.verify_signature,
    exports.export_triton,
    exports.export_ortpackage,
    doctor,
    report,
    tune,
):
    main.add_command(_command)
