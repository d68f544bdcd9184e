"""Names that a user spells another way: taken where they are clear, answered with the right one where they are not."""

from __future__ import annotations

import collections
from pathlib import Path

import click
import pytest

from onnxopt.artifact import manifest as manifests
from onnxopt.codegen.architectures import ARCHS
from onnxopt.errors import UsageError
from onnxopt.option_fields import did_you_mean
from onnxopt.pipeline.options import Options
from onnxopt.runtime import archs
from onnxopt.runtime.sessions import CUDA
from onnxopt.tools.bench_options import BenchOptions
from onnxopt.tools.cli import COMMANDS, main
from onnxopt.tools.commands.options import parse_shapes
from onnxopt.tools.quantization import Quantization
from tests.support.command import assert_refused, run
from tests.support.small_models import write

SMALL = "g (float[n, 4] x) => (float[n, 4] y) { y = Neg(x) }"


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        (["ids=8x128"], {"ids": (8, 128)}),
        (["ids:8x128"], {"ids": (8, 128)}),
        (["ids=8,128"], {"ids": (8, 128)}),
        (["ids:8x128,mask:8x128"], {"ids": (8, 128), "mask": (8, 128)}),
        (["ids=8,128,mask=8,128", "batch=8"], {"ids": (8, 128), "mask": (8, 128), "batch": (8,)}),
        (["x:0=1x3", "y:0:1x3"], {"x:0": (1, 3), "y:0": (1, 3)}),
        (["x:0=1,3,y:0=2"], {"x:0": (1, 3), "y:0": (2,)}),
        (["scalar="], {"scalar": ()}),
        (["a=b=3"], {"a=b": (3,)}),
        (["a,b=3"], {"a,b": (3,)}),
    ],
)
def test_shapes(texts: list[str], shapes: dict[str, tuple[int, ...]]) -> None:
    assert parse_shapes(tuple(texts)) == shapes


@pytest.mark.parametrize("text", ["x", "x=axb", "=3", "x=8x", "x=-1", "x:8,y", ""])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=DIMS"):
        parse_shapes((text,))


@pytest.mark.parametrize("name", ["fp16", "half", "FP16", "float16", "bf16", "bfloat16", "BF16"])
def test_dtypes(name: str) -> None:
    dtype = "bfloat16" if name.lower().startswith("b") else "float16"
    assert Options(precision=name).precision == Quantization(precision=name).precision == dtype


@pytest.mark.parametrize(
    "name", ["sm_90", "SM90", "sm90", "sm_90a", "compute_90", "9.0", "90", "h200", "H200", "h-200", "h100"]
)
def test_architectures(name: str) -> None:
    assert archs.named([name]) == ("sm_90",)


def test_architectures_of_three_digits() -> None:
    assert archs.named(["10.0", "120"]) == ("sm_100", "sm_120")


@pytest.mark.parametrize(
    ("name", "near"),
    [("h20", "h200"), ("sm_9", "sm_90"), ("rtx409", "rtx4090"), ("natif", "native"), ("l4o", "l4"), ("xyzzy", "")],
)
def test_unknown_architectures(name: str, near: str) -> None:
    with pytest.raises(UsageError, match="unknown architecture") as raised:
        archs.named([name])
    assert str(raised.value).endswith(f"; did you mean {near!r}?") if near else "did you mean" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["optimise", "m.onnx"], ["Did you mean 'optimize'?"]),
        (["optimize", "m.onnx", "--precison", "float16"], ["--precision"]),
        (["optimize", "m.onnx", "--precision", "flaot16"], ["float16, bfloat16; did you mean 'float16'?"]),
        (["optimize", "m.onnx", "--arch", "h20"], ["did you mean 'h200'?"]),
        (["quantize", "m.onnx", "q.onnx", "--format", "in8"], ["did you mean 'int8'?"]),
        (["quantize", "m.onnx", "q.onnx", "--format", "int4", "--gpu", "h20"], ["did you mean 'h200'?"]),
        (["verify", "made", "--on", "cud"], ["did you mean 'cuda'?"]),
        (["bench", "made", "--provider", "CUDAExecution"], [f"did you mean '{CUDA}'?"]),
        (["batch", "b.toml", "--out-dir", "out"], ["models.0.precison: is no option", "; did you mean 'precision'?"]),
    ],
)
def test_a_near_miss_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    write(tmp_path / "m.onnx", SMALL)
    (tmp_path / "b.toml").write_text('[[models]]\npath = "m.onnx"\nprecison = "float16"\n')
    assert run("optimize", "m.onnx", "made", "--arch", "none", "--no-verify").exit_code == 0
    assert_refused(run(*arguments), *words)


def test_other_spellings_of_options(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", SMALL)
    made = run("optimize", model, "--shapes", "n:3,x:3x4", "--archs", "none", "--precision", "FP16", "--no-verify")
    assert made.exit_code == 0, made.output
    request = manifests.load(tmp_path / "m.onnxopt").request
    assert request is not None
    assert request.options["shapes"] == {"n": [3], "x": [3, 4]} and request.options["precision"] == "float16"
    timed = run("bench", tmp_path / "m.onnxopt", "--provider", "CPU", "--iterations", "3", "--shapes", "n:2")
    assert timed.exit_code == 0 and "CPUExecutionProvider" in timed.stdout
    shown = run("optimize", "--help").stdout
    assert "--shape " in shown and "--shapes" not in shown and "--archs" not in shown


def test_an_option_has_one_name_and_one_meaning() -> None:
    """Options of one name have one text in all commands, but where the command's own words are better."""
    texts = collections.defaultdict(set)
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        for option in (p for p in command.params if isinstance(p, click.Option)):
            texts[option.opts[0]].add(option.help)
        spelled = {option for p in command.params for option in p.opts}
        assert "--json" in spelled
        assert not spelled & {"--gpu-arch", "--input-shape", "--dtype", "--out", "--overwrite"}
    for flag in ("--shape", "--data", "--arch", "--json", "--emulate", "--timeout", "--min-sqnr", "--precision"):
        assert len(texts[flag] - {None}) == (2 if flag == "--precision" else 1), flag


def test_suggestions_ignore_case_and_signs() -> None:
    assert did_you_mean("RTX-4090", ["rtx4090", "rtx5090"]) == "; did you mean 'rtx4090'?"
    assert did_you_mean("zzz", ARCHS) == ""
    assert BenchOptions().provider is None
