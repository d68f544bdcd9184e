"""Many models: what a configuration means, going on after a kill, failures that stay alone, and a Ray cluster."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import onnxopt
from onnxopt import children
from onnxopt.artifact import manifest as manifests
from onnxopt.errors import UsageError
from onnxopt.tools.batching import config, local, on_ray, work, worker
from onnxopt.tools.batching.jobs import Job
from onnxopt.tools.batching.work import ModelOutcome
from tests.support.command import assert_refused, run
from tests.support.processes import descendants, is_running
from tests.support.small_models import CHAIN, write

pytestmark = pytest.mark.usefixtures("library")
ROOT = Path(__file__).resolve().parents[2]
NO_GPU = "[defaults]\narchs = []\n"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    for name, op in {"a": "Tanh", "b": "Erf", "c": "Sigmoid"}.items():
        write(folder / f"{name}.onnx", CHAIN.replace("Tanh", op))
    return folder


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run jobs without processes of their own. The names of those that ran."""
    ran: list[str] = []

    def here(jobs: Sequence[Job], width: int | None, finish: Callable[[Job, work.ModelOutcome], None]) -> None:
        for job in jobs:
            ran.append(job.name)
            finish(job, work.optimize(job))

    monkeypatch.setattr(local, "run", here)
    return ran


def configuration(folder: Path, text: str = '[[models]]\npath = "*.onnx"\n', defaults: str = NO_GPU) -> Path:
    path = folder / "batch.toml"
    path.write_text(defaults + text)
    return path


def state(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "batch.json").read_text())["models"]
    return document


# --- going on --------------------------------------------------------------------------------------------------------


def test_what_is_done_is_left_alone_and_what_changed_is_done_again(
    models: Path, tmp_path: Path, in_this_process: list[str]
) -> None:
    file, made = configuration(models), tmp_path / "made"
    first = onnxopt.batch(file, made)
    assert first.exit_code == 0 and in_this_process == ["a", "b", "c"]
    assert {path.name for path in made.iterdir()} == {"a", "b", "c", "batch.json"}
    inodes = {name: (made / name).stat().st_ino for name in "abc"}
    second = onnxopt.batch(file, made)
    assert in_this_process == ["a", "b", "c"] and all(outcome.resumed for outcome in second.models)
    assert [o.summary for o in second.models] == [o.summary for o in first.models]
    write(models / "b.onnx", CHAIN.replace("Tanh", "Abs"))
    configuration(models, '[[models]]\npath = "*.onnx"\n[[models]]\npath = "c.onnx"\nort_min = "1.23"\n')
    onnxopt.batch(file, made)
    assert in_this_process[3:] == ["b", "c"]
    assert (made / "a").stat().st_ino == inodes["a"]
    assert "Abs" in manifests.load(made / "b").kernels[0].ops and manifests.load(made / "c").ort_min == "1.23"
    assert {path.name for path in made.iterdir()} == {"a", "b", "c", "batch.json"}


def test_a_pattern_does_not_take_what_an_earlier_run_made_below_it(models: Path, in_this_process: list[str]) -> None:
    file = configuration(models, '[[models]]\npath = "**/*.onnx"\n')
    for out_dir in (models / "made", models):
        for _ in range(2):
            result = onnxopt.batch(file, out_dir)
            assert [outcome.name for outcome in result.models] == ["a", "b", "c"] and result.exit_code == 0
        shutil.rmtree(models / "made", ignore_errors=True)
    assert in_this_process == ["a", "b", "c"] * 2


def test_an_output_that_is_gone_is_made_again_and_one_of_others_is_not_touched(
    models: Path, tmp_path: Path, in_this_process: list[str]
) -> None:
    file, made = configuration(models), tmp_path / "made"
    (made / "c").mkdir(parents=True)
    (made / "c" / "mine").write_text("mine")
    (made / ".batch" / "a").mkdir(parents=True)  # of a batch that was killed
    result = onnxopt.batch(file, made)
    assert [o.ok for o in result.models] == [True, True, False] and result.exit_code == 2
    assert "exists already and is not of this batch" in result.models[2].error
    assert (made / "c" / "mine").read_text() == "mine" and not (made / ".batch").exists()
    (made / "a").rename(tmp_path / "elsewhere")
    onnxopt.batch(file, made)
    assert in_this_process == ["a", "b", "a"] and (made / "a" / "manifest.json").is_file()


def test_a_failure_stays_alone_and_is_tried_again(models: Path, tmp_path: Path, in_this_process: list[str]) -> None:
    (models / "broken.onnx").write_bytes(b"no model")
    file, made = configuration(models), tmp_path / "made"
    done = run("batch", file, "--out-dir", made)
    assert done.exit_code == 2
    assert done.stdout.splitlines()[-1] == "3 of 4 done"
    assert "[3/4] broken: failed: " in done.stderr and "[4/4] c: done in " in done.stderr
    assert state(made)["broken"]["status"] == "failed" and not (made / "broken").exists()
    again = run("batch", file, "--out-dir", made, "--json", "-q")
    assert in_this_process == ["a", "b", "broken", "c", "broken"] and again.stderr == ""
    document = json.loads(again.stdout)
    assert document["schema_version"] == 1
    rows = {row["name"]: row for row in document["models"]}
    assert [rows[name]["status"] for name in ("a", "broken")] == ["done", "failed"]
    assert (
        rows["a"]["summary"]["nodes_fused"] == 6 and rows["a"]["resumed"] and "not an ONNX" in rows["broken"]["error"]
    )


def test_a_dry_run_writes_nothing(models: Path, tmp_path: Path, in_this_process: list[str]) -> None:
    text = '[[models]]\npath = "[ab].onnx"\n[[models]]\npath = "a.onnx"\nname = "first"\nprecision = "float16"\n'
    file, made = configuration(models, text), tmp_path / "made"
    shown = run("batch", file, "--out-dir", made, "--dry-run")
    assert shown.exit_code == 0 and not made.exists() and not in_this_process
    title, first, second, last = (line.split() for line in shown.stdout.splitlines())
    assert title == ["model", "from", "options"] and last == ["2", "of", "2", "to", "do"]
    assert first == ["first", str(models / "a.onnx"), "to", "do", "precision=float16"]
    assert second == ["b", str(models / "b.onnx"), "to", "do"]
    onnxopt.batch(file, made)
    document = json.loads(run("batch", file, "--out-dir", made, "--dry-run", "--json").stdout)
    assert [row["action"] for row in document["plan"]] == ["done", "done"]


def test_folders_and_measuring(models: Path, tmp_path: Path, in_this_process: list[str]) -> None:
    text = f'[[models]]\npath = "{models}"\nname = "all"\nexternal_data = false\n'
    result = onnxopt.batch(configuration(tmp_path, text), tmp_path / "made")
    assert result.exit_code == 0 and result.models[0].summary is not None and result.models[0].summary.models == 3
    assert onnxopt.batch(tmp_path / "batch.toml", tmp_path / "made").models[0].resumed
    (job,) = config.jobs_of([configuration(models, '[[models]]\npath = "a.onnx"\nbench = true\n')], tmp_path / "one")
    measured = work.measure(job, work.optimize(job))
    assert measured.ok and measured.measured is not None and measured.measured.before_ms is not None
    (kept,) = manifests.load(job.output).measurements
    assert (kept.before_ms, kept.after_ms) == (measured.measured.before_ms, measured.measured.after_ms)


def test_only_one_batch_writes_to_a_folder(models: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    held = os.open(tmp_path / "made", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        refused = run("batch", models / "a.onnx", "--out-dir", tmp_path / "made")
        assert_refused(refused, "another batch writes there")
    finally:
        os.close(held)


# --- configurations --------------------------------------------------------------------------------------------------


def test_later_entries_go_before_earlier_ones_and_defaults(models: Path, tmp_path: Path) -> None:
    defaults = '[defaults]\narchs = ["sm_90"]\nverify = false\ncpus = 2\ndata = ["in.npz"]\n'
    text = '[[models]]\npath = "*.onnx"\nverify = true\nshapes = {batch = 4, x = [4, 8]}\nreference = "f.onnx"\n'
    text += '[[models]]\npath = "b.onnx"\narchs = []\nmemory_gb = 1.5\ntune = 9.5\ngpus = 2\n'
    models = models.rename(tmp_path / "mod[el]s")  # is no pattern
    a, b, _ = config.jobs_of([configuration(models, text, defaults)], tmp_path / "made")
    assert a.options.archs == ["sm_90"] and a.options.verify is True
    assert a.options.shapes == {"batch": (4,), "x": (4, 8)} == b.options.shapes
    assert a.options.data == [str(models / "in.npz")] and a.options.reference == str(models / "f.onnx")
    assert b.options.archs == [] and b.tune == 9.5 and b.measures and not a.measures
    assert (b.needs.cpus, b.needs.memory, b.needs.gpus) == (2, 1_500_000_000, 2)
    assert a.needs.memory == 1_000_000_000 + 4 * (models / "a.onnx").stat().st_size
    assert (b.source, b.output) == (models / "b.onnx", tmp_path / "made" / "b")


def test_archs_of_the_command(models: Path, tmp_path: Path) -> None:
    """They go before those of [defaults], and those of an entry before them."""
    text = '[[models]]\npath = "*.onnx"\n[[models]]\npath = "b.onnx"\narchs = []\n'
    file = configuration(models, text, '[defaults]\narchs = ["sm_90"]\n')
    jobs = config.jobs_of([file], tmp_path / "made", ["sm_80", "l4"])
    assert [job.options.archs for job in jobs] == [["sm_80", "l4"], [], ["sm_80", "l4"]]
    assert config.jobs_of([models / "a.onnx"], tmp_path / "made", ["sm_80"])[0].options.archs == ["sm_80"]
    shown = run("batch", models / "a.onnx", "--out-dir", tmp_path / "made", "--arch", "none", "--dry-run")
    assert "archs=['none']" in shown.stdout
    refused = run("batch", models / "a.onnx", "--out-dir", tmp_path / "made", "--arch", "sm_1", "--dry-run")
    assert_refused(refused, "--arch: ", "sm_1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = [", "batch.toml: is not TOML: "),
        ("", "batch.toml: models: Field required"),
        ("models = []", "batch.toml: models: List should have at least 1 item"),
        (
            '[[models]]\npath = "a.onnx"\narchiv = "sm_90"',
            "models.0.archiv: is no option; there are tune, bench, ",
        ),
        ('default = 1\n[[models]]\npath = "a.onnx"', "batch.toml: default: is no option; there are defaults, models"),
        ('[[models]]\npath = "a.onnx"\narchs = ["native", "h2000"]', "a.onnx: unknown architecture 'h2000'"),
        ('[[models]]\npath = "a.onnx"\nprecision = "fp61"', "batch.toml: a.onnx: precision 'fp61' is not one of"),
        ('[[models]]\npath = "a.onnx"\ncaches = true', "batch.toml: a.onnx: caches is about a lower precision"),
        ('[[models]]\npath = "a.onnx"\nort_min = "new"', "batch.toml: a.onnx: --ort-min new: expected a release"),
        ('[[models]]\npath = "a.onnx"\nverify = "no"', "batch.toml: models.0.verify: Input should be a valid boolean"),
        ('[[models]]\npath = "a.onnx"\ntune = 0', "batch.toml: models.0.tune: Input should be greater than 0"),
        ('[[models]]\npath = "none.onnx"', "none.onnx: no such file or folder"),
        ('[[models]]\npath = "n*.onnx"', "n*.onnx: matches no file"),
        ('[[models]]\npath = "*.onnx"\nname = "x"', "batch.toml: name = 'x' is for one model, *.onnx names 3"),
        ('[[models]]\npath = "a.onnx"\nname = "../x"', "batch.toml: models.0.name: "),
        ('[[models]]\npath = "[ab].onnx"\n[[models]]\npath = "a.onnx"\nname = "b"', "would both be named b"),
        ('[[models]]\npath = "."\nbench = true', "is a folder; tune and bench are for single models"),
    ],
)
def test_wrong_configurations_are_one_line(text: str, message: str, models: Path, tmp_path: Path) -> None:
    file = configuration(models, text, "")
    assert_refused(run("batch", file, "--out-dir", tmp_path / "made"), message)
    assert not (tmp_path / "made").exists()


def test_other_wrong_questions(models: Path, tmp_path: Path) -> None:
    file, made = configuration(models), tmp_path / "made"
    assert_refused(
        run("batch", file, models / "a.onnx", "--out-dir", made), "one configuration file (.toml), or models"
    )
    assert_refused(run("batch", models / "none.toml", "--out-dir", made), "none.toml: cannot be read: No such file")
    made.write_text("a file")
    assert_refused(run("batch", file, "--out-dir", made), f"{made}: cannot be written")
    made.unlink()
    made.mkdir()
    (made / "batch.json").write_text("{}")
    assert_refused(run("batch", file, "--out-dir", made), "batch.json: is damaged")


# --- processes -------------------------------------------------------------------------------------------------------


def start(file: Path, made: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "onnxopt", "batch", str(file), "--out-dir", str(made), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(count: int, process: subprocess.Popen[str], made: Path) -> None:
    """Until that many models have ended."""
    deadline = time.monotonic() + 120
    while not (made / "batch.json").is_file() or len(state(made)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def many(folder: Path, count: int) -> Path:
    folder.mkdir()
    for k in range(count):
        write(folder / f"m{k:02}.onnx", CHAIN.replace("Sub(c, a)", f"Sub({('c, a', 'a, c', 'b, x')[k % 3]})"))
    return configuration(folder)


def test_the_temporary_files_of_a_worker_are_gone_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_PROGRAM", "import tempfile; tempfile.mkdtemp(prefix='onnxopt.')")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with worker.Worker() as process:
        assert not process.ask(Job("a", tmp_path / "a.onnx", tmp_path / "a", {})).ok
        assert list(tmp_path.glob("onnxopt.*/onnxopt.*"))
    assert not list(tmp_path.iterdir())


def test_going_on_after_the_batch_was_killed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file, made = many(tmp_path / "models", 4), tmp_path / "made"
    process = start(file, made, "--jobs", "1")
    wait_for(1, process, made)
    workers = [pid for pid, line in descendants(process.pid).items() if "onnxopt.tools.batching.worker" in line]
    process.kill()
    process.communicate()
    assert len(workers) == 1
    deadline = time.monotonic() + 10
    while is_running(workers[0]):  # it ends with the batch
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kept = {name: (made / name).stat().st_ino for name, entry in state(made).items() if (made / name).exists()}
    ran = request.getfixturevalue("in_this_process")
    again = run("batch", file, "--out-dir", made)
    assert again.exit_code == 0, again.output
    assert again.stdout.splitlines()[-1] == "4 of 4 done" and len(ran) == 4 - len(kept) > 0
    assert {name: (made / name).stat().st_ino for name in kept} == kept
    assert {path.name for path in made.iterdir()} == {*(f"m{k:02}" for k in range(4)), "batch.json"}


def test_a_worker_that_is_killed_fails_one_job(models: Path, tmp_path: Path) -> None:
    first, second, _ = config.jobs_of([configuration(models)], tmp_path)
    with worker.Worker() as process:
        child = process._child = children.start(worker.__name__)
        child.kill()
        failed = process.ask(first)
        assert "its process ended (SIGKILL)" in failed.error and failed.exit_code == 2 and failed.name == "a"
        assert process.ask(second).ok


def digests(made: Path) -> dict[str, str]:
    """Of every model and kernel file."""
    files = [path for path in made.rglob("*") if path.name in ("model.onnx", "kernels.json")]
    return {path.relative_to(made).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_without_ray_it_says_what_to_install(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refused = run("batch", configuration(models), "--out-dir", tmp_path / "made", "--ray", "auto")
    assert_refused(refused, "--ray takes Ray, which is not installed: pip install 'onnxopt[ray]'")


@pytest.mark.slow
def test_ray_loses_nothing_when_a_worker_is_killed(tmp_path: Path) -> None:
    """Two workers, 40 models, one worker killed in the middle; the results are those of a run without Ray."""
    pytest.importorskip("ray", reason="ray is not installed; run it with: pip install 'onnxopt[ray]'")
    file, made = many(tmp_path / "models", 40), tmp_path / "made"
    process = start(file, made, "--ray", "local")
    wait_for(10, process, made)
    workers = [pid for pid, line in descendants(process.pid).items() if line.startswith("ray::m")]
    assert workers, descendants(process.pid)  # a worker is named after its job
    os.kill(workers[0], signal.SIGKILL)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, output + errors
    assert output.splitlines()[-1] == "40 of 40 done"
    assert {entry["status"] for entry in state(made).values()} == {"done"} and len(state(made)) == 40
    assert onnxopt.batch(file, tmp_path / "alone").exit_code == 0
    assert digests(made) == digests(tmp_path / "alone") and len(digests(made)) == 80


@pytest.mark.slow
def test_ray_measures_where_the_gpus_are(models: Path, tmp_path: Path) -> None:
    """Two machines, one with GPUs, as far as Ray is told: optimizing asks for none, and tune and bench see theirs."""
    ray = pytest.importorskip("ray", reason="ray is not installed; run it with: pip install 'onnxopt[ray]'")
    cluster = pytest.importorskip("ray.cluster_utils").Cluster(True, head_node_args={"num_cpus": 1, "num_gpus": 0})

    def where(job: Job, made: ModelOutcome | None) -> tuple[str, str | None, dict[str, float]]:
        context = ray.get_runtime_context()
        return context.get_node_id(), os.environ.get("CUDA_VISIBLE_DEVICES"), context.get_assigned_resources()

    try:
        with_gpus = cluster.add_node(num_cpus=1, num_gpus=2).node_id
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        text = '[[models]]\npath = "a.onnx"\ntune = 5\nbench = true\ngpus = 2\nmemory_gb = 0.5\n'
        (job,) = config.jobs_of([configuration(models, text)], tmp_path / "made")
        step = ray.remote(where)
        _, _, resources = ray.get(on_ray._submit(step, job, None))
        assert resources == {"CPU": 1, "memory": pytest.approx(5e8, abs=1)}
        node, devices, resources = ray.get(on_ray._submit(step, job, work.failed(job, "")))
        assert (node, devices) == (with_gpus, "0,1")
        assert resources == {"CPU": 1, "memory": pytest.approx(5e8, abs=1), "GPU": 2}
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_ray_refuses_what_no_machine_has(models: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed; run it with: pip install 'onnxopt[ray]'")
    text = '[[models]]\npath = "a.onnx"\nbench = true\ngpus = 9\n'
    with pytest.raises(UsageError, match=r"a: no machine of the cluster has 1 CPU, .* memory, 9 GPU"):
        onnxopt.batch(configuration(models, text), tmp_path / "made", ray="local")
