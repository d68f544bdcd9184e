"""Attention to caches of 8-bit codes: which graphs become a kernel, and loops of tokens beside ONNX Runtime's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto

from cases.models import fuse, outline
from onnxopt.fusion.region import FusionPlan
from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.kinds.attention.kind import ATTENTION
from onnxopt.pipeline import flow
from onnxopt.program.attention import CacheCodes, TokenAttention
from onnxopt.tools.explain import describe
from tests.support.attention.coded_caches import GROUPS, STORED, WIDTH, Cache, drawn, operator, run, spelled_out
from tests.support.emulation import emulated_library
from tests.support.fusing import compile_nothing
from tests.support.wrong_bodies import with_wrong_bodies

STEPS = 6


def planned(cache: Cache, folder: Path) -> tuple[ir.Model, FusionPlan]:
    model = ir.serde.deserialize_model(spelled_out(cache))
    normalize(model)
    rewrite(model, folder)
    return model, fuse(model)


@pytest.mark.parametrize(
    "cache",
    [
        Cache(), Cache(heads=GROUPS), Cache(per="head"), Cache(per="element", mask=True), Cache(tokens=3, mask=True),
        Cache("float8e4m3fn", wide=True, numbers=True), Cache(dtype=TensorProto.BFLOAT16, wide=True, per="head"),
        Cache(slots=True, mask=True, tokens=2, per="head"), Cache("int8", numbers=True, per="element"),
    ],
    ids=repr,
)  # fmt: skip
def test_spelled_out_attention_becomes_a_kernel(cache: Cache, tmp_path: Path) -> None:
    model, plan = planned(cache, tmp_path)
    (region,) = plan.regions
    assert region.kind is ATTENTION
    meaning = region.meaning
    assert isinstance(meaning, TokenAttention) and meaning.codes is not None
    meaning.verify()
    assert (meaning.codes.k_per, meaning.codes.by_reciprocal) == (cache.per, False)
    assert meaning.inputs[meaning.past_k] == cache.codes and (meaning.mask is not None) == cache.mask
    (kernel,) = outline(model, plan)
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(kernel.ops)


@pytest.mark.parametrize(
    "cache", [Cache(zero=3), Cache("uint8"), Cache(tokens=2)], ids=["zero point", "dtype", "several without a mask"]
)
def test_others_stay(cache: Cache, tmp_path: Path) -> None:
    _, plan = planned(cache, tmp_path)
    assert not any(region.kind is ATTENTION for region in plan.regions)


def test_scales_of_both_sides_must_be_equal(tmp_path: Path) -> None:
    proto = spelled_out(Cache())
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float16(0.05), "other"))
    (node,) = (n for n in proto.graph.node if n.output[0] == "k.codes")
    node.input[1] = "other"
    model = ir.serde.deserialize_model(proto)
    normalize(model)
    rewrite(model, tmp_path)
    assert not any(region.kind is ATTENTION for region in fuse(model).regions)


@pytest.mark.parametrize("codes", ["int8", "float8e4m3fn"])
def test_the_operator_becomes_a_kernel(codes: str) -> None:
    model = ir.serde.deserialize_model(operator(codes=codes))
    (region,) = fuse(model).regions
    assert region.meaning.codes == CacheCodes(5, 6, "channel", "channel", by_reciprocal=True)
    assert [v.name for v in region.inputs] == ["q", "k", "v", "pk", "pv", "sk", "sv"]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"codes": "uint8"}, "The kernel reads caches of int8 and float8e4m3fn"),
        ({"kv_cache_bit_width": 4}, "kv_cache_bit_width = 4"),
        ({"v_quant_type": "NONE"}, "does not say how both keys and values are quantized"),
    ],
)
def test_the_reason_against_other_operators(changed: dict[str, object], reason: str) -> None:
    plan = fuse(ir.serde.deserialize_model(operator(**changed)))
    assert not any(region.kind is ATTENTION for region in plan.regions)
    assert any(reason in refusal.reason for refusal in plan.refusals)


def _is_what_onnx_runtime_does(
    folder: Path, model: ir.Model, plan: FusionPlan, feeds: list[dict[str, np.ndarray]], expected: list
) -> None:
    """Of device code that g++ compiled, launched by the library: attention closely, codes to the bit."""
    (kernel,) = outline(model, plan)
    assert kernel.kind is ATTENTION
    optimized = with_wrong_bodies(ir.serde.serialize_model(model))
    results, _ = emulated_library.run(folder / "run", optimized, [kernel], feeds)
    for found, (y, *caches) in zip(results, expected, strict=True):
        for name, cache in zip(("nk", "nv"), caches, strict=True):
            np.testing.assert_array_equal(found[name].view(np.uint8), cache.view(np.uint8))
        np.testing.assert_allclose(found["y"].astype(np.float32), y.astype(np.float32), atol=6e-3)


def _looped(
    model: onnx.ModelProto, cache: Cache, past: int, more: Callable[[np.random.Generator, int], dict[str, np.ndarray]]
) -> tuple[list[dict[str, np.ndarray]], list[list[np.ndarray]]]:
    """What ONNX Runtime's own operators read and give in a loop of tokens. past: tokens before it.

    more: other inputs of each step, for so many tokens in the cache.
    """
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    rng, batch, held = np.random.default_rng(3), 2, 9 if cache.slots else past
    caches = list(rng.integers(-60, 60, (2, batch, GROUPS, held, WIDTH)).astype(STORED[cache.codes]))
    feeds, outputs = [], []
    for _ in range(STEPS):
        feeds.append(drawn(rng, cache, batch) | dict(zip(("pk", "pv"), caches, strict=True)) | more(rng, held))
        outputs.append(run(theirs, feeds[-1], cache.codes))
        caches = [x.view(STORED[cache.codes]) for x in outputs[-1][1:]]
        held += 0 if cache.slots else cache.tokens
    assert np.unique(caches[0].view(np.uint8)).size > 50
    return feeds, outputs


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "cache",
    [
        Cache(), Cache(per="element", numbers=True), Cache(per="head", tokens=3, mask=True, wide=True),
        Cache(slots=True, mask=True, tokens=2, per="head"),
        Cache("float8e4m3fn", wide=True, numbers=True, per="head"),
    ],
    ids=repr,
)  # fmt: skip
def test_loops_of_tokens(cache: Cache, tmp_path: Path) -> None:

    def more(rng: np.random.Generator, held: int) -> dict[str, np.ndarray]:
        keys, found = held if cache.slots else held + cache.tokens, {}
        if cache.mask:
            seen = np.arange(keys) <= np.arange(keys - cache.tokens, keys)[:, None]
            found["mask"] = np.broadcast_to(np.where(seen, 0, -1e4), (2, 1, cache.tokens, keys)).astype(np.float16)
        if cache.slots:
            found["slots"] = rng.permutation(held)[: cache.tokens, None]
        return found

    feeds, expected = _looped(spelled_out(cache), cache, 0, more)
    _is_what_onnx_runtime_does(tmp_path, *planned(cache, tmp_path), feeds, expected)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("per", ["PER_TENSOR", "PER_CHANNEL"])
def test_loops_of_the_operator(per: str, tmp_path: Path) -> None:
    """ONNX Runtime multiplies new tokens by the reciprocal of the scale, which decides at halves."""
    shape = (1,) if per == "PER_TENSOR" else (1, GROUPS, 1, WIDTH)
    scales = [np.random.default_rng(4).uniform(0.02, 0.04, shape).astype(np.float32) for _ in "kv"]

    def more(rng: np.random.Generator, held: int) -> dict[str, np.ndarray]:
        halves = rng.integers(-90, 90, (2, 1, GROUPS, WIDTH)) + 0.5
        keys = (halves * scales[0].reshape(-1, WIDTH if per == "PER_CHANNEL" else 1)).astype(np.float16)
        return {"k": keys.reshape(2, 1, GROUPS * WIDTH), **dict(zip(("sk", "sv"), scales, strict=True))}

    feeds, expected = _looped(operator(k_quant_type=per), Cache(), 3, more)
    model = ir.serde.deserialize_model(operator(k_quant_type=per))
    _is_what_onnx_runtime_does(tmp_path, model, fuse(model), feeds, expected)


def test_explain_says_how_the_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_nothing(monkeypatch)
    onnx.save(spelled_out(Cache("float8e4m3fn", wide=True, numbers=True, per="head")), tmp_path / "model.onnx")
    made = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=("sm_90",), verify=False)
    assert "reads the cache as float8e4m3fn codes" in describe(made.manifest, kernels=True)
