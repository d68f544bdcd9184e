"""Measurements in report.html: from files, from `bench --record`, from tune; and the page when an artifact changes."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
import urllib.request
from pathlib import Path

import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact import record
from onnxopt.artifact.fleet import fleet_of
from onnxopt.artifact.folder import hash_file, write_manifest
from onnxopt.artifact.measurement import BenchResult, Timing
from onnxopt.artifact.report import page
from onnxopt.artifact.report.facts import read_facts
from onnxopt.errors import ArtifactError, UsageError
from tests.support.report_pages import STATIC, bench_file, bench_result, facts_of, read, run
from tests.support.small_models import write

pytestmark = pytest.mark.usefixtures("library", "without_footprints")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of CHAIN with 64 rows and its report; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("report")
    return onnxopt.optimize(write(folder / "chain.onnx", STATIC), folder / "artifact", archs=("sm_90",)).path


@pytest.fixture
def copy(made: Path, artifact: Path) -> Path:
    shutil.copytree(made, artifact)
    return artifact


def test_a_long_size_breaks_between_its_words_and_not_within_the_number(copy: Path, tmp_path: Path) -> None:
    """A card is narrower than sequence_length=128, of which the 8 stood on the next line."""
    onnxopt.report(copy, bench=[bench_file(tmp_path / "b.json", bench_result(case="sequence_length=128, seed 0"))])
    page = (copy / "report.html").read_text("utf-8")
    assert '<span class="note">sequence_<wbr>length=<wbr>128, seed 0</span>' in page


def test_bench_results_are_added(copy: Path, tmp_path: Path) -> None:
    name = manifests.load(copy).kernels[0].name
    entry = manifests.load(copy).kernels[0].variants[0]
    kernels = {name: {"microseconds": 4.0, "calls": 1}, entry: {"microseconds": 2.0, "calls": 3}}
    file = bench_file(tmp_path / "b.json", bench_result(device="NVIDIA H200", kernels=kernels))
    result = run("report", copy, "--bench", file)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"wrote {copy / 'report.html'}\n"
    text = read(copy).text
    assert "Speed, NVIDIA H200 1.50×" in text
    assert "2.5 µs on NVIDIA H200" in text  # (4 + 3 * 2) / 4
    assert "Of every 100 GPUs that run this model all the time, the artifact needs 67 for the same load." in text
    assert "Roofline of H200 SXM with 2 kernels" in (copy / "report.html").read_text("utf-8")
    assert onnxopt.load(copy).get_inputs()[0].name == "x"  # the manifest has the new hash


def test_a_second_measurement_of_the_same_takes_its_place(copy: Path, tmp_path: Path) -> None:
    cpu = "CPUExecutionProvider"
    onnxopt.report(copy, bench=[bench_file(tmp_path / "a.json", bench_result(), bench_result(provider=cpu))])
    onnxopt.report(copy, bench=[bench_file(tmp_path / "b.json", bench_result(ratio=3.0))])
    measured = [(m.provider, m.ratio) for m in facts_of(copy).measurements]
    assert measured == [("CUDAExecutionProvider", 3.0), (cpu, 1.5)]
    before = (copy / "report.html").read_bytes()
    onnxopt.report(copy)
    assert (copy / "report.html").read_bytes() == before


def test_what_bench_prints_is_what_report_reads(copy: Path, tmp_path: Path) -> None:
    printed = run("bench", copy, "--iterations", "5", "--json")
    assert printed.exit_code == 0, printed.output
    (tmp_path / "b.json").write_text(printed.stdout)
    onnxopt.report(copy, bench=[tmp_path / "b.json"])
    (measurement,) = facts_of(copy).measurements
    assert measurement.artifact.runs == 5
    assert len(measurement.artifact.quantiles) == 21
    assert "Distribution of ms a run: before, artifact" in (copy / "report.html").read_text("utf-8")


def test_written_elsewhere_the_artifact_stays_as_it_is(copy: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    file = bench_file(tmp_path / "b.json", bench_result())
    assert onnxopt.report(copy, bench=[file], output=tmp_path / "r.html") == tmp_path / "r.html"
    assert "1.50×" in (tmp_path / "r.html").read_text("utf-8")
    assert {p: p.read_bytes() for p in copy.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("{}", "0.provider: Field required"),
        ('[{"provider": 3}]', "0.provider: Input should be a valid string"),
        (json.dumps(bench_result(kernels={"Other_1": {"microseconds": 1, "calls": 1}})), "kernel Other_1 is not one"),
    ],
)
def test_unusable_measurements(copy: Path, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "b.json").write_text(content)
    before = (copy / "report.html").read_bytes()
    result = run("report", copy, "--bench", tmp_path / "b.json")
    assert result.exit_code == 2
    assert message in result.stderr
    assert (copy / "report.html").read_bytes() == before


def test_other_refusals(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: cannot be read"):
        onnxopt.report(copy, bench=[tmp_path / "none.json"])
    with pytest.raises(UsageError, match="cannot be written"):
        onnxopt.report(copy, output=tmp_path / "no" / "r.html")
    (copy / "manifest.json.minisig").touch()
    with pytest.raises(UsageError, match="is signed as it is now"):
        onnxopt.report(copy)


def test_a_changed_page_is_not_trusted(copy: Path) -> None:
    path = copy / "report.html"
    path.write_text(path.read_text("utf-8").replace("passed", "PASSED"), "utf-8")
    with pytest.raises(ArtifactError, match=r"report\.html: is not the file that was packaged"):
        onnxopt.report(copy)


@pytest.mark.parametrize("damage", ["", "eJw=", "!", "eJwrSSwuAQAEXQHB"])
def test_a_page_without_its_facts(copy: Path, damage: str) -> None:
    manifest = manifests.load(copy)
    path = copy / "report.html"
    path.write_text(re.sub(r'id="facts">[^<]*<', f'id="facts">{damage}<', path.read_text("utf-8")), "utf-8")
    with pytest.raises(ArtifactError, match="is not a report of this onnxopt"):
        read_facts(copy, manifest)


def test_an_artifact_without_a_report_gets_one(copy: Path) -> None:
    (copy / "report.html").unlink()
    manifest = manifests.load(copy)
    files = {name: f for name, f in manifest.files.items() if name != "report.html"}
    write_manifest(copy, manifest.model_copy(update={"files": files}))
    onnxopt.report(copy)
    text = read(copy).text
    assert "Nodes 7 → 3" in text  # the original is where it was
    assert "Its CUDA source was not kept" in text
    assert "report.html" in manifests.load(copy).files


def test_netron_is_asked_for_by_name(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "netron", None)
    result = run("report", copy, "--netron")
    assert result.exit_code == 2
    assert "pip install netron" in result.stderr
    opened: list[str] = []
    fake = type(sys)("netron")
    fake.start, fake.wait = opened.append, lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "netron", fake)
    assert run("report", copy, "--netron").exit_code == 0
    assert opened == [str(copy / "model.onnx")]


def test_netron_shows_the_artifact(copy: Path) -> None:
    """The real one, without a browser: it serves the model file."""
    netron = pytest.importorskip("netron")
    host, port = netron.start(str(copy / "model.onnx"), browse=False)
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/data/model.onnx", timeout=30) as response:
            assert response.read() == (copy / "model.onnx").read_bytes()
    finally:
        netron.stop((host, port))


# --- who else changes an artifact ------------------------------------------------------------------------------------


def test_a_recorded_benchmark_is_in_the_page(copy: Path) -> None:
    result = run("bench", copy, "--iterations", "5", "--record")
    assert result.exit_code == 0, result.output
    onnxopt.load(copy)
    text = read(copy).text
    assert "Recorded in the manifest" in text
    assert facts_of(copy).measurements[0].artifact.runs == 5


def test_gpus_for_a_load_are_in_the_page(copy: Path) -> None:
    """As `bench --gpus --record` keeps them, which takes a GPU."""
    timing = Timing(p50=3.0, p95=3.1, mean=3.0, best=2.9, runs=5)
    result = BenchResult(
        "CUDAExecutionProvider", "static", "original", timing, dataclasses.replace(timing, p50=2.0), 1.5, 0.01
    )
    record.record(copy, result, fleet_of(3.0, 2.0, gpus=10))
    assert "requests/s need 10 GPUs before and 7 with the artifact" in read(copy).text


def test_a_tuned_file_is_in_the_page(copy: Path) -> None:
    path = copy / "providers" / "cpu.json"
    comparison = {"rule_made_ms": 2.0, "tuned_ms": 1.0, "ratio": 2.0}
    tuned = {"device": "this CPU", "onnxruntime": "1.31.1", "case": "static", "comparisons": {"plain": comparison}}
    path.write_text(json.dumps({**json.loads(path.read_text()), "tuned": tuned}))
    manifest = manifests.load(copy)
    files = {**manifest.files, "providers/cpu.json": hash_file(path)}
    manifest = page.renewed(copy, manifest.model_copy(update={"files": files}))
    write_manifest(copy, manifest)
    onnxopt.load(copy)
    text = read(copy).text
    assert "Tuned on this CPU, ONNX Runtime 1.31.1, static" in text
    assert "plain 2 1 2 { " in text


@pytest.mark.parametrize("tuned", [None, 3, {}, {"device": "d"}, {"comparisons": {"plain": {"ratio": "fast"}}}])
def test_a_tuned_file_of_another_form_is_shown_as_it_is(copy: Path, tuned: object) -> None:
    """tune writes the page after hours of work: what is unknown must not stop it."""
    path = copy / "providers" / "cpu.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tuned": tuned}))
    page.renewed(copy, manifests.load(copy))
    text = read(copy).text
    assert "Tuned on" not in text
    assert " ".join(json.dumps({"tuned": tuned}, indent=2).split()) in text


def test_an_archive_stays_as_it_is(copy: Path, tmp_path: Path) -> None:
    assert run("pack", copy, tmp_path / "a.zip").exit_code == 0
    before = (tmp_path / "a.zip").read_bytes()
    with pytest.raises(UsageError, match="is an archive"):
        onnxopt.report(tmp_path / "a.zip")
    onnxopt.report(tmp_path / "a.zip", output=tmp_path / "r.html")
    assert (tmp_path / "r.html").read_bytes() == (copy / "report.html").read_bytes()
    assert (tmp_path / "a.zip").read_bytes() == before
