"""Several tokens' attention behind a cache, under a mask: which nodes become a kernel, and what is launched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from cases.attention import GROUPS, HALF, WIDTH, feeds, graph
from cases.models import fuse, outline
from onnxopt.codegen import generate
from onnxopt.kinds.attention.kind import ATTENTION
from onnxopt.pipeline import flow
from onnxopt.verification.executed import EMULATED
from tests.support.emulation import emulated_library
from tests.support.fakes import idle_gpu
from tests.support.wrong_bodies import with_wrong_bodies


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize(("batch", "past"), [("batch", "past"), (2, 1200)])
def test_it_becomes_a_kernel_that_keeps_its_cache(batch: int | str, past: int | str, each: int, slots: bool) -> None:
    model = ir.serde.deserialize_model(graph(batch, 3, past, each=each, slots=slots))
    plan = fuse(model)
    (region,) = plan.regions
    assert region.kind is ATTENTION
    assert [v.name for v in region.inputs] == ["q", "k", "v", "pk", "pv", "mask", *(["slots"] if slots else [])]
    assert [v.name for v in region.outputs] == ["y", "nk", "nv"]
    region.meaning.verify()
    (kernel,) = outline(model, plan)
    assert [n.op_type for n in model.graph] == [kernel.name]
    text = generate.generate([kernel])
    assert f"attend_masked<float16, {WIDTH}, {3 * each}, " in text
    assert '#include "attention/masked_attention.cuh"' in text


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"tokens": 17}, "The number of new tokens is not known to be 16 or less"),
        ({"tokens": "tokens"}, "The number of new tokens is not known to be 16 or less"),
        ({"past": 60}, "The kernel of attention to few keys is faster for 63 of them"),
        ({"dtype": TensorProto.FLOAT}, "ONNX Runtime's kernel is faster"),
        ({"mask": ("other", 1, 3)}, "The mask `mask` is not known to broadcast to the scores"),
        ({"read": "ku"}, "`ku` inside the attention is read elsewhere too"),
        ({"unidirectional": 1}, "MultiHeadAttention has attributes or outputs that the kernel does not support"),
        ({"outputs": False}, "The keys and values after the cache are not read again"),
        ({"each": 32}, "64 query heads share 2 key heads; the kernel supports up to 16 query heads per key head"),
    ],
)
def test_others_stay(changed: dict, reason: str) -> None:
    plan = fuse(ir.serde.deserialize_model(graph(**changed)))
    assert not any(region.kind is ATTENTION for region in plan.regions)
    assert any(reason in refusal.reason for refusal in plan.refusals)


def test_a_mask_that_follows_from_the_cache_keeps_the_nodes_apart() -> None:
    """One kernel would wait for its own result."""
    proto = graph()
    proto.graph.node.insert(6, helper.make_node("Shape", ["nk"], ["size"], start=2, end=3))
    proto.graph.node.insert(7, helper.make_node("Expand", ["mask", "size"], ["wide"]))
    proto.graph.node[-1].input[5] = "wide"
    proto.graph.value_info.append(helper.make_tensor_value_info("wide", HALF, ["batch", 1, 3, "past + 3"]))
    ir_model = ir.serde.deserialize_model(proto)
    plan = fuse(ir_model)
    assert not any(region.kind is ATTENTION for region in plan.regions)
    assert any("depend on what is written to the cache" in refusal.reason for refusal in plan.refusals)


def test_a_cache_that_two_attentions_read_is_written_once() -> None:
    proto = graph(each=1)
    again = onnx.NodeProto()
    again.CopyFrom(proto.graph.node[-1])
    again.output[0], again.name = "z", "again"
    proto.graph.node.append(again)
    proto.graph.output.append(helper.make_tensor_value_info("z", HALF, None))
    plan = fuse(ir.serde.deserialize_model(proto))
    assert [region.kind for region in plan.regions].count(ATTENTION) == 1
    assert any("Another attention reads the same cache" in refusal.reason for refusal in plan.refusals)


@pytest.mark.parametrize("whole", [True, False])
def test_the_body_of_an_if(whole: bool) -> None:
    """What a branch computes by itself becomes a kernel; a cache that is written in front of it does not."""
    proto = graph()
    nodes, names = list(proto.graph.node), {"y": "q", "nk": "pk", "nv": "pv"} if whole else {"y": "q"}

    def half(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, HALF, None)

    body = helper.make_graph(nodes if whole else nodes[-1:], "then", [], list(map(half, names)))
    others = [helper.make_node("Identity", [given], [f"{name}_other"]) for name, given in names.items()]
    other = helper.make_graph(others, "else", [], [half(f"{name}_other") for name in names])
    results = [f"{name}_out" for name in names]
    del proto.graph.node[:]
    proto.graph.node.extend([] if whole else nodes[:-1])
    proto.graph.node.append(helper.make_node("If", ["which"], results, then_branch=body, else_branch=other))
    proto.graph.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    kept = [] if whole else [half("nk"), half("nv")]
    del proto.graph.output[:]
    proto.graph.output.extend([*map(half, results), *kept])
    plan = fuse(ir.serde.deserialize_model(proto))
    assert [region.kind for region in plan.regions].count(ATTENTION) == int(whole)
    assert whole or any("outside of the branch or loop" in refusal.reason for refusal in plan.refusals)


@pytest.mark.parametrize(
    "changed", [{"axis": 1}, {"perm": [0, 1, 2, 3]}, {"unsqueeze": [2]}, {"expand": [1, 1, 1, 1, 2]}]
)
def test_what_only_looks_like_a_cache_stays(changed: dict) -> None:
    plan = fuse(ir.serde.deserialize_model(graph(**changed)))
    assert not any(region.kind is ATTENTION for region in plan.regions)


def _is_what_the_nodes_do(
    folder: Path, proto: onnx.ModelProto, usual: dict[str, int], feeds: list[dict[str, np.ndarray]]
) -> None:
    """Of device code that g++ compiled, launched by the library."""
    model = ir.serde.deserialize_model(proto)
    (kernel,) = outline(model, fuse(model, usual=usual))
    assert kernel.kind is ATTENTION
    optimized = with_wrong_bodies(ir.serde.serialize_model(model))
    results, _ = emulated_library.run(folder / "run", optimized, [kernel], feeds)
    original = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for given, found in zip(feeds, results, strict=True):
        y, *caches = original.run(None, given)
        for name, cache in zip(("nk", "nv"), caches, strict=True):
            np.testing.assert_array_equal(found[name], cache)
        np.testing.assert_allclose(found["y"].astype(np.float32), y.astype(np.float32), atol=4e-3)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("tokens", "each", "mask", "slots"),
    [
        (16, 4, (1, 1, 16), False), (1, 8, ("batch", 8 * GROUPS, 1), False), (5, 1, (1, GROUPS, 5), False),
        (3, 2, ("batch", 1, 3), True),
    ],
)  # fmt: skip
def test_the_kernel_computes_what_the_nodes_do(
    tokens: int, each: int, mask: tuple, slots: bool, tmp_path: Path
) -> None:
    rng, given = np.random.default_rng(tokens), []
    for batch, past in ((2, 7), (1, 3 if slots else 0), (3, 40)):
        dims = tuple(batch if d == "batch" else d for d in mask)
        given.append(feeds(rng, batch, tokens, past, each, dims, slots))
    _is_what_the_nodes_do(tmp_path, graph(tokens=tokens, each=each, mask=mask, slots=slots), {}, given)


@pytest.mark.usefixtures("library")
def test_a_mask_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = ir.serde.deserialize_model(graph(tokens=3, each=2))
    kernels = outline(model, fuse(model))
    given = feeds(np.random.default_rng(0), 2, 3, 7, 2, (2, 1, 3), False)
    short = given | {"mask": given["mask"][..., :-1]}
    proto = ir.serde.serialize_model(model)
    del proto.graph.input[-1].type.tensor_type.shape.dim[:]
    proto.graph.input[-1].type.tensor_type.ClearField("shape")
    whole, said = idle_gpu.calls(tmp_path / "run", proto, idle_gpu.document(kernels), [given, short])
    assert whole == {"y": (2, 3, 4 * WIDTH), **dict.fromkeys(("nk", "nv"), (2, GROUPS, 10, WIDTH))}
    assert "do not fit together" in said


def test_any_number_of_new_tokens_where_few_are_usual() -> None:
    for usual, reason in (({"tokens": 17}, "is not known to be 16"), ({}, "`--shape` can say so")):
        plan = fuse(ir.serde.deserialize_model(graph(tokens="tokens")), usual=usual)
        assert not any(region.kind is ATTENTION for region in plan.regions)
        assert any(reason in refusal.reason for refusal in plan.refusals)
    (region,) = fuse(ir.serde.deserialize_model(graph(tokens="tokens")), usual={"tokens": 1}).regions
    assert region.kind is ATTENTION and region.meaning.tokens == 0
    assert region.meaning.to_json()["rows"] == 4  # of two tokens, as two heads share keys
    plan = fuse(ir.serde.deserialize_model(graph(tokens="tokens", slots=True)), usual={"tokens": 1})
    assert any("in a cache with room is not known" in refusal.reason for refusal in plan.refusals)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("each", "shared"), [(2, False), (1, True)])
def test_the_kernel_takes_any_number_of_new_tokens(each: int, shared: bool, tmp_path: Path) -> None:
    proto = graph(tokens="tokens", each=each, mask=(1 if shared else "batch", 1, "tokens"))
    rng, given = np.random.default_rng(each), []
    for batch, tokens, past in ((1, 1, 40), (2, 7, 3), (1, 33, 0), (3, 16, 12)):
        given.append(feeds(rng, batch, tokens, past, each, (1 if shared else batch, 1, tokens), False))
    _is_what_the_nodes_do(tmp_path, proto, {"tokens": 1}, given)


@pytest.mark.usefixtures("library")
def test_it_passes_its_emulation(tmp_path: Path) -> None:
    onnx.save(graph(tokens=5, each=4, slots=True), tmp_path / "model.onnx")
    made = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=("sm_90",), emulate=True)
    found = made.manifest.verify
    assert found.status == "passed" and not made.manifest.left_out
    assert [run.kernels for run in found.executed if run.provider == EMULATED] == [(made.manifest.kernels[0].name,)]
