"""`onnxopt optimize`: arguments and options, and what is done already.

What optimizes is imported where there is work (commands/optimizing.py): it takes one to two seconds.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from onnxopt.artifact import existing
from onnxopt.errors import UsageError
from onnxopt.imports import imported
from onnxopt.pipeline import rerun
from onnxopt.pipeline.options import Options
from onnxopt.printable import printable
from onnxopt.runtime import archs
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_result

_MODEL, _ARTIFACT = ".onnx", ".onnxopt"


@click.command("optimize")
@click.argument("models", metavar="MODEL... [OUTPUT]", nargs=-1)
@click.option("-o", "--output", type=Path, help="Artifact or folder to make. Default: MODEL.onnxopt beside the model.")
@click.option("--out-dir", type=Path, metavar="DIR", help="Make an artifact or folder for each of many models there.")
@click.option("--config", type=Path, help="TOML file with the model, the output and options; others go before it.")
@click.option("--save-config", type=Path, help="Write such a file of this run; must not exist.")
@click.option(
    "--quick", is_flag=True, help="For a try: kernels for this machine's GPU alone, or for sm_80 where there is none."
)
@click.option("--force", is_flag=True, help="Replace what onnxopt wrote to the output, once the new one is whole.")
@options.click_options(Options)
@options.quiet
@options.json_option
def command(
    models: tuple[str, ...],
    output: Path | None,
    out_dir: Path | None,
    force: bool,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Optimize MODEL into a verified artifact folder, or all models of a folder into a copy of it.

    MODEL is a model file or a folder with models, as Hugging Face and optimum lay it out. An artifact that was made of
    the same files with the same options is left as it is.

    With --out-dir there may be many, also as patterns in quotes ('models/**/*.onnx'); each becomes a folder there, and
    one that fails leaves the others done. Exit code then: the largest of those of the models that failed. Exit code 1
    where an output misses what --min-sqnr and its like ask for, with --precision or --reference.
    """
    config, saved = fields.pop("config"), fields.pop("save_config")
    run = None if config is None else _late("options_file").read(config)
    quick = fields.pop("quick")
    chosen = _chosen(fields, quick, {} if run is None else run.fields)
    if out_dir is not None:
        if output is not None or saved is not None:
            one = "--output" if output is not None else "--save-config"
            raise UsageError(f"give either {one} for one model or folder, or --out-dir for many")
        _say_what_is_left_out(quick and not quiet)
        _late("commands.optimizing").optimize_many(_checked(models), out_dir, chosen, force, quiet, as_json)
        return
    if run is not None and run.model is not None and not models:
        models, output = (str(run.model),), output or run.output
    model, place = _model_and_output(_checked(models), output)
    if saved is not None:
        _late("options_file").save(saved, model, place, chosen)
    if not force and rerun.is_done(model, place, chosen):
        _say_done(model, place, as_json)
        return
    _say_what_is_left_out(quick and not quiet)
    optimizing = _late("commands.optimizing")
    optimize = optimizing.optimize_all if model.is_dir() else optimizing.optimize_one
    optimize(model, place, chosen, force, quiet, as_json)


def _late(name: str) -> Any:
    """A module of tools that not every run needs."""
    return imported(f"onnxopt.tools.{name}")


def _chosen(fields: dict[str, Any], quick: bool, filed: Mapping[str, Any]) -> Options:
    """The options. fields: of the command line, which go before those of a file."""
    context = click.get_current_context()
    typed = {name for name in fields if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    fields["shapes"] = options.parse_shapes(fields["shapes"])
    fields["archs"] = fields["archs"] or None
    if quick:
        if "archs" in typed:
            raise UsageError("--quick chooses the architecture itself; leave out --arch, or --quick")
        fields["archs"], typed = (archs.QUICK,), {*typed, "archs"}
    return Options(**{**fields, **{name: value for name, value in filed.items() if name not in typed}})


def _checked(models: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments. UsageError where there are none, or one is empty."""
    if not models:
        raise click.UsageError("Missing argument 'MODEL'.")
    if "" in models:
        raise UsageError("the path of the model is empty")
    return models


def _model_and_output(models: Sequence[str], output: Path | None) -> tuple[Path, Path]:
    """The model or folder, and what is made of it: named by -o or by the second argument, else beside the model."""
    model = Path(models[0])
    if len(models) > 2 or (output is not None and len(models) > 1):
        one = "-o is for one model" if output is not None else "an output is for one model"
        raise UsageError(f"{one}, {len(models)} were given; take --out-dir instead")
    if glob.has_magic(models[0]) and not os.path.lexists(model):
        raise UsageError(f"{model}: a pattern may name many models; give --out-dir for their artifacts")
    if len(models) == 2:
        return model, _second_argument(model, Path(models[1]))
    if output is not None:
        return model, output
    named = model if model.name not in ("", os.pardir) else Path(os.path.abspath(model))
    return model, named.with_name(named.name.removesuffix(_MODEL) + _ARTIFACT)


def _second_argument(model: Path, second: Path) -> Path:
    """The output. UsageError where it is one more model, or has the name of one."""
    if second.is_file():
        raise UsageError(
            f"{second}: is a file, and an artifact is a folder; give --out-dir to optimize {model} and {second}"
        )
    if second.name.endswith(_MODEL):
        raise UsageError(
            f"{second}: is no model; an artifact is a folder, so name one without {_MODEL}, as "
            f"{second.with_suffix(_ARTIFACT)}"
        )
    return second


def _say_what_is_left_out(quick: bool) -> None:
    if quick:
        only = ", ".join(archs.named([archs.QUICK]))
        click.echo(f"note: kernels for {only} alone; `onnxopt add-arch` adds the others to an artifact", err=True)


def _say_done(model: Path, output: Path, as_json: bool) -> None:
    """Say that the output of an earlier run is left as it is. Exits with the code of that run."""
    record = existing.record_of(output)
    assert record is not None
    text = f"{output} is up to date: {model}, the options and onnxopt are the same; --force makes it again"
    if (folder_models := record.get("models")) is None:
        print_result({"artifact": str(output), "manifest": record, "unchanged": True}, printable(text), as_json)
        return
    shown = {name: record[name] for name in ("models", "others", "library")}
    print_result({"folder": str(output), **shown, "unchanged": True}, printable(text), as_json)
    click.get_current_context().exit(max(row.get("exit_code", 0) for row in folder_models))
