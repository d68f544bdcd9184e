"""Options in a TOML file: `optimize --config`, --save-config, and the same names in files of batches."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxopt.artifact import manifest as manifests
from onnxopt.errors import UsageError
from onnxopt.pipeline.options import Options
from onnxopt.tools import options_file
from onnxopt.tools.batching import config
from tests.support.command import assert_refused, run
from tests.support.small_models import write

SMALL = "g (float[n, 4] x) => (float[n, 4] y) { y = Neg(x) }"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models in sub/, and a file of options beside them."""
    (tmp_path / "sub").mkdir()
    for name in ("m", "n"):
        write(tmp_path / "sub" / f"{name}.onnx", SMALL)
    (tmp_path / "sub" / "run.toml").write_text('model = "m.onnx"\narch = ["none"]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _options(path: Path) -> dict[str, Any]:
    request = manifests.load(path).request
    assert request is not None
    return request.options


FULL = Options(
    shapes={"n": (3,), 'x"\n\x7f': (3, 4), "s": ()},
    fix=("n", "é"),
    archs=("h200", "sm_80"),
    verify=False,
    timeout=2.5,
    external_data=False,
    portable=True,
    ort_min="1.25",
    launch_choices=True,
    data=("a.npz", Path("b.npz")),
    emulate=True,
    precision="float16",
    calibrate=("c.npz",),
    keep_float="^a\\.b$",
    caches=True,
    reference="f.onnx",
    min_sqnr=30.0,
    min_cosine=0.5,
    min_top1=0.5,
    min_top5=0.5,
    max_kl=1.0,
)


@pytest.mark.parametrize("options", [Options(), FULL, Options(fix=True, archs=())])
def test_what_is_saved_is_read(folder: Path, options: Options) -> None:
    file = folder / "sub" / "saved.toml"
    options_file.save(file, Path("sub/m.onnx"), Path("out"), options)
    read = options_file.read(file)
    assert (read.model, read.output) == (file.parent / "m.onnx", file.parent / "../out")
    back = dataclasses.asdict(Options(**read.fields))
    for name, value in dataclasses.asdict(options).items():
        if name in ("data", "calibrate"):
            assert [Path(path).resolve() for path in back[name]] == [Path(path).resolve() for path in value]
        elif name == "reference" and value is not None:
            assert Path(back[name]).resolve() == Path(value).resolve()
        elif isinstance(value, tuple):
            assert tuple(back[name]) == value
        else:
            assert back[name] == value
    if options is FULL:
        assert all(getattr(FULL, f.name) != f.default for f in dataclasses.fields(Options) if f.name != "cache")


def test_arrays_have_no_place_in_a_file(folder: Path) -> None:
    with pytest.raises((UsageError, TypeError)):
        options_file.save(folder / "f.toml", Path("m"), Path("o"), Options(data=[{"x": np.ones(3)}]))


def test_a_run_of_a_file(folder: Path) -> None:
    (folder / "sub" / "run.toml").write_text('model = "m.onnx"\noutput = "made"\narch = ["none"]\nshape = {n = 3}\n')
    done = run("optimize", "--config", "sub/run.toml", "--save-config", "used.toml")
    assert done.exit_code == 0, done.output
    assert _options(folder / "sub" / "made") == {"archs": [], "shapes": {"n": [3]}}
    assert "up to date" in run("optimize", "--config", "used.toml").stdout
    assert (folder / "used.toml").read_text() == (
        'model = "sub/m.onnx"\noutput = "sub/made"\nshapes = {"n" = [3]}\narchs = ["none"]\n'
    )


def test_the_command_line_goes_before_the_file(folder: Path) -> None:
    (folder / "sub" / "run.toml").write_text('model = "m.onnx"\noutput = "made"\narchs = ["h200"]\nportable = true\n')
    done = run("optimize", "sub/n.onnx", "--config", "sub/run.toml", "--arch", "none", "--shape", "n=2")
    assert done.exit_code == 0, done.output
    assert _options(folder / "sub" / "n.onnxopt") == {"archs": [], "portable": True, "shapes": {"n": [2]}}
    assert not (folder / "sub" / "made").exists()  # the file's output is of the file's model
    many = run("optimize", "sub/*.onnx", "--config", "sub/run.toml", "--arch", "none", "--out-dir", "many")
    assert many.exit_code == 0 and _options(folder / "many" / "m")["portable"]


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("", [], ["Missing argument 'MODEL'"]),
        ("model = 3", [], ["run.toml: model: Input should be a valid string"]),
        ("precison = 'fp16'", ["sub/m.onnx"], ["precison: is no option", "did you mean 'precision'?"]),
        ("cache = 'x'", ["sub/m.onnx"], ["cache: is no option"]),
        ("tune = 3", ["sub/m.onnx"], ["tune: is no option"]),
        ("archs = 3", ["sub/m.onnx"], ["archs: Input should be a valid list"]),
        ("archs = ['h20']", ["sub/m.onnx"], ["did you mean 'h200'?"]),
        ("= 3", ["sub/m.onnx"], ["run.toml: is not TOML"]),
        ("portable = true", ["sub/m.onnx", "--save-config", "sub/run.toml"], ["run.toml: exists already"]),
        ("portable = true", ["sub/m.onnx", "--save-config", "a", "--out-dir", "b"], ["--save-config for one model"]),
    ],
)
def test_bad_files(folder: Path, text: str, arguments: list[str], words: list[str]) -> None:
    (folder / "sub" / "run.toml").write_text(text)
    before = sorted(folder.rglob("*"))
    assert_refused(run("optimize", *arguments, "--config", "sub/run.toml"), *words)
    assert sorted(folder.rglob("*")) == before


def test_a_file_that_is_missing(folder: Path) -> None:
    assert_refused(run("optimize", "sub/m.onnx", "--config", "none.toml"), "none.toml: cannot be read: No such file")


def test_a_batch_takes_the_same_names(folder: Path) -> None:
    (folder / "sub" / "batch.toml").write_text(
        '[defaults]\narch = ["none"]\nkeep-float = "a"\n'
        '[[models]]\npath = "m.onnx"\nshapes = {n = 3}\nprecision = "half"\n'
    )
    (job,) = config.jobs_of(["sub/batch.toml"], folder / "out")
    asked = job.options
    assert (asked.archs, asked.keep_float, asked.shapes, asked.precision) == (["none"], "a", {"n": (3,)}, "float16")
