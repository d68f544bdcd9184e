"""One token's attention to its cache: which operators become a kernel, and what the library launches and refuses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from cases.models import fuse, outline
from onnxopt.codegen import generate
from onnxopt.kinds.attention.kind import ATTENTION
from tests.support.emulation import emulated_library
from tests.support.fakes import idle_gpu
from tests.support.wrong_bodies import with_wrong_bodies

HEADS, GROUPS, WIDTH = 4, 2, 16
HALF = TensorProto.FLOAT16
F16 = ("float16",)


def graph(batch=2, past=5, *, packed=True, lengths=None, dtype=HALF, **attributes) -> ir.Model:
    """GroupQueryAttention of one token; lengths: of its sequences, by default as long as the cache."""
    row = (HEADS + 2 * GROUPS if packed else HEADS) * WIDTH
    info = helper.make_tensor_value_info
    cache = [batch, GROUPS, past, WIDTH]
    inputs = [info("q", dtype, [batch, 1, row]), info("pk", dtype, cache), info("pv", dtype, cache)]
    if not packed:
        inputs += [info(name, dtype, [batch, 1, GROUPS * WIDTH]) for name in ("k", "v")]
    present = [info(name, dtype, None) for name in ("y", "nk", "nv")]
    operands = ["q", "" if packed else "k", "" if packed else "v", "pk", "pv", "lengths", "total"]
    attributes = {"num_heads": HEADS, "kv_num_heads": GROUPS, "scale": 0.25, **attributes}
    attend = helper.make_node("GroupQueryAttention", operands, ["y", "nk", "nv"], domain="com.microsoft", **attributes)
    nodes, constants = [], []

    def constant(name, values):
        constants.append(helper.make_tensor(name, TensorProto.INT32, np.shape(values), np.ravel(values)))

    if isinstance(past, int):
        constant("lengths", [past] * batch if lengths is None else lengths)
        constant("total", past + 1)
    else:
        constant("one", 1)
        constants.append(helper.make_tensor("first", TensorProto.INT64, [1], [0]))
        nodes = [
            helper.make_node("Shape", ["pk"], ["length"], start=-2, end=-1),
            helper.make_node("Squeeze", ["length", "first"], ["scalar"]),
            helper.make_node("Cast", ["scalar"], ["before"], to=TensorProto.INT32),
            helper.make_node("Add", ["before", "one"], ["total"]),
            helper.make_node("Range", ["before", "total", "one"], ["each"]),
            helper.make_node("Shape", ["pk" if lengths is None else lengths], ["batch"], start=-4, end=-3),
            helper.make_node("Expand", ["each", "batch"], ["lengths"]),
        ]
    made = helper.make_graph([*nodes, attend], "g", inputs, present, constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return ir.serde.deserialize_model(helper.make_model(made, opset_imports=opsets, ir_version=10))


@pytest.mark.parametrize(("batch", "past"), [(2, 5), ("batch", "past")])
@pytest.mark.parametrize("packed", [True, False])
def test_it_becomes_a_kernel_with_its_lengths_inside(batch, past, packed) -> None:
    model = graph(batch, past, packed=packed)
    plan = fuse(model)
    (region,) = plan.regions
    assert region.kind is ATTENTION
    assert [v.name for v in region.inputs] == (["q", "pk", "pv"] if packed else ["q", "k", "v", "pk", "pv"])
    meaning = region.meaning
    meaning.verify()
    (kernel,) = outline(model, plan)
    assert not kernel.cpu and kernel.name.startswith("GroupQueryAttention_")
    assert [n.op_type for n in model.graph] == [kernel.name]
    text = generate.generate([kernel])
    assert f"attend<float16, {WIDTH}, {HEADS // GROUPS}, 256, 0>(params)" in text
    assert '#include "attention/token_attention.cuh"' in text


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"lengths": [4, 5]}, "`lengths` do not prove that the tokens fill the cache"),
        ({"batch": "b", "past": "p", "lengths": "pv"}, "`lengths` do not prove that the tokens fill the cache"),
        ({"local_window_size": 8}, "GroupQueryAttention has local_window_size = 8"),
        ({"do_rotary": 1}, "GroupQueryAttention has do_rotary = 1"),
        ({"dtype": TensorProto.FLOAT}, "The kernel supports float16 and bfloat16; `q` has dtype float32"),
    ],
)
def test_others_stay(changed, reason) -> None:
    plan = fuse(graph(**changed))
    assert not plan.regions
    assert any(reason in r.reason for r in plan.refusals)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("packed", [True, False])
def test_the_kernel_is_the_operator(tmp_path, packed) -> None:
    """Of device code that g++ compiled, in any number of sequences and keys."""
    model = graph("batch", "past", packed=packed)
    proto = ir.serde.serialize_model(model)
    theirs = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    given, rng = [], np.random.default_rng(int(packed))
    for batch, past in ((2, 5), (3, 40), (1, 1)):
        sizes = {"batch": batch, "past": past}
        shapes = {i.name: [sizes.get(d, d) for d in i.shape] for i in theirs.get_inputs()}
        given.append({name: rng.standard_normal(s).astype(np.float16) for name, s in shapes.items()})
    kernels = outline(model, fuse(model))
    optimized = with_wrong_bodies(ir.serde.serialize_model(model))
    results, _ = emulated_library.run(tmp_path / "run", optimized, kernels, given)
    for feeds, found in zip(given, results, strict=True):
        y, *caches = theirs.run(None, feeds)
        for name, cache in zip(("nk", "nv"), caches, strict=True):
            np.testing.assert_array_equal(found[name], cache)
        np.testing.assert_allclose(found["y"].astype(np.float32), y.astype(np.float32), atol=4e-3)


@pytest.mark.usefixtures("library")
def test_an_empty_batch_gives_empty_outputs(tmp_path) -> None:
    """ONNX Runtime hands out no memory for them. Its own operator divides by zero."""
    model = graph("batch", "past")
    kernels = outline(model, fuse(model))
    shapes = {"q": (0, 1, (HEADS + 2 * GROUPS) * WIDTH), "pk": (0, GROUPS, 5, WIDTH), "pv": (0, GROUPS, 5, WIDTH)}
    given = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    (found,) = idle_gpu.calls(
        tmp_path / "run", ir.serde.serialize_model(model), idle_gpu.document(kernels), [given]
    )  # fmt: skip
    assert found == {"y": (0, 1, HEADS * WIDTH), **dict.fromkeys(("nk", "nv"), (0, GROUPS, 6, WIDTH))}
