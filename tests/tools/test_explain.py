"""explain: the text of a manifest made by hand, and of a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact import result as results
from onnxopt.artifact import summary
from onnxopt.artifact.manifest import Kernel, LeftOut, Place
from onnxopt.fusion.kernel import Traffic
from onnxopt.graph.refusal import Refusal
from onnxopt.tools import explain
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE, write


@pytest.fixture
def manifest(tmp_path: Path, artifact: Path) -> manifests.Manifest:
    real = onnxopt.optimize(write(tmp_path / "m.onnx", NOTHING_TO_FUSE), artifact).manifest
    known = Traffic(4_000_000, 1_000_000, 4)
    places = tuple(
        Place(
            node=f"n{k}", replaced=("a", "b"), shapes=("float16[8,64]", "float16[64]", "float16[8,64]"), traffic=known
        )
        for k in range(2)
    )
    kernel = Kernel(
        name="AddTanh_00",
        kind="pointwise",
        ops=("Add", "Tanh"),
        inputs=("float16", "float16"),
        outputs=("float16",),
        cpu=True,
        variants=("AddTanh_00_row_FR",),
        sites=places,
    )
    refusals = tuple(Refusal(f"r{k}", "Add", "other", "a good reason") for k in range(5))
    return real.model_copy(
        update={
            "kernels": (kernel,),
            "refusals": (*refusals, Refusal("s", "Mul", "", "another reason")),
            "traffic": manifests.Totals(
                bytes_before=8_000_000, bytes_after=2_000_000, launches_before=8, launches_after=2, unknown=0
            ),
            "left_out": (LeftOut(name="Bad_1", ops=("Exp",), reason="off by 3", max_abs=3.0, excess=9.0),),
        }
    )


def test_everything_is_said(manifest: manifests.Manifest) -> None:
    lines = explain.describe(manifest, kernels=True).splitlines()
    assert lines[0] == "m.onnx: 1 fused kernel, called by 2 nodes"
    assert lines[1] == "predicted traffic of what is fused: 8 MB -> 2 MB (-75%), 8 launches -> 2"
    assert "AddTanh_00: Add, Tanh (CUDA and CPU)" in lines
    assert "    2 x (float16[8,64], float16[64]) -> float16[8,64]: 4 MB -> 1 MB, 4 launches -> 1" in lines
    assert "left out by verification: Bad_1 (Exp): off by 3" in lines


def test_the_groups_that_save_most_come_first(manifest: manifests.Manifest) -> None:
    first = manifest.kernels[0]
    dynamic = Place(node="d", replaced=("a",), shapes=("float16[n]", "float16[n]"), traffic=Traffic(None, None, 9))
    more = [first.model_copy(update={"name": f"Exp_{k}", "ops": ("Exp",), "sites": first.sites[:1]}) for k in range(10)]
    unknown = first.model_copy(update={"name": "Exp_dynamic", "ops": ("Exp", "Log"), "sites": (dynamic,)})
    text = explain.describe(manifest.model_copy(update={"kernels": (*more, unknown, first)}))
    lines = text[text.index("the 10 of 12 groups") :].splitlines()
    assert lines[1].split() == ["calls", "launches", "bytes", "group"]
    assert lines[2].split("  ")[-2:] == ["Add, Tanh", "AddTanh_00"]
    assert "8 -> 2  8 MB -> 2 MB" in lines[2] and "4 -> 1  4 MB -> 1 MB" in lines[3]
    assert lines[12] == "" and "Exp_dynamic" not in text and "variants" not in text
    alone = explain.describe(manifest.model_copy(update={"kernels": (unknown,)}))
    (shown,) = [line for line in alone.splitlines() if "Log" in line]
    assert "9 -> 1  dynamic" in shown


def test_what_may_gain_more(manifest: manifests.Manifest) -> None:
    assert "what may gain more" not in explain.describe(manifest)  # 16 bits already, for CPUs alone, of known sizes
    wide = manifest.kernels[0].model_copy(update={"inputs": ("float32",)})
    on_gpus = manifest.model_copy(update={"archs": ("sm_90",), "kernels": (wide,)})
    text = explain.describe(on_gpus)
    assert "--precision float16: about half of the bytes" in text and "onnxopt tune, on the GPU" in text
    tuned = on_gpus.model_copy(update={"files": {"lib/gemm_algos.json": manifests.File(sha256="0" * 64, bytes=1)}})
    assert "onnxopt tune" not in explain.describe(tuned)


@pytest.mark.parametrize(
    ("flops", "moved", "dtype", "archs", "text"),
    [
        (7_400_000_000, 13_100_000, "float16", ("sm_90",), "7.4 GFLOP, 565 a byte: bound by arithmetic"),
        (231_000_000, 51_400_000, "float16", ("sm_90",), "0.231 GFLOP, 4.49 a byte: bound by memory"),
        (7_400_000_000, 13_100_000, "float16", (), "7.4 GFLOP, 565 a byte"),
        (0, 13_100_000, "float16", ("sm_90",), ""),
        (None, 13_100_000, "float16", ("sm_90",), ""),
        (10, None, "float16", ("sm_90",), ""),
    ],
)
def test_what_bounds_a_convolution(
    flops: int | None, moved: int | None, dtype: str, archs: tuple[str, ...], text: str
) -> None:
    traffic = Traffic(moved, moved, 2, flops=flops)
    assert summary.work_text(traffic, dtype, archs) == text


def test_a_bound_that_depends_on_the_gpu_says_so() -> None:
    text = summary.work_text(
        Traffic(1, 1_000_000, 2, flops=180_000_000), "float16", ("sm_75", "sm_80", "sm_89", "sm_90")
    )
    assert "bound by arithmetic on" in text and "by memory on the others" in text


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        (("Slice", "MultiHeadAttention"), "it is faster than ONNX Runtime's for the number of keys to expect"),
        (("MatMul", "Tanh", "Softmax", "MatMul"), "no operator of ONNX Runtime computes it"),
    ],
)
def test_why_an_attention_is_one_kernel(manifest: manifests.Manifest, ops: tuple[str, ...], why: str) -> None:
    kernel = manifest.kernels[0].model_copy(update={"kind": "flash_attention", "ops": ops})
    text = explain.describe(manifest.model_copy(update={"kernels": (kernel,)}), kernels=True)
    assert f"attention in one kernel of onnxopt: {why}" in text


def test_refusals_are_grouped_by_reason_most_frequent_first(manifest: manifests.Manifest) -> None:
    text = explain.describe(manifest)
    assert text.index("5 x a good reason") < text.index("1 x another reason")
    assert "r2 (Add) beside other" in text
    assert "r3" not in text
    assert "and 2 more" in text
    assert "r4 (Add) beside other" in explain.describe(manifest, every_refusal=True)


def test_reasons_that_differ_in_names_and_shapes_only_are_one_group() -> None:
    reasons = ("`a` [4, 8] is no bias", "`b` [N] is no bias", "`c` has 8 elements", "`d` is empty", "`d` is empty")
    refusals = [Refusal(f"n{k}", "Add", "", reason) for k, reason in enumerate(reasons)]
    groups = {text: [row.node for row in rows] for text, rows in summary.by_reason(refusals).items()}
    assert groups == {
        "`...` [...] is no bias": ["n0", "n1"],
        "`d` is empty": ["n3", "n4"],
        "`c` has 8 elements": ["n2"],
    }


@pytest.mark.usefixtures("library")
def test_prediction_of_a_static_chain_follows_the_closed_form(tmp_path: Path, artifact: Path) -> None:
    """Add, Tanh, Mul, Sub over B bytes: the side inputs are the bias and x twice more, each read once when fused."""
    model = write(tmp_path / "m.onnx", CHAIN.replace("batch", "64"))
    manifest = onnxopt.optimize(model, artifact, archs=()).manifest
    size, bias = 64 * 8 * 4, 8 * 4
    first = manifest.kernels[0].sites[0].traffic
    assert first.launches_before == 4
    assert first.bytes_before == (2 * size + bias) + 2 * size + 3 * size + 3 * size
    assert first.bytes_after == 2 * size + bias
    assert "predicted traffic of what is fused: " in onnxopt.explain(artifact)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (1.234e9, "1.23 GB"), (5e13, "50 TB")]
)
def test_sizes_for_people(count: float, text: str) -> None:
    assert summary.size_text(count) == text


def test_predicted_times_are_in_every_place(tmp_path: Path, artifact: Path) -> None:
    model = write(tmp_path / "m.onnx", CHAIN)
    made = onnxopt.optimize(model, artifact, archs=["h200"], shapes={"batch": (64,)}, verify=False)
    predicted = made.manifest.predicted
    assert predicted is not None
    assert predicted.sizes == {"batch": 64}
    assert [row.gpu for row in predicted.times] == ["h100_pcie", "h100_sxm", "h200"]
    assert all(0 < row.after_ms < row.before_ms for row in predicted.times)
    lines = [" ".join(line.split()) for line in explain.describe(made.manifest).splitlines()]
    assert "predicted milliseconds of a run with a CUDA graph, batch=64:" in lines
    (row,) = [row for row in predicted.times if row.gpu == "h100_sxm"]
    times = f"{row.before_ms:.3g} {row.after_ms:.3g}"
    assert f"H100 SXM5 {times} not measured on this GPU" in lines
    assert [line.split()[-1] for line in lines if line.startswith("H200 SXM")] == ["measured"]
    assert [time.name for time in made.result.predicted] == ["H200 SXM"]  # which was named
    assert [time.gpu for time in results.read(artifact, made.manifest).predicted] == ["h200"]  # also on another machine
    assert '<section id="time"' in (artifact / "report.html").read_text("utf-8")
    assert manifests.load(artifact).predicted == predicted


def test_kinds_without_measured_thresholds_are_named(artifact: Path) -> None:
    manifest = onnxopt.optimize(write(artifact.with_name("m.onnx"), CHAIN), artifact, archs=["h200"]).manifest
    kernel = manifest.kernels[0]
    both = manifest.model_copy(update={"kernels": (kernel, kernel.model_copy(update={"kind": "grid_sample"}))})
    found = summary.unmeasured(both)
    assert found["H200 SXM"] == "not measured on this GPU: grid_sample"
    assert found["H100 SXM5"] == "not measured on this GPU"


def test_nothing_is_predicted_where_there_is_no_gpu_or_no_kernel(tmp_path: Path) -> None:
    for k, (text, archs) in enumerate(((CHAIN, ()), (NOTHING_TO_FUSE, ("sm_90",)))):
        model, output = write(tmp_path / f"{k}.onnx", text), tmp_path / f"{k}"
        made = onnxopt.optimize(model, output, archs=archs, verify=False)
        assert made.manifest.predicted is None
        assert "predicted" not in json.loads((output / "manifest.json").read_text())
        assert 'id="predicted"' not in (output / "report.html").read_text("utf-8")
