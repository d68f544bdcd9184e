"""Options are declared once: as fields, from which keywords, commands and batch files come."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

import click
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt import option_fields
from onnxopt.artifact.export.triton_options import TritonChanges, TritonOptions
from onnxopt.errors import UsageError
from onnxopt.pipeline.options import OptionChanges, Options
from onnxopt.tools import options_file
from onnxopt.tools.batching import config
from onnxopt.tools.bench_options import BenchChanges, BenchOptions
from onnxopt.tools.cli import main
from onnxopt.tools.quantization.options import Quantization, QuantizationChanges
from onnxopt.tools.refitting.options import RefitChanges, RefitOptions
from onnxopt.tools.verify_options import VerifyChanges, VerifyOptions
from tests.support.graphs import graph

_COMMANDS = {
    "optimize": Options,
    "quantize": Quantization,
    "bench": BenchOptions,
    "verify": VerifyOptions,
    "refit": RefitOptions,
    "export-triton": TritonOptions,
}
_CHANGES = {
    Options: OptionChanges,
    Quantization: QuantizationChanges,
    BenchOptions: BenchChanges,
    VerifyOptions: VerifyChanges,
    RefitOptions: RefitChanges,
    TritonOptions: TritonChanges,
}
_IN_PYTHON_ALONE = {"threads", "footprints"}, {"seconds", "record"}  # of bench and verify


@pytest.mark.parametrize(("holder", "changes"), _CHANGES.items())
def test_keywords_are_the_fields(holder: type, changes: type) -> None:
    assert typing.get_type_hints(changes) == typing.get_type_hints(holder)
    names = [field.name for field in dataclasses.fields(holder)]
    options = [row.name for row in option_fields.options_of(holder)]
    assert options == names[: len(options)]
    assert set(names[len(options) :]) in (set(), *_IN_PYTHON_ALONE)


@pytest.mark.parametrize("name", _COMMANDS)
def test_each_field_is_an_option_of_its_command(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    found = {p.name: p for p in command.params if isinstance(p, click.Option)}
    for row in option_fields.options_of(_COMMANDS[name]):
        assert row.spelled.split("/")[0] in found[row.name].opts
        assert found[row.name].help == row.help()
        assert row.many or row.required or found[row.name].get_default(click.Context(command)) == row.default


def test_each_field_but_the_cache_is_an_option_of_a_batch(tmp_path: Path) -> None:
    known = {*options_file.FIELDS}
    assert {field.name for field in dataclasses.fields(Options)} - known == {"cache"}
    (tmp_path / "b.toml").write_text('[[models]]\npath = "m.onnx"\ncash = 1\n', "utf-8")
    with pytest.raises(UsageError, match=r"models\.0\.cash: is no option; there are .*, keep_float, "):
        config.read(tmp_path / "b.toml")


def test_changes_go_before_options(tmp_path: Path) -> None:
    ir.save(graph("float[3] x", "float[3] y", "y = Neg (x)"), tmp_path / "m.onnx")
    options = Options(archs=(), verify=False, portable=True)
    first = onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "first", options)
    assert (first.manifest.verify.status, (first.path / "model.portable.onnx").exists()) == ("skipped", True)
    second = onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "second", options, portable=False)
    assert (second.manifest.verify.status, (second.path / "model.portable.onnx").exists()) == ("skipped", False)
    with pytest.raises(TypeError, match="portabel"):
        onnxopt.optimize(tmp_path / "m.onnx", tmp_path / "third", portabel=True)  # type: ignore[call-arg]


def test_a_format_has_to_be_given(tmp_path: Path) -> None:
    ir.save(graph("float[3] x", "float[3] y", "y = Neg (x)"), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="format '' is not one of fp8, int8"):
        onnxopt.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx")
