"""What is worse than in an earlier artifact: by figure and tolerance, as command, as action and before a commit."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

import onnxopt
from onnxopt.errors import UsageError
from onnxopt.tools import check
from onnxopt.tools.check import TOLERANCES, Figure, Figures
from onnxopt.tools.commands.check import _TITLES
from tests.support.artifacts import edit_manifest, make
from tests.support.command import assert_refused, run
from tests.support.small_models import CHAIN, write

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "bench.md"
WORSE_CHAIN = CHAIN.replace("c = Mul(b, x)", "r = MatMul(b, weight) c = Mul(r, x)")
BASE = {
    "error": 0.01, "quality": 1e-3, "launches": 10, "nodes": 20, "bytes": 1e6, "time": 0.5, "size": 1e6,
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("library")


def of(values: Mapping[str, float | None], *more: Figure, sizes: Mapping[str, int] | None = None) -> Figures:
    rows = [Figure(name=name, of="a" if name == "time" else "", value=value) for name, value in values.items()]
    return Figures(onnxopt="1", model="m.onnx", sizes=dict(sizes or {}), figures=(*rows, *more))


def worse(baseline: Figures, now: Figures, **tolerances: float) -> list[str]:
    return [row.name for row in check.compare(baseline, now, tolerances) if row.state == "WORSE"]


@pytest.mark.parametrize("name", BASE)
def test_a_figure_may_be_worse_by_its_tolerance(name: str) -> None:
    assert list(BASE) == list(TOLERANCES) == list(_TITLES)
    for percent in (TOLERANCES[name], 30.0):
        share = percent / 100
        most = BASE[name] + share if name == "error" else BASE[name] * (1 + share)
        for value, state in ((most, []), (most * 1.001, [name]), (BASE[name] / 2, [])):
            assert worse(of(BASE), of(BASE | {name: value}), **{name: percent}) == state, (percent, value)


@pytest.mark.parametrize("name", BASE)
def test_a_figure_that_is_no_longer_known_is_worse(name: str) -> None:
    without = {key: value for key, value in BASE.items() if key != name}
    assert worse(of(BASE), of(without)) == [name]
    assert worse(of(without), of(BASE)) == []


def test_a_failed_verification_is_worse_at_any_tolerance() -> None:
    failed = of(BASE | {"error": None})
    assert worse(of(BASE), failed, error=1e9) == worse(failed, failed) == ["error"]
    assert worse(failed, of(BASE)) == []


def test_gpus_that_one_of_the_two_lacks_are_not_compared() -> None:
    two = of(BASE, Figure(name="time", of="b", value=1.0))
    assert worse(two, of(BASE)) == worse(of(BASE), two) == []
    states = {row.of: row.state for row in check.compare(two, of(BASE), {}) if row.name == "time"}
    assert states == {"a": "", "b": "not compared"}


def test_other_sizes_of_dynamic_dims_are_refused() -> None:
    with pytest.raises(UsageError, match=r"predicted at batch=1, m\.onnx at batch=8; optimize both with the same"):
        check.compare(of(BASE, sizes={"batch": 1}), of(BASE, sizes={"batch": 8}), {})


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """An artifact, and one of the same network with a product more."""
    good, bad = make(tmp_path / "good", archs=("h200",)), make(tmp_path / "bad", WORSE_CHAIN, archs=("h200",))
    return good, bad


def test_the_command(pair: tuple[Path, Path], tmp_path: Path) -> None:
    good, bad = pair
    saved, packed = tmp_path / "good.json", tmp_path / "good.zip"
    onnxopt.pack(good, packed)
    assert run("check", good, "--save", saved).stdout == f"wrote {saved}\n"
    for baseline in (good, packed, saved):
        passed = run("check", good, "--baseline", baseline)
        assert passed.exit_code == 0, passed.output
        assert passed.stdout.endswith("\nchain.onnx: nothing is worse than the baseline\n")
        failed = run("check", bad, "--baseline", baseline)
        assert failed.exit_code == 1
    (block,) = re.findall(r"^```\n(chain\.onnx .*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    shown, printed = (  # without what CPUs differ in
        [line for line in text.splitlines() if not line.startswith("error, ")] for text in (block, failed.stdout)
    )
    assert printed == shown
    rows = [line.rsplit(maxsplit=1) for line in failed.stdout.splitlines()[2:-2]]
    assert {title.partition(",")[0].partition("  ")[0] for title, state in rows if state == "WORSE"} == {
        "launches", "nodes", "bytes moved", "ms", "file size"
    }  # fmt: skip
    assert run("check", bad, "--baseline", good, "--tolerance", "100%").exit_code == 0
    assert run("check", bad, "--baseline", good, "--tolerance", "100", "--tolerance", "nodes=0").exit_code == 1


def test_json(pair: tuple[Path, Path]) -> None:
    good, bad = pair
    verify = json.loads((bad / "manifest.json").read_bytes())["verify"]
    edit_manifest(bad, verify=verify | {"checks": []})
    result = run("check", bad, "--baseline", good, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["worse"] == sum(row["state"] == "WORSE" for row in document["rows"])
    rows = {(row["name"], row["of"]): row for row in document["rows"]}
    assert rows["error", "CPU, library"] | {"before": 0} == {
        "name": "error", "of": "CPU, library", "before": 0, "after": None, "tolerance": 5, "state": "WORSE"
    }  # fmt: skip
    assert rows["nodes", ""]["after"] > rows["nodes", ""]["before"]


def test_the_baseline_is_replaced_only_by_one_that_is_not_worse(pair: tuple[Path, Path], tmp_path: Path) -> None:
    good, bad = pair
    file = tmp_path / "baseline.json"
    assert run("check", bad, "--save", file).exit_code == 0
    of_bad = file.read_bytes()
    assert run("check", good, "--baseline", file, "--save", file).exit_code == 0
    of_good = file.read_bytes()
    assert run("check", bad, "--baseline", file, "--save", file).exit_code == 1
    assert file.read_bytes() == of_good != of_bad


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["give --baseline", "--save"]),
        (["--save", "other.json", "--tolerance", "5"], ["--tolerance is for a comparison"]),
        (["--baseline", "nothing"], ["nothing: no such artifact"]),
        (["--baseline", "text.json"], ["text.json: is neither an artifact nor a file of figures"]),
        (["--baseline", "newer.json"], ["newer.json: was written by onnxopt 9, another version"]),
        (["--save", "text.json"], ["text.json: is neither an artifact"]),
        (["--save", "."], ["is a folder"]),
        (["--save", "nowhere/a.json"], ["cannot be written"]),
        (["--baseline", "good", "--tolerance", "tim=5"], ["'tim' is not one of", "did you mean 'time'?"]),
        (["--baseline", "good", "--tolerance", "time=-5"], ["--tolerance time=-5: expected a percentage"]),
        (["--baseline", "good", "--tolerance", "nan"], ["--tolerance nan: expected a percentage"]),
    ],
)
def test_what_is_refused(options: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("good"))
    Path("text.json").write_text('{"figures": 3}')
    newer = of(BASE).model_copy(update={"onnxopt": "9", "schema_version": 2})
    Path("newer.json").write_text(newer.model_dump_json())
    assert_refused(run("check", "good", *options), *words)
    assert Path("text.json").read_text() == '{"figures": 3}'


def test_the_page_states_the_tolerances() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\d.]+) \|$", PAGE.read_text("utf-8"), re.M))
    assert {name: float(percent) for name, percent in rows.items()} == TOLERANCES


# --- the action and the hook -----------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of shell steps, in a folder with the models: `onnxopt` is this one, `python` writes what it is
    asked for."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("onnxopt", f'exec {shlex.quote(sys.executable)} -m onnxopt "$@"'), ("python", 'echo "$@"')):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    (tmp_path / "models").mkdir()
    write(tmp_path / "models" / "model.onnx", CHAIN)
    make(tmp_path / "made")
    assert run("check", "made", "--save", "models/model.json").exit_code == 0
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(tmp_path / "runner")}


def steps(environment: Mapping[str, str], inputs: Mapping[str, str]) -> tuple[int, str, str]:
    """Run the action's steps as a runner does: the exit code, what was printed, and the job's summary."""
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    assert {name for name, row in action["inputs"].items() if row.get("required")} <= inputs.keys()
    assert inputs.keys() <= action["inputs"].keys()
    known = {f"inputs.{name}": row.get("default", "") for name, row in action["inputs"].items()}
    known |= {f"inputs.{name}": value for name, value in inputs.items()}
    known["inputs.package || github.action_path"] = known["inputs.package"] or str(ROOT)
    printed, files = "", {name: Path(name.lower()) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash" and "${{" not in step["run"]  # what an input says is no program
        stated = {name: known[value.removeprefix("${{ ").removesuffix(" }}")] for name, value in step["env"].items()}
        for file in files.values():
            file.touch()
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            env={**environment, **stated, **{name: str(path) for name, path in files.items()}},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        printed += done.stdout + done.stderr
        if done.returncode:
            break
        for line in files["GITHUB_OUTPUT"].read_text().splitlines():
            name, _, value = line.partition("=")
            known[f"steps.{step.get('id')}.outputs.{name}"] = value
    return done.returncode, printed, files["GITHUB_STEP_SUMMARY"].read_text()


def test_the_action(shell: dict[str, str]) -> None:
    inputs = {
        "model": "models/model.onnx",
        "baseline": "models/model.json",
        "options": "--arch none\n--shape batch=1\n",
    }
    code, printed, summary = steps(shell, inputs)
    assert code == 0, printed
    assert f"-m pip install {ROOT}\n" in printed
    assert summary.startswith("```\nmodel.onnx ") and summary.endswith("baseline\n```\n")
    write(Path("models/model.onnx"), WORSE_CHAIN)
    code, printed, summary = steps(shell, inputs | {"package": "a wheel.whl"})
    assert code == 1 and "-m pip install a wheel.whl\n" in printed
    assert summary.count("```") == 4 and "WORSE" in summary.split("```")[3]
    code, printed, _ = steps(shell, inputs | {"tolerance": "error=5\n100\n"})
    assert code == 0, printed
    code, printed, _ = steps(shell, inputs | {"model": "models/nothing.onnx"})
    assert code == 2 and "error: models/nothing.onnx" in printed


def test_the_workflow_of_the_page_gives_the_action_its_inputs() -> None:
    workflow, _ = (
        yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    )
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    assert workflow["jobs"]["model"]["steps"][-1]["with"].keys() <= action["inputs"].keys()


def test_the_hook(shell: dict[str, str]) -> None:
    _, text = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.S | re.M)
    (hook,) = yaml.safe_load(text)["repos"][0]["hooks"]
    assert all(re.search(hook["files"], name) for name in ("models/model.onnx", "models/model.json"))
    words = shlex.split(hook["entry"])
    words[-1] = words[-1].replace("--quick", "--arch none")
    for text, code in ((CHAIN, 0), (WORSE_CHAIN, 1)):
        write(Path("models/model.onnx"), text)
        assert subprocess.run(words, env=shell, capture_output=True, check=False).returncode == code
