"""The drawings of the graph before and after: every node once, below what it reads, with lanes that lead there."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import onnx.parser
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.report import drawing, facts, page, rails, views
from onnxopt.artifact.report.drawing import Row
from onnxopt.artifact.report.facts import read_facts
from onnxopt.graph import read as reading
from onnxopt.graph.fused_domain import BARE
from tests.support.report_pages import bench_file, bench_result, facts_of, read
from tests.support.small_models import CHAIN, HEADER, write

pytestmark = pytest.mark.usefixtures("library")


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEADER + text))


# --- rows ------------------------------------------------------------------------------------------------------------


def test_every_node_stands_below_what_it_reads() -> None:
    rows = drawing.drawn_model(model(CHAIN))
    assert [row.op for row in rows if not row.is_input] == ["Add", "Tanh", "Mul", "Sub", "MatMul", "Sigmoid", "Mul"]
    assert {row.op for row in rows if row.is_input} == {"input x", "input bias", "input weight"}
    reads = {row.op: [rows[k].op for k in row.reads] for row in rows}
    assert sorted(reads["Sub"]) == ["Add", "Mul"]
    assert all(source < k for k, row in enumerate(rows) for source in row.reads)


def test_inputs_stand_where_they_are_read_and_what_no_output_needs_comes_last() -> None:
    text = """
    g (float[2] x, float[2] late, float[2] unread) => (float[2] y) <float[2] w = {1, 2}> {
      a = Add(x, w)  unused = Neg(x)  b = Tanh(a)  c = Constant<value_floats = [1.0, 2.0]>()  d = Mul(b, c)
      y = Sub(d, late)
    }
    """
    rows = drawing.drawn_model(model(text))
    assert [row.op for row in rows] == ["input x", "Add", "Tanh", "Mul", "input late", "Sub", "Neg", "input unread"]
    assert rows[1].reads == (0,)  # the weight is no row
    assert rows[3].reads == (2,)  # nor is the constant


def test_what_a_subgraph_reads_from_outside_is_an_edge() -> None:
    text = """
    g (bool c, float[2] x) => (float[2] y) {
      a = Tanh(x)
      y = If (c) <then_branch = t () => (float[2] p) { q = Neg(a)  p = Neg(q) },
                  else_branch = e () => (float[2] r) { r = Identity(x) }>
    }
    """
    rows = drawing.drawn_model(model(text))
    branch = rows[-1]
    assert (branch.op, branch.inside) == ("If", 3)
    assert sorted(rows[k].op for k in branch.reads) == ["Tanh", "input c", "input x"]


def test_tensors_are_those_that_fused_calls_read_and_write(tmp_path: Path) -> None:
    path = write(tmp_path / "chain.onnx", CHAIN)
    artifact = onnxopt.optimize(path, tmp_path / "artifact", archs=(), verify=False, shapes={"batch": (5,)}).path
    drawn = facts_of(artifact)
    assert drawn.after is not None
    shown = {row.op: (row.tensor, row.is_fused) for row in drawn.after.rows}
    assert shown["MatMul"] == ("float32[batch,8]", False)
    assert [tensor for tensor, is_fused in shown.values() if is_fused] == ["float32[batch,8]"] * 2
    assert {name: [row.op for row in rows if not row.is_input] for name, rows in drawn.bodies.items()} == {
        kernel.name: list(kernel.ops) for kernel in manifests.load(artifact).kernels
    }
    text = read(artifact).text
    assert "Sizes are those of batch = 5." in text  # asked for with `shapes`, although nothing was verified
    assert "MatMul float32[5, 8]" in text
    # The first kernel reads x and the bias and writes one tensor; the second reads and writes one.
    moved = sum(k.bytes_after or 0 for k in views.build(artifact, manifests.load(artifact), drawn, ()).kernels)
    assert moved == (2 * 5 * 8 + 8) * 4 + 2 * 5 * 8 * 4
    assert "Before: 7 nodes" in text
    assert "After: 3 nodes" in text


@pytest.mark.parametrize(
    ("tensor", "shown"),
    [
        ("float32[seq,8]", "float32[6, 8]"),
        ("float32[seq*2 + x,?]", "float32[15, ?]"),
        ("float32[other,8]", "float32[other, 8]"),
        ("float32[seq//(x - 3)]", "float32[seq//(x - 3)]"),
        ("float32[Max(1, seq),8]", "float32[Max(1, seq), 8]"),
        ("float32[]", "float32[]"),
        ("", ""),
    ],
)
def test_sizes_stand_for_the_names_of_dims(tensor: str, shown: str) -> None:
    drawn = facts.Graph(1, {}, 0, 0, rows=(Row("Add", (), tensor),))
    after = views.drawings(facts.Facts(after=drawn), (), {"seq": 6, "x": 3}).after
    assert after is not None
    assert after.rows[0].tensor == shown


def test_nodes_may_stand_in_any_order() -> None:
    """`yolo export half=True` appends the Cast of its input behind all other nodes."""
    ordered = model("g (float[n] x) => (float[n] y) { a = Abs(x) b = Exp(a) y = Add(a, b) }")
    shuffled = model("g (float[n] x) => (float[n] y) { a = Abs(x) b = Exp(a) y = Add(a, b) }")
    for first in list(shuffled.graph)[::-1]:
        shuffled.graph.remove(first)
        shuffled.graph.append(first)
    assert [node.op_type for node in shuffled.graph] == ["Add", "Exp", "Abs"]
    assert drawing.drawn_model(shuffled) == drawing.drawn_model(ordered)


def test_no_model_is_lost_for_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    circle = model("g (float[n] x) => (float[n] y) { a = Abs(x) b = Exp(a) y = Add(a, b) }")
    circle.graph[0].replace_input_with(0, circle.graph[1].outputs[0])
    with pytest.warns(RuntimeWarning, match="no drawing of the model: CycleError"):
        assert facts.count(circle).rows == ()


def test_large_graphs_are_not_drawn(tmp_path: Path) -> None:
    names = [f"v{k}" for k in range(drawing.MAX_NODES + 2)]
    nodes = "\n".join(f"{b} = Neg({a})" for a, b in itertools.pairwise(names))
    large = model(f"g (float[2] v0) => (float[2] {names[-1]}) {{ {nodes} }}")
    assert drawing.drawn_model(large) == ()
    counted = facts.count(large)
    drawn = views.drawings(facts.Facts(before=counted, after=counted), (), {})
    assert (drawn.after, drawn.why_not) == (None, "graphs of more than 3,000 nodes are not drawn")


# --- lanes -----------------------------------------------------------------------------------------------------------


def followed(reads: Sequence[Sequence[int]]) -> list[list[int]]:
    """Which rows each row reads, as its lanes show: every lane is followed from the node that begins it."""
    holds: dict[int, int] = {}
    found = []
    for row, cell in enumerate(rails._cells(reads)):
        assert {lane for lane, _ in cell.above} == set(holds), "a lane begins or ends between two rows"
        found.append(sorted(holds[lane] for lane, is_read in cell.above if is_read))
        going_on = {lane: source for lane, source in holds.items() if lane in cell.below and lane != cell.lane}
        assert cell.lane not in holds or dict(cell.above)[cell.lane], "a node covers a lane that it does not read"
        holds = going_on | ({cell.lane: row} if cell.lane in cell.below else {})
        assert set(holds) == set(cell.below)
    assert holds == {}
    return found


def test_lanes_lead_from_each_result_to_those_who_read_it() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        count = rng.randrange(1, 40)
        reads = [sorted(rng.sample(range(row), min(row, rng.choice((0, 1, 1, 2, 3))))) for row in range(count)]
        assert followed(reads) == reads, seed


def test_a_chain_has_one_lane_and_many_lanes_come_nearer() -> None:
    assert rails.rails([(), (0,), (1,), (2,)], ["op"] * 4)[0] == 16
    wide = [*[()] * 100, tuple(range(100))]
    width, drawn = rails.rails(wide, ["input"] * 100 + ["op"])
    assert width == 124
    assert len(drawn) == 101


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawing")
    path = write(folder / "chain.onnx", CHAIN.replace("batch", "64"))
    return onnxopt.optimize(path, folder / "artifact", archs=("sm_90",)).path


def test_it_says_where_verification_ran_each_kernel(made: Path) -> None:
    manifest = manifests.load(made)
    (execution,) = [row for row in manifest.verify.executed or () if row.provider == "CPUExecutionProvider"]
    view = views.build(made, manifest, facts_of(made), ())
    assert {kernel.executed for kernel in view.kernels} == {f"Verification ran it on CPU ({execution.device})."}
    nowhere = dataclasses.replace(manifest.verify, executed=())
    view = views.build(made, manifest.model_copy(update={"verify": nowhere}), facts_of(made), ())
    assert {kernel.executed for kernel in view.kernels} == {"Verification ran it nowhere as a kernel."}


@pytest.mark.parametrize(
    ("device", "filled", "text"),
    [
        ("NVIDIA H200", 1, "filled where its time was measured on the H200 SXM"),
        ("NVIDIA H200 MIG 1g.18gb", 0, "Nothing was measured on a GPU of this plot."),
        ("", 0, "Nothing was measured on a GPU of this plot."),
    ],
)
def test_measured_points_are_on_the_roof_of_their_own_gpu(
    made: Path, tmp_path: Path, device: str, filled: int, text: str
) -> None:
    name = manifests.load(made).kernels[0].name
    times = {name: {"microseconds": 2.0, "calls": 1}}
    results = [bench_result(device="NVIDIA L4 of another kind"), bench_result(device=device, kernels=times)]
    written = onnxopt.report(made, bench=[bench_file(tmp_path / "b.json", *results)], output=tmp_path / "report.html")
    shown = written.read_text()
    assert shown.count('class="measured"') == filled
    assert shown.count('class="predicted"') == 2 - filled
    assert text in " ".join(shown.split())


def test_two_thousand_nodes_fit_on_a_page(made: Path) -> None:
    manifest = manifests.load(made)
    kernel = manifest.kernels[0].name
    rows = [Row("input x", (), "float32[64,8]", is_input=True)]
    for k in range(2000):
        fused = k % 4 == 0
        rows.append(Row(kernel if fused else "MatMul", tuple({k, max(0, k - 5)}), "float32[64,8]", is_fused=fused))
    given = facts_of(made)
    assert given.after is not None
    graph = dataclasses.replace(given.after, rows=tuple(rows))
    html = page.render(made, manifest, dataclasses.replace(given, after=graph, before=graph))
    assert html.count('<li class="fused">') == 2 * 500
    assert len(html) < 6e6


def test_the_names_of_an_artifact_of_an_earlier_release_are_drawn_too(tmp_path: Path) -> None:
    """Fused calls are found by their domain, `onnxopt` alone included; a report of an artifact without one is made."""
    path = write(tmp_path / "chain.onnx", CHAIN)
    artifact = onnxopt.optimize(path, tmp_path / "artifact", archs=()).path
    (artifact / "report.html").unlink()
    known = read_facts(artifact, manifests.load(artifact))
    assert known.after is not None
    assert [row.op for row in known.after.rows if row.is_fused] == [k.name for k in manifests.load(artifact).kernels]
    old = reading.load(artifact / "model.onnx").model
    for node in old.graph:
        if node.domain.startswith(f"{BARE}."):
            node.domain = BARE
    assert sum(row.is_fused for row in drawing.drawn_model(old)) == 2
