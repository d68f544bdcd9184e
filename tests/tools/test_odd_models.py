"""Models that ended the command in a traceback, a hang or a wrong refusal.

Whether ONNX Runtime can run a model decides whether it is verified; --no-verify leaves that out where a test is not
about it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from click.testing import Result
from onnx import TensorProto, helper, numpy_helper

from onnxopt.graph import read
from onnxopt.graph.passes import shape_subgraphs
from tests.support.command import assert_refused, run
from tests.support.hostile.hostile_models import model_of, value
from tests.support.small_models import write

ROOT = Path(__file__).resolve().parents[2]
NODES = (("Mul", ["x", "x"], "a"), ("Add", ["a", "x"], "b"), ("Tanh", ["b"], "y"))
ZERO_TRIPS = """<ir_version: 6, opset_import: ["" : 11]>
g (int64 trips, bool on, float[1] y) => (float[1] last, float[n, 1] all) {
  last, all = Loop (trips, on, y) <body =
  b (int64 k, bool on_in, float[1] y_in) => (bool on_out, float[1] y_out, float[1] scan) {
    on_out = Identity (on_in)
    c = Constant <value = float[1] {2.0}> ()
    y_out = Add (y_in, c)
    scan = Identity (y_out)
  }>
}"""
SCAN_8 = """<ir_version: 8, opset_import: ["" : 8]>
g (float[1,2] initial, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
  i2 = Add (initial, initial)
  y0, z0 = Scan <num_scan_inputs: int = 1, body =
  b (float[2] sum_in, float[2] next) => (float[2] sum_out, float[2] scan_out) {
    sum_out = Add (sum_in, next)
    scan_out = Identity (sum_out)
  }> ("", i2, x)
  y1 = Mul (y0, y0)
  y = Tanh (y1)
  z1 = Mul (z0, z0)
  z = Tanh (z1)
}"""


def _chain(dims: list | None = None, **header: str) -> onnx.ModelProto:
    nodes = [helper.make_node(op, inputs, [output]) for op, inputs, output in NODES]
    shape = [3, 8] if dims is None else dims
    graph = helper.make_graph(nodes, "g", [value("x", shape)], [value("y", shape)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, **header)


def _optimize(data: bytes | onnx.ModelProto, folder: Path, *options: str) -> Result:
    path = folder / "m.onnx"
    path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
    return run("optimize", path, "-o", folder / "out", "--arch", "none", *options)


# --- valid models pass -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("library")
def test_a_loop_that_never_runs_keeps_the_declared_shape_of_its_body(tmp_path: Path) -> None:
    """ONNX Runtime takes the dims of an empty stack of results from the body's declaration."""
    result = _optimize(onnx.parser.parse_model(ZERO_TRIPS), tmp_path)
    assert result.exit_code == 0, result.output
    feeds = {"trips": np.array(0), "on": np.array(True), "y": np.ones(1, np.float32)}
    shapes = [
        [output.shape for output in ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)]
        for path in (tmp_path / "m.onnx", tmp_path / "out" / "model.onnx")
    ]
    assert shapes == [[(1,), (0, 1)]] * 2


@pytest.mark.usefixtures("library")
def test_scan_of_opset_8_has_a_batch_dim_and_stays(tmp_path: Path) -> None:
    result = _optimize(onnx.parser.parse_model(SCAN_8), tmp_path)
    assert result.exit_code == 0, result.output
    assert "; outputs agree with the original's" in result.stdout
    assert "opset 8 kept: Scan with a batch dim has no equal from opset 9 on" in result.stdout


def _swapped(model: onnx.ModelProto, text: str, times: int) -> bytes:
    """The file with a text of four letters replaced by bytes that are not UTF-8."""
    data = model.SerializeToString()
    assert data.count(text.encode()) == times
    return data.replace(text.encode(), b"\xff\xfe\xfd\xfc")


def _with_metadata() -> onnx.ModelProto:
    model = _chain()
    model.metadata_props.add(key="KEYK", value="v")
    return model


def _with_inner_name() -> onnx.ModelProto:
    model = _chain()
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "INNR"
    return model


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("data", "escaped"),
    [
        (_swapped(_chain(producer_name="PROD"), "PROD", 1), True),
        (_swapped(_chain(doc_string="DOCS"), "DOCS", 1), False),
        (_swapped(_with_metadata(), "KEYK", 1), False),
        (_swapped(_with_inner_name(), "INNR", 2), False),
    ],
    ids=["producer", "doc string", "metadata", "names"],
)
def test_text_that_is_not_utf_8(tmp_path: Path, data: bytes, escaped: bool) -> None:
    result = _optimize(data, tmp_path)
    assert result.exit_code == 0, result.output
    assert "; outputs agree with the original's" in result.stdout
    assert "Mul, Add, Tanh" in run("explain", tmp_path / "out").stdout
    inspected = run("inspect", tmp_path / "m.onnx")
    assert inspected.exit_code == 0, inspected.output
    assert (r"\xff\xfe\xfd\xfc" in inspected.stdout) is escaped


def test_texts_that_differ_stay_different(tmp_path: Path) -> None:
    """The escape of one name is the name of another value."""
    model = _with_inner_name()
    model.graph.node[1].output[0] = r"\xff\xfe\xfd\xfc"
    model.graph.node[2].input[0] = r"\xff\xfe\xfd\xfc"
    (tmp_path / "m.onnx").write_bytes(_swapped(model, "INNR", 2))
    nodes = list(read.load(tmp_path / "m.onnx").model.graph)
    assert nodes[1].inputs[0] is nodes[0].outputs[0]
    assert nodes[2].inputs[0] is nodes[1].outputs[0]
    assert len({node.outputs[0].name for node in nodes}) == 3


def test_an_input_that_python_cannot_name(tmp_path: Path) -> None:
    model = _chain()
    model.graph.input[0].name = "INPU"
    for node in model.graph.node:
        node.input[:] = ["INPU" if name == "x" else name for name in node.input]
    assert_refused(_optimize(_swapped(model, "INPU", 4), tmp_path), "name of input 0 is not UTF-8", "rename it")


def test_huge_dims(tmp_path: Path) -> None:
    """No machine runs this model, so it cannot be verified; everything else works."""
    result = _optimize(_chain([2**62, 8]), tmp_path, "--no-verify")
    assert result.exit_code == 0, result.output
    (tmp_path / "out").rename(tmp_path / "first")
    result = _optimize(_chain([2**62, 8]), tmp_path)
    assert_refused(result, "cannot be verified", "its inputs would take 147,573,952,589,676,412,928 bytes", code=3)
    assert run("inspect", tmp_path / "m.onnx").exit_code == 0


# --- one line and exit code 2 ----------------------------------------------------------------------------------------


def _nested(depth: int) -> bytes:
    """A graph in a graph in a graph ...: deeper than protobuf's classes can write."""

    def field(tag: int, payload: bytes) -> bytes:
        size, length = bytearray(), len(payload)
        while length > 127:
            size.append(length & 127 | 128)
            length >>= 7
        return bytes([tag, *size, length]) + payload

    graph = b""
    for _ in range(depth):
        graph = field(0x0A, field(0x2A, field(0x0A, b"then_branch") + field(0x32, graph) + b"\xa0\x01\x05"))
    return b"\x08\x08" + field(0x3A, graph)


def _nul() -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=1, dims=[1024], data_location=1)
    weight.external_data.add(key="location", value="a\0b")
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [1024])], [value("y", [1024])])
    model.graph.initializer.append(weight)
    return model


def _mixed(weight: onnx.TensorProto) -> onnx.ModelProto:
    model = model_of([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [8])], [value("y", [8])])
    model.graph.initializer.append(weight)
    return model


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (_mixed(numpy_helper.from_array(np.zeros(8, np.int32), "w")), ["does not open the original", "Add"]),
        (_mixed(helper.make_tensor("w", TensorProto.INT4, [8], [0] * 8)), ["does not open the original", "Add"]),
        (_nested(1000), ["not an ONNX file", "nests more than 100 messages"]),
        (_nul(), ["tensor 'w'", "is not a path"]),
    ],
    ids=["float + int", "float + 4 bits", "graphs nested 1,000 deep", "external data at a path with NUL"],
)
def test_bad_models(tmp_path: Path, data: bytes | onnx.ModelProto, words: list[str]) -> None:
    assert_refused(_optimize(data, tmp_path), *words)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_an_axis_given_twice(tmp_path: Path) -> None:
    """Our shape inference says nothing of the node, and ONNX Runtime refuses it in its own words."""
    model = model_of(
        [helper.make_node("Unsqueeze", ["x", "i"], ["t"], name="twice"), helper.make_node("Neg", ["t"], ["y"])],
        [value("x", [3])],
        [value("y", None)],
        {"i": np.array([0, 0])},
    )
    assert_refused(_optimize(model, tmp_path), "does not open the original", "twice", "Axis 0 is referred to more")


def test_an_error_of_a_pass_names_the_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_model: ir.Model) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(shape_subgraphs.infer, "infer", broken)
    assert_refused(_optimize(_chain(), tmp_path), "m.onnx: ", "(pass SimplifyShapesPass) failed: KeyError: 'a bug'")


def test_a_model_of_an_old_exporter_that_ort_refuses(tmp_path: Path) -> None:
    """The error is ONNX Runtime's own sentence."""
    text = '<ir_version: 3, opset_import: ["" : 6]> g (float[2,3] x, float[3] b) => (float[2,3] y) { y = Add (x, b) }'
    model = write(tmp_path / "m.onnx", text)
    with pytest.raises(Exception, match="Could not find an implementation for Add"):
        ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    assert_refused(run("optimize", model, "-o", tmp_path / "out", "--arch", "none"), "does not open", "for Add(6)")


# --- no hang, no memory ----------------------------------------------------------------------------------------------


def test_contents_of_large_vectors_are_not_evaluated(tmp_path: Path) -> None:
    """onnx's data propagation makes a message for each element of a vector: 12.8 GB for this model of three nodes."""
    model = _chain([2**26])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    program = (
        "import resource, time; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n"
        "from onnxopt.graph import normalize, read\n"
        f"source = read.load({str(tmp_path / 'm.onnx')!r})\n"
        "before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()\n"
        "print(normalize.normalize(source.model).notes)\n"
        "assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000\n"
        "assert time.process_time() - started < 5"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert "opset 17 converted to 20" in ended.stdout


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    assert_refused(run("inspect", tmp_path / "m.onnx"), "it is a FIFO, not a regular file")


def test_a_shape_beyond_what_an_integer_holds(tmp_path: Path) -> None:
    result = _optimize(_chain(["n", 8]), tmp_path, "--shape", "n=99999999999999999999")
    assert_refused(result, "shape of n", "has a dim above 9,223,372,036,854,775,807")
