"""report.html: what it shows, that it is one file, and that everyone can read it."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from pathlib import Path

import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import hash_file
from onnxopt.artifact.manifest import LeftOut
from onnxopt.artifact.report import page, plots, views
from onnxopt.fusion.work import GROUPS
from onnxopt.graph.refusal import Refusal
from tests.support.report_pages import STATIC, PageText, facts_of, read
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE, write

HEADER_18 = '<ir_version: 8, opset_import: ["" : 18]>'

PRODUCT = (
    HEADER_18
    + """
product (float16[64, 32] x, float16[32, 16] weight, float16[16] bias) => (float16[64, 16] y) {
  p = MatMul(x, weight) s = Add(p, bias) y = Relu(s) }
"""
)

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of CHAIN with 64 rows and its report; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("report")
    return onnxopt.optimize(write(folder / "chain.onnx", STATIC), folder / "artifact", archs=("sm_90",)).path


@pytest.fixture
def copy(made: Path, artifact: Path) -> Path:
    shutil.copytree(made, artifact)
    return artifact


# --- what it shows ---------------------------------------------------------------------------------------------------


def test_optimize_writes_it_and_the_manifest_knows_it(made: Path) -> None:
    text = read(made).text
    assert "Verification Passed 18 comparisons with the original on CPU; " in text
    assert "Launches of a run 7 → 3 predicted; 2 fused kernels, called by 2 nodes" in text
    assert "Nodes 7 → 3" in text
    assert manifests.load(made).files["report.html"] == hash_file(made / "report.html")


def test_kernels_are_there_with_their_whole_source(made: Path) -> None:
    from onnxopt.codegen import nvrtc as compiling

    manifest, text = manifests.load(made), read(made).text
    for kernel in manifest.kernels:
        source = facts_of(made).sources[kernel.name]
        assert " ".join(source.split()) in text
        assert all(symbol in source for symbol in kernel.variants)
        assert compiling.compile_cuda(source, ("sm_90",), None, None)  # it is what the compiler takes, not an excerpt
    assert "Add → Tanh → Mul → Sub" in text


def test_traffic_and_intensity_follow_the_shapes(made: Path) -> None:
    """The first kernel reads x and the bias, writes one tensor: 64 x 8 float32 each."""
    view = views.build(made, manifests.load(made), facts_of(made), ())
    first = next(k for k in view.kernels if k.ops[0] == "Add")
    moved = 2 * 64 * 8 * 4 + 8 * 4
    assert first.bytes_after == moved
    assert first.intensity == pytest.approx(facts_of(made).costs[first.name] * 64 * 8 / moved)
    assert view.roofline is None  # no GPU given


def test_kernels_of_every_kind_have_their_source_and_work(tmp_path: Path, artifact: Path) -> None:
    """A kernel that reduces computes over its largest tensor, here its input, not over the small result."""
    text = "g (float[64, 96] x, float[96] b) => (float[64, 1] y) <int64[1] axes = {1}> { s = Add(x, b) t = Tanh(s) "
    model = write(tmp_path / "m.onnx", f"{HEADER_18}{text}y = ReduceMean <keepdims=1> (t, axes) }}")
    onnxopt.optimize(model, artifact, archs=("sm_90",))
    (kernel,) = views.build(artifact, manifests.load(artifact), facts_of(artifact), ()).kernels
    assert kernel.kind == "rowwise"
    assert kernel.source is not None
    assert "__global__" in kernel.source
    assert kernel.intensity == pytest.approx(facts_of(artifact).costs[kernel.name] * 64 * 96 / kernel.bytes_after)
    assert f"{kernel.name} · rowwise · 1 call" in read(artifact).text


def test_a_product_has_no_source_of_its_own(tmp_path: Path, artifact: Path) -> None:
    manifest = onnxopt.optimize(write(tmp_path / "m.onnx", PRODUCT), artifact, archs=("sm_90",)).manifest
    (kernel,) = manifest.kernels
    assert kernel.kind == "gemm"
    text = read(artifact).text
    assert "No CUDA source of its own: it runs through a library of CUDA." in text
    assert "Entry points" not in text


def test_dynamic_dims_take_the_sizes_that_were_verified(tmp_path: Path, artifact: Path) -> None:
    onnxopt.optimize(write(tmp_path / "m.onnx", CHAIN), artifact, archs=(), shapes={"batch": (32,)})
    view = views.build(artifact, manifests.load(artifact), facts_of(artifact), ())
    assert view.sizes == {"batch": 32}
    first = next(k for k in view.kernels if k.ops[0] == "Add")
    assert (first.bytes_before, first.bytes_after) == (None, 2 * 32 * 8 * 4 + 8 * 4)
    before, after = view.facts.before, view.facts.after  # of all nodes, the product among them
    assert before and after and before.moved and after.moved and after.moved > 2 * 32 * 8 * 4
    text = read(artifact).text.replace("\xa0", " ")
    assert f"{before.moved / 1e3:.3g} kB → {after.moved / 1e3:.3g} kB predicted at batch = 32" in text


def test_histogram_counts_a_call_as_one_node(made: Path) -> None:
    rows = {r.op: (r.before, r.after) for r in views.build(made, manifests.load(made), facts_of(made), ()).histogram}
    assert rows["Mul"] == (2, 0)
    assert rows["MatMul"] == (1, 1)
    assert rows[views.CALLS] == (0, 2)


def test_numerics_show_the_worst_case_of_every_output(made: Path) -> None:
    report = manifests.load(made).verify
    rows = views.numerics(report)
    assert [(r.library, r.output) for r in rows] == [(True, "y"), (False, "y")]
    for row in rows:
        same = [c for c in report.checks if c.library is row.library]
        assert row.cases == len(same)
        assert row.worst.difference is not None
        assert row.worst.difference.excess == max(c.difference.excess for c in same if c.difference)  # type: ignore[type-var]


def test_a_failed_check_is_the_worst_whatever_the_others(made: Path) -> None:
    report = manifests.load(made).verify
    broken = dataclasses.replace(report.checks[0], difference=None, error="it stopped")
    rows = views.numerics(dataclasses.replace(report, checks=(*report.checks, broken)))
    assert rows[0].worst.error == "it stopped"
    assert not rows[0].ok


def test_refusals_left_out_and_hostile_names_are_text(made: Path) -> None:
    evil = '<script>alert("x")</script>'
    refusals = tuple(Refusal(f"n{k}", "Add", evil, f"`v{k}` is read elsewhere too") for k in range(3))
    manifest = manifests.load(made).model_copy(
        update={
            "refusals": refusals,
            "left_out": (LeftOut(name="Bad_1", ops=("Exp",), reason=f"off by 3 {evil}", max_abs=3.0, excess=9.0),),
            "notes": (evil,),
        }
    )
    text = page.render(made, manifest, facts_of(made))
    assert "<script>alert" not in text
    parsed = PageText(text)
    assert "3 nodes `...` is read elsewhere too" in parsed.text
    assert "Bad_1 (Exp): off by 3" in parsed.text
    assert [t for t, _ in parsed.tags].count("script") == 2


def test_nothing_fused(tmp_path: Path, artifact: Path) -> None:
    onnxopt.optimize(write(tmp_path / "m.onnx", NOTHING_TO_FUSE), artifact, archs=())
    text = read(artifact).text
    assert "Nothing was fused" in text
    assert "Fused kernels" not in text


def test_the_same_facts_give_the_same_page(made: Path, artifact: Path) -> None:
    again = onnxopt.optimize(made.parent / "chain.onnx", artifact, archs=("sm_90",)).path
    assert (again / "report.html").read_bytes() == (made / "report.html").read_bytes()


# --- one file, for everyone ------------------------------------------------------------------------------------------


def test_it_names_no_network_address_and_forbids_the_network(made: Path) -> None:
    text = (made / "report.html").read_text("utf-8")
    assert not re.search(r"https?://|//[a-z]+\.|url\(|@import", text)
    parsed = PageText(text)
    policy = next(a["content"] for t, a in parsed.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for tag, attributes in parsed.tags:
        assert not {"src", "srcset", "action"} & set(attributes), tag
        if "href" in attributes:
            assert (attributes["href"] or "").startswith(("#", "data:,", "model.onnx"))


def test_structure_for_keyboards_and_screen_readers(made: Path) -> None:
    parsed = read(made)
    tags = [t for t, _ in parsed.tags]
    assert ("html", {"lang": "en"}) in parsed.tags
    assert tags.count("h1") == tags.count("main") == tags.count("nav") == 1
    levels = [int(t[1]) for t in tags if re.fullmatch("h[1-6]", t)]
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    ids = [a["id"] for _, a in parsed.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for tag, attributes in parsed.tags:
        for reference in ("aria-labelledby",):
            if reference in attributes:
                assert attributes[reference] in ids
        if tag == "a" and (target := attributes["href"] or "").startswith("#"):
            assert target[1:] in ids
        if tag == "th":
            assert attributes.get("scope") in ("col", "row")
        if tag == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"


def _colours(css: str) -> list[dict[str, str]]:
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)
    return [dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block)) for block in blocks]


def _luminance(colour: str) -> float:
    channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1])
def test_contrast_light_and_dark(scheme: int) -> None:
    """WCAG 2.1 AA: 4.5 for text, 3 for what is drawn."""
    colours = _colours(page._resource("page.css"))[scheme]
    words = ("text", "muted", "link", "after", "bad", *(f"p{k}" for k in range(len(GROUPS))))  # p0: letters on a bar
    least = dict.fromkeys(words, 4.5) | {"before-fill": 3.0, "after-fill": 3.0}
    for name, ratio in least.items():
        for ground in ("bg", "soft"):
            a, b = sorted((_luminance(colours[name]), _luminance(colours[ground])))
            assert (b + 0.05) / (a + 0.05) >= ratio, (name, ground)


# --- plots -----------------------------------------------------------------------------------------------------------


def test_roofline_puts_predicted_kernels_on_the_roof() -> None:
    gpu = plots.Roof("GPU", 1e12, 1e13)
    assert gpu.at(1.0) == 1e12
    assert gpu.at(100.0) == 1e13
    svg = plots.roofline([gpu], [plots.Point("a", 1.0), plots.Point("b", 1.0, 0.5e12), plots.Point("c", 1.0, 1e12)])
    circles = re.findall(r'<circle class="(\w+)" cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert [kind for kind, _, _ in circles] == ["predicted", "measured", "measured"]
    heights = [float(y) for _, _, y in circles]
    assert heights[0] == heights[2] < heights[1]
    assert "b: measured, 50% of the roof" in svg


def test_distribution_cuts_a_tail_but_not_the_curve() -> None:
    usual = tuple(float(10 + k) for k in range(20))
    svg = plots.distribution([plots.Curve("a", (*usual, 5000.0)), plots.Curve("b", (*usual, 30.0))], "ms")
    assert len(re.findall(r'<polyline class="curve', svg)) == 2
    assert all(0 <= float(x) <= 420 for x in re.findall(r"[ \"]([\d.]+),", svg))


@pytest.mark.parametrize(("low", "high"), [(0.1, 0.1), (3.5, 4.7), (0.00012, 0.5), (20, 35_000)])
def test_ticks_are_few_and_enclose(low: float, high: float) -> None:
    ticks = plots._nice_ticks(low, high)
    assert 2 <= len(ticks) <= 9
    assert ticks[0] <= low
    assert ticks[-1] >= high
