"""One token's attention to its cache: which operators become a kernel, and the library's CPU kernel."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from onnxopt.codegen import generate
from onnxopt.kinds.attention.kind import ATTENTION
from onnxopt.program.attention import TokenAttention
from tests.support import custom_ops_artifact as artifact
from tests.support.fusing import fuse, outline

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


@pytest.mark.parametrize(
    "fields", [{"heads": 3}, {"heads": 64}, {"width": 24}, {"width": 512}, {"scale": float("inf")}]
)
def test_a_meaning_that_no_kernel_runs_is_refused(fields) -> None:
    good = TokenAttention(F16 * 3, F16 * 3, HEADS, GROUPS, WIDTH, 0.25)
    good.verify()
    with pytest.raises(ValueError, match=r"heads|scale"):
        dataclasses.replace(good, **fields).verify()


def _row(meaning: TokenAttention, **fields) -> dict:
    return {
        "name": artifact.NAME, "kind": "attention", **meaning.to_json(), "cpu": True, "variants": [], **fields,
    }  # fmt: skip


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("batch", "past", "packed"), [(2, 5, True), (3, 40, False), (1, 1, True)])
def test_the_cpu_kernel_is_the_operator(tmp_path, batch, past, packed) -> None:
    proto = ir.serde.serialize_model(graph(batch, past, packed=packed))
    rng = np.random.default_rng(past)
    given = {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float16)
        for i in proto.graph.input
    }
    expected = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)
    positions = {} if packed else {"k": 1, "v": 2, "past_k": 3, "past_v": 4}
    meaning = TokenAttention(F16 * (3 if packed else 5), F16 * 3, HEADS, GROUPS, WIDTH, 0.25, **positions)
    library = artifact.write(tmp_path, [_row(meaning)])
    names = ["q", "pk", "pv"] if packed else ["q", "k", "v", "pk", "pv"]
    body = artifact.wrong_body(*["float16"] * 3)
    inputs = [("float16", list(given[n].shape)) for n in names]
    session = artifact.session(artifact.model(body, inputs, [("float16", None)] * 3), library)
    found = artifact.run(session, [given[n] for n in names])
    assert np.array_equal(found[1], expected[1]) and np.array_equal(found[2], expected[2])
    np.testing.assert_allclose(found[0].astype(np.float32), expected[0].astype(np.float32), atol=4e-3)


@pytest.mark.usefixtures("library")
def test_an_empty_batch_gives_empty_outputs(tmp_path) -> None:
    """ONNX Runtime hands out no memory for them. Its own operator divides by zero."""
    meaning = TokenAttention(F16 * 3, F16 * 3, HEADS, GROUPS, WIDTH, 0.25)
    library = artifact.write(tmp_path, [_row(meaning)])
    shapes = [(0, 1, (HEADS + 2 * GROUPS) * WIDTH), (0, GROUPS, 5, WIDTH), (0, GROUPS, 5, WIDTH)]
    body = artifact.wrong_body(*["float16"] * 3)
    session = artifact.session(
        artifact.model(body, [("float16", list(s)) for s in shapes], [("float16", None)] * 3), library
    )
    found = artifact.run(session, [np.zeros(s, np.float16) for s in shapes])
    assert [f.shape for f in found] == [(0, 1, HEADS * WIDTH), *[(0, GROUPS, 6, WIDTH)] * 2]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"groups": 3}, "no multiple of groups"),
        ({"k": 1}, "one of k and v"),
        ({"scale": "x"}, "is not a number"),
        ({"mask": 1}, "one of mask and tokens"),
        ({"slots": 1}, "has slots, but no mask"),
    ],
)
def test_damaged_files_are_refused(tmp_path, changed, said) -> None:
    meaning = TokenAttention(F16 * 3, F16 * 3, HEADS, GROUPS, WIDTH, 0.25)
    library = artifact.write(tmp_path, [_row(meaning, **changed)])
    options = ort.SessionOptions()
    with pytest.raises(Exception, match=said):
        options.register_custom_ops_library(str(library))
