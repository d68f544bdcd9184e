"""The top of the report, where the time goes, and what refusals cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pydantic
import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact import result as results
from onnxopt.artifact.measurement import BenchResult
from onnxopt.artifact.report import headline, page, time_views
from onnxopt.artifact.report.headline import Card
from onnxopt.artifact.report.latency_views import sweeps
from onnxopt.artifact.result import Errors
from onnxopt.graph.refusal import Refusal
from tests.support.report_pages import STATIC, PageText, bench_result, facts_of, read
from tests.support.small_models import write

pytestmark = pytest.mark.usefixtures("library")


def bench(**changes: object) -> BenchResult:
    return pydantic.TypeAdapter(BenchResult).validate_python(bench_result(**changes))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("headline")
    model = write(folder / "chain.onnx", STATIC)
    return onnxopt.optimize(model, folder / "artifact", archs=("l4", "h200", "sm_80")).path


def test_times_are_of_the_gpus_that_were_named_first(made: Path) -> None:
    manifest, facts = manifests.load(made), facts_of(made)
    assert facts.gpus == ("l4", "h200")
    result = results.of(made, manifest, facts)
    assert [time.gpu for time in result.predicted] == ["l4", "h200"]
    times = time_views.gpu_times(manifest, facts, [time.gpu for time in result.predicted])
    assert [time.key for time in times][:2] == ["l4", "h200"]
    assert len(times) == len(manifest.predicted.times if manifest.predicted else ())
    for time in times:
        assert sum(share.before for share in time.shares) == pytest.approx(time.before, abs=1e-4)
        assert sum(share.after for share in time.shares) == pytest.approx(time.after, abs=1e-4)
    assert f"Times as fast, predicted {result.predicted[0].ratio:.2f}× on L4; " in read(made).text


def test_a_measured_gpu_comes_before_predictions(made: Path) -> None:
    manifest = manifests.load(made)
    runs = (
        bench(provider="CPUExecutionProvider", device="a processor", ratio=0.9),
        *[bench(device="NVIDIA A100-SXM4-80GB", case=f"n={n}", ratio=1.2 + n / 10) for n in (1, 2)],
    )
    facts = dataclasses.replace(facts_of(made), measurements=runs)
    result = results.of(made, manifest, facts)
    assert result.sentence.startswith("chain.onnx: measured 1.30 to 1.40 times as fast on NVIDIA A100-SXM4-80GB; ")
    top = headline.headline(manifest, result)
    assert top.speed == Card("Times as fast, measured", "1.30–1.40×", "on NVIDIA A100-SXM4-80GB", "good")
    first = time_views.gpu_times(manifest, facts, ["l4"])[0]
    assert (first.key, len(first.measured)) == ("a100_80gb", 2)
    text = PageText(page.render(made, manifest, facts)).text
    assert "Measured: 3 ms before, 2 ms after, 1.30 times as fast (n=1)" in text
    swept, other = headline.cards(runs, sweeps(runs))
    assert (swept.label, swept.value, swept.note) == ("Speed by n, NVIDIA A100-SXM4-80GB, CUDA", "1.30–1.40×", "1 to 2")
    assert (other.value, other.kind) == ("0.90×", "bad")


def test_a_cpu_counts_where_there_are_no_kernels_for_gpus(made: Path) -> None:
    run = bench(provider="CPUExecutionProvider", device="a processor", ratio=1.1)
    facts = dataclasses.replace(facts_of(made), measurements=(run,))
    for archs, names in (((), ["a processor"]), (("sm_90",), [])):
        manifest = manifests.load(made).model_copy(update={"archs": archs})
        assert [time.name for time in results.of(made, manifest, facts).measured] == names


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        (Errors("CUDAExecutionProvider", True, "passed", 3), "outputs are equal"),
        (Errors("CUDAExecutionProvider", True, "FAILED", 3, of_limit=None), "outputs cannot be compared"),
        (Errors("CUDAExecutionProvider", True, "passed", 3, differing=0.01, of_limit=0.5), "worst 50 % of the limit"),
        (
            Errors("CUDAExecutionProvider", True, "passed", 3, max_abs=1e-3, of_limit=0.0045),
            "max abs error 1.0e-03, 0.45 % of the limit",
        ),
        (
            Errors("CUDAExecutionProvider", True, "passed", 3, max_abs=1.0, of_limit=110.0),
            "beyond the limit, but as near to exact results as the original is",
        ),
        (
            Errors("CUDAExecutionProvider", True, "FAILED", 3, max_abs=1.0, of_limit=110.0),
            "max abs error 1.0e+00, 110 times the limit",
        ),
    ],
)
def test_the_headline_says_how_near_outputs_are(made: Path, errors: Errors, text: str) -> None:
    manifest = manifests.load(made)
    equal = Errors("CPUExecutionProvider", False, "passed", 2)
    result = dataclasses.replace(results.read(made, manifest), errors=(equal, errors))
    note = headline.headline(manifest, result).verified.note
    assert note == f"5 comparisons with the original on CPU, CUDA; {text}; CUDA kernels compiled, not run"


def test_refusals_come_in_the_order_of_what_their_nodes_cost(made: Path) -> None:
    facts = facts_of(made)
    assert facts.after is not None
    alone = [work.node for work in facts.after.works if work.node]
    assert alone  # the product
    cheap = [Refusal(f"n{k}", "Add", "", "is often refused") for k in range(3)]
    dear = [Refusal(alone[0], "MatMul", other, f"`{other}` is read elsewhere") for other in ("a", "b")]
    manifest = manifests.load(made).model_copy(update={"refusals": (*cheap, *dear)})
    first, second = time_views.reasons(manifest, facts, "h200")
    assert (len(first.rows), first.alone, len(second.rows), second.ms) == (2, 1, 3, 0.0)
    assert first.ms is not None and 0 < first.ms < 1
    unknown = time_views.reasons(manifest, facts, "")
    assert [(len(reason.rows), reason.ms) for reason in unknown] == [(3, None), (2, None)]
    text = PageText(page.render(made, manifest, facts)).text
    assert text.index("is read elsewhere") < text.index("is often refused")
