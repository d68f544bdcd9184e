"""What optimizing changed: one count of nodes and of launches in everything that says one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact import result as results
from onnxopt.artifact import result_table
from onnxopt.artifact.result import Change
from tests.support.command import run
from tests.support.report_pages import read as report_page
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE, write

CALLS = """
<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
calls (float[batch, 8] x) => (float[batch, 8] y) { a = local.twice(x) b = Tanh(a) y = local.twice(b) }
<domain: "local", opset_import: ["" : 17]> twice (t) => (u) { v = Add(t, t) u = Sigmoid(v) }
"""
BRANCHES = """
branches (bool c, float[4] x) => (float[4] y) {
  a = Exp(x)
  b = Tanh(a)
  y = If (c) <then_branch = yes () => (float[4] p) { p = Abs(b) }, else_branch = no () => (float[4] q) { q = Neg(b) }>
}
"""
# Constant, Shape, Gather and Reshape launch nothing: they are constants, run on the host, or are views.
VIEWS = """
views (float[batch, 8] x) => (float[batch, 1, 8] y) {
  k = Constant <value = int64 {0}> ()
  one = Constant <value = int64[1] {1}> ()
  eight = Constant <value = int64[1] {8}> ()
  s = Shape(x)
  n = Gather(s, k)
  i = Constant <value = int64[1] {0}> ()
  m = Unsqueeze(n, i)
  t = Concat <axis = 0> (m, one, eight)
  a = Tanh(x)
  y = Reshape(a, t)
}
"""
MODELS = {
    "chain": (CHAIN, Change(7, 3), Change(7, 3)),
    "nothing": (NOTHING_TO_FUSE, Change(1, 1), Change(1, 1)),
    "calls": (CALLS, Change(5, 1), Change(5, 1)),  # two calls of a function with two nodes: the bodies count once
    "branches": (BRANCHES, Change(5, 4), Change(None, None)),
    "views": (VIEWS, Change(10, 2), Change(1, 1)),
}


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, Change, Change]:
    text, nodes, launches = MODELS[request.param]
    return request.param, write(tmp_path / f"{request.param}.onnx", text), nodes, launches


@pytest.mark.usefixtures("library")
def test_everything_states_the_same_counts(case: tuple[str, Path, Change, Change], artifact: Path) -> None:
    name, model, nodes, launches = case
    done = json.loads(run("optimize", model, "-o", artifact, "--arch", "h200", "--json").stdout)["result"]
    assert (Change(**done["nodes"]), Change(**done["launches"])) == (nodes, launches)
    manifest = manifests.load(artifact)
    read_again = results.read(artifact, manifest)
    assert (read_again.nodes, read_again.launches) == (nodes, launches)
    assert json.loads(run("explain", artifact, "--json").stdout)["result"]["nodes"] == done["nodes"]
    for path, count in ((model, nodes.before), (artifact / "model.onnx", nodes.after)):
        summary = onnxopt.inspect(path)
        assert summary.nodes == sum(summary.ops.values()) == count
    operators = done["operators"].values()
    assert sum(row["before"] for row in operators) == nodes.before
    assert sum(row["after"] for row in operators) == nodes.after
    shown = (result_table.text(read_again), onnxopt.explain(artifact))
    for figure, change in (("nodes", nodes), ("launches, predicted", launches)):
        lines = [line.split() for text in shown for line in text.splitlines() if line.startswith(figure)]
        numbers = [[word for word in line if word.isdigit()] for line in lines]
        assert numbers == ([] if change.before is None else [[str(change.before), str(change.after)]] * 2), figure
    assert f"Nodes {nodes.before} → {nodes.after}" in report_page(artifact).text
    assert done["sentence"].startswith(f"{name}.onnx: ") and done["sentence"].endswith("agree with the original's")
    (artifact / "report.html").write_bytes(b"another")
    assert results.read(artifact, manifest).nodes == Change(None, None)
