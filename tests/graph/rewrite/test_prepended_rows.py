"""Constant rows in front of a tensor go into the constant that is added to both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from onnxopt.graph.rewrite import rewrite
from onnxopt.graph.rewrite.products.prepended_rows import FrontRows
from tests.support.graphs import graph, hold, run
from tests.support.refused import reason

TOKENS, WIDTH = 5, 4
BODY = """
    b = Shape <start = 0, end = 1> (x)
    shape = Concat <axis = 0> (b, rest)
    expanded = Expand (row, shape)
    joined = Concat <axis = 1> (expanded, x)
    y = Add (joined, positions)
"""


def model(
    body: str = BODY, rows: int = 1, of_row: str = "", of_positions: str = "", tokens: object = TOKENS
) -> ir.Model:
    """A model of x [batch, tokens, WIDTH] with rows in front. of_row, of_positions: other dims of the constants."""
    shapes = {"row": of_row or f"1,{rows},{WIDTH}", "positions": of_positions or f"1,{rows + TOKENS},{WIDTH}"}
    held = ", ".join(f"float[{dims}] {name}" for name, dims in shapes.items())
    source = graph(
        f"float[batch, {tokens}, {WIDTH}] x, {held}", "float[] y", body,
        constants=f"int64[2] rest = {{{rows}, {WIDTH}}}",
    )  # fmt: skip
    random = np.random.default_rng(0)
    arrays = {name: random.standard_normal([int(n) for n in dims.split(",")]) for name, dims in shapes.items()}
    hold(source, arrays, np.float32)
    return source


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("body", [BODY, BODY.replace("joined, positions", "positions, joined")], ids=["", "reversed"])
@pytest.mark.parametrize("width_of_row", [1, WIDTH])
@pytest.mark.parametrize("width_of_positions", [1, WIDTH])
def test_rows_in_front_go_into_the_positions(
    body: str, rows: int, width_of_row: int, width_of_positions: int, tmp_path: Path
) -> None:
    source = model(body, rows, f"1,{rows},{width_of_row}", f"1,{rows + TOKENS},{width_of_positions}")
    found = source.clone()
    rewrite(found, tmp_path)
    assert [node.op_type for node in found.graph] == ["Pad", "Add"]
    for batch in (1, 3):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, TOKENS, WIDTH)).astype(np.float32)}
        np.testing.assert_array_equal(run(found, feeds)[0], run(source, feeds)[0])
        (one,), (other,) = (ReferenceEvaluator(ir.to_proto(m)).run(None, feeds) for m in (found, source))
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("body", [BODY, BODY.replace("joined, positions", "positions, joined")], ids=["", "reversed"])
def test_the_positions_state_a_symbolic_number_of_rows(body: str, tmp_path: Path) -> None:
    source = model(body, tokens="tokens")
    found = source.clone()
    rewrite(found, tmp_path)
    assert [node.op_type for node in found.graph] == ["Reshape", "Pad", "Add"]
    for batch in (1, 3):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, TOKENS, WIDTH)).astype(np.float32)}
        np.testing.assert_array_equal(run(found, feeds)[0], run(source, feeds)[0])
    for tokens in (TOKENS - 1, TOKENS + 1):
        for other in (source, found):
            with pytest.raises(Exception, match=r"Add|Reshape"):
                run(other, {"x": np.zeros((1, tokens, WIDTH), np.float32)})


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (model(BODY.replace("Expand (row,", "Expand (sum,").replace("b =", "sum = ReduceMax (x) b =")),
         "the prepended rows, or what is added, is no constant"),
        (model(of_positions=f"{TOKENS + 1},{WIDTH}"), "the constants have fewer dims than the result"),
        (model(of_positions=f"1,1,{WIDTH}"), "the number of rows is not known, or they repeat"),
        (model(rows=2, of_row=f"1,1,{WIDTH}"), "the number of rows is not known, or they repeat"),
        (model(tokens="tokens", of_positions=f"1,1,{WIDTH}"), "the number of rows is not known, or they repeat"),
        (model(of_positions=f"7,{TOKENS + 1},{WIDTH}"), "what is added repeats the rows"),
    ],
    ids=["computed", "fewer dims", "one position", "one row for two", "unknown number", "a batch of positions"],
)  # fmt: skip
def test_what_is_refused(source: ir.Model, why: str) -> None:
    assert reason(source, "y", FrontRows.rule(False)) == why


def test_what_onnx_runtime_does_not_pad_on_cuda_stays() -> None:
    source = model()
    for value in (source.graph.inputs[0], *source.graph.initializers.values()):
        if value.dtype == ir.DataType.FLOAT and value.const_value is not None:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float64), name=value.name)
        value.dtype = ir.DataType.DOUBLE if value.dtype == ir.DataType.FLOAT else value.dtype
    assert reason(source, "y", FrontRows.rule(False)).startswith("ONNX Runtime pads no DOUBLE on CUDA")
