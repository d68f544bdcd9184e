"""Bodies of fused functions that compute in float32 between Casts."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onnxopt.fusion import fuse, outline
from onnxopt.fusion.lower import lower
from onnxopt.graph import normalize
from onnxopt.kinds import KINDS
from tests.support.graphs import graph

_ROW = "c = Cast<to = 10>(x)  a = Mul(c, k)  b = Mul(a, a)  d = Div(b, k)  e = Sub(d, c)  y = Cast<to = 1>(e)"
_CONSTANTS = "float16 k = {24064}"  # 384, whose square overflows float16


def outlined(body: str, *, widen: bool) -> ir.Model:
    model = normalize.normalize(graph("float[N, 64] x", "float[N, 64] y", body, constants=_CONSTANTS)).model
    plan = lower(fuse.fuse(model, KINDS, (), cuda=True), model.opset_imports)
    outline.replace(model, outline.functions(plan, model.opset_imports, widen=widen))
    return model


def evaluated(model: ir.Model, x: np.ndarray) -> np.ndarray:
    """The output as each node's dtype says; ONNX Runtime's CPU provider leaves out roundings of float16."""
    with np.errstate(over="ignore", invalid="ignore"):
        result: np.ndarray = ReferenceEvaluator(ir.to_proto(model)).run(None, {"x": x})[0]
    return result


def test_a_wide_body_overflows_no_more_than_the_kernel() -> None:
    x = np.random.default_rng(0).uniform(-2.0, 2.0, (3, 64)).astype(np.float32)
    narrow, wide = (evaluated(outlined(_ROW, widen=widen), x) for widen in (False, True))
    exact = np.square(x.astype(np.float16).astype(np.float64) * 384) / 384 - x
    assert not np.isfinite(narrow).all()
    np.testing.assert_allclose(wide, exact, rtol=2e-3, atol=0.5)


def test_the_name_and_the_interface_of_a_function_do_not_depend_on_it() -> None:
    functions = [next(iter(outlined(_ROW, widen=widen).functions.values())) for widen in (False, True)]
    assert len({f.name for f in functions}) == 1
    assert len({tuple(v.name for v in (*f.inputs, *f.outputs)) for f in functions}) == 1
    assert [sum(n.op_type == "Cast" for n in f) for f in functions] == [2, 3]


def test_one_node_alone_and_comparisons_keep_their_dtype() -> None:
    alone = "c = Cast<to = 10>(x)  m = MatMul(c, c)  a = Tanh(m)  n = MatMul(a, c)  y = Cast<to = 1>(n)"
    jumps = (
        "c = Cast<to = 10>(x)  a = Mul(c, k)  s = Add(a, c)  g = Greater(s, k)  w = Where(g, s, a)  y = Cast<to = 1>(w)"
    )
    model = outlined(alone, widen=True)
    assert all(n.op_type != "Cast" or len(f) == 1 for f in model.functions.values() for n in f)
    body = list(next(iter(outlined(jumps, widen=True).functions.values())))
    greater = next(n for n in body if n.op_type == "Greater")
    producer = greater.inputs[0].producer()  # type: ignore[union-attr]
    assert producer is not None
    assert (producer.op_type, producer.attributes.get_int("to")) == ("Cast", ir.DataType.FLOAT16)
