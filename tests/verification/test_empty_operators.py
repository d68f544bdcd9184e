"""Dims of 0: operators of the table run, or are refused, in a process of their own; what ends it is left out."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxopt.graph import read, signature, traits
from onnxopt.runtime import isolated, sessions
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.empty_operators import ENDS, TAKE_EMPTY, why_not_empty
from onnxopt.verification.sampling import samples

HEADER = '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]> '
IMAGE = "g (float[n, 3, h, v] x0) => (float[n, c, p, q] y) <float[3] s = {1, 1, 1}, %s> { x = Relu(x0) %s }"
ROWS = (
    "g (float[n, m, 6] x0) => (float[n, m, 6] y) <float[6] s = {1, 1, 1, 1, 1, 1}, int64[1] a = {1}> "
    "{ x = Relu(x0) %s }"
)
WEIGHTS = f"float[4, 3, 3, 3] w = {{{', '.join(['1'] * 108)}}}"
TEXTS = {
    "Conv": IMAGE % (WEIGHTS, "y = Conv<pads = [1, 1, 1, 1]>(x, w)"),
    "MaxPool": IMAGE % (WEIGHTS, "y = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)"),
    "GlobalAveragePool": IMAGE % (WEIGHTS, "y = GlobalAveragePool(x)"),
    "BatchNormalization": IMAGE % (WEIGHTS, "y = BatchNormalization(x, s, s, s, s)"),
    "InstanceNormalization": IMAGE % (WEIGHTS, "y = InstanceNormalization(x, s, s)"),
    "ReduceMax": ROWS % "y = ReduceMax<keepdims = 1>(x, a)",
    "CumSum": ROWS % "k = Squeeze(a) y = CumSum(x, k)",
    "Softmax": ROWS % "y = Softmax<axis = 1>(x)",
    "TopK": ROWS % "y, i = TopK<axis = 1>(x, a)",
    "GatherElements": ROWS % "i = NonZero(x) j = Cast<to = 7>(x) y = GatherElements<axis = 2>(x, j)",
    "MultiHeadAttention": ROWS % "y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, x, x)",
    "Attention": "g (float[n, m, 2] x0) => (float[n, m, 2] y) <float[2, 6] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, "
    "float[6] s = {1, 1, 1, 1, 1, 1}> { x = Relu(x0) y = com.microsoft.Attention<num_heads = 2>(x, w, s) }",
    "SkipLayerNormalization": ROWS % "y = com.microsoft.SkipLayerNormalization(x, x, s)",
    "Einsum": ROWS % 'y = Einsum<equation = "nmk,nok->nmo">(x, x)',
}


@pytest.mark.parametrize("op_type", TEXTS)
def test_a_row_says_what_ends_the_process(op_type: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(HEADER + TEXTS[op_type]), tmp_path / "m.onnx")
    known = traits.of(read.load(tmp_path / "m.onnx").model)
    names = signature.symbols(known.inputs)
    trial = isolated.Trial(tmp_path / "m.onnx", provider=sessions.CPU, library=None)
    ended = False
    for zero in [(name,) for name in names] + [names, names[1:]]:
        sizes = dict.fromkeys(names, 5) | dict.fromkeys(zero, 0)
        is_batch = zero == names[:1]
        try:
            trial.run(samples.draw(known.inputs, sizes, 0, known.uses))
        except RunError as error:
            if "ended its process" in str(error):
                ended = True
                assert why_not_empty(known.operators, batch=is_batch)
    trial.close()
    assert ended is (op_type in ENDS)


def test_what_is_not_tried_has_a_reason() -> None:
    assert why_not_empty({"Tanh", "com.microsoft::BiasGelu"}, batch=False) == ""
    assert why_not_empty({"Tanh", "LSTM"}, batch=True).startswith("LSTM: ")
    assert why_not_empty({"InstanceNormalization"}, batch=True) == ""
    assert why_not_empty({"InstanceNormalization"}, batch=False) != ""
    assert why_not_empty({"com.microsoft::GroupQueryAttention"}, batch=False) == ""
    assert why_not_empty({"com.microsoft::GroupQueryAttention"}, batch=True) != ""
    assert why_not_empty({"elsewhere::Op"}, batch=True) == "elsewhere.Op is not known to take it"
    assert not TAKE_EMPTY & set(ENDS)
