"""Decoders as they are served: what is fused around their caches, and the tokens of whole loops, which stay the same.

The graphs are those of transformers' exporter (caches that grow, caches with room), of optimum (one If over both steps
of generation), and of onnxruntime-genai's builder (GroupQueryAttention).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto

from cases.models import fuse, outline
from onnxopt import Artifact
from onnxopt.fusion.region import FusionPlan
from onnxopt.graph import normalize, read
from onnxopt.graph.rewrite import rewrite
from onnxopt.pipeline import flow
from onnxopt.pipeline.options import Options
from tests.support import fusing
from tests.support.decoders import exported_decoders, genai_graphs
from tests.support.decoders.token_loops import choices, greedy, greedy_in_place, greedy_in_room
from tests.support.emulation import emulated_library
from tests.support.wrong_bodies import with_wrong_bodies

HALF = TensorProto.FLOAT16
GENAI: dict[str, dict[str, Any]] = {
    "genai": {"bits": 16, "dtype": HALF},
    "genai_4_bits_packed": {"dtype": HALF, "packed": True},
    "genai_rotated_outside": {"bits": 16, "rotary": "outside", "head_norms": True},
}
# Token that a prompt begins with, such that no step of the loop has two logits that are almost equal.
FIRST = {
    "llama_dynamic": 10, "qwen3_dynamic": 19, "qwen3_static": 5, "merged_t5": 26, "mixtral": 31,
    "qwen2_moe": 30, "qwen3_moe": 71, "gpt_oss": 59,
    "genai": 20, "genai_4_bits_packed": 25, "genai_rotated_outside": 11,
}  # fmt: skip


def decoder(name: str) -> onnx.ModelProto:
    return genai_graphs.genai(**GENAI[name]) if name in GENAI else exported_decoders.load(name)


def encoded(name: str) -> dict[str, np.ndarray]:
    """What the decoder of an encoder-decoder reads of its encoder in every step."""
    if name != "merged_t5":
        return {}
    states = np.random.default_rng(0).standard_normal((1, 6, 64)).astype(np.float32)
    return {"encoder_hidden_states": states, "encoder_attention_mask": np.ones((1, 6), np.int64)}


def cpu(model: bytes | str) -> ort.InferenceSession:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Callable[[str], Artifact]:
    """The artifact of a decoder, made once, beside its model.onnx."""

    @functools.cache
    def made(name: str) -> Artifact:
        folder = tmp_path_factory.mktemp(name)
        onnx.save(decoder(name), folder / "model.onnx")
        with fusing.cpu_kernels_forced():
            return flow.optimize(folder / "model.onnx", folder / "out", archs=(), verify=False)

    return made


@pytest.mark.parametrize("name", FIRST)
def test_sixteen_tokens_are_the_same(name: str, optimized: Callable[[str], Artifact]) -> None:
    made, prompt = optimized(name), [FIRST[name], 17, 29]
    assert any(kernel.cpu for kernel in made.manifest.kernels)
    expected = greedy(cpu(str(made.path.with_name("model.onnx"))), prompt, **encoded(name))
    assert len(set(expected)) >= 4
    for session in (made.session(providers=["CPUExecutionProvider"]), cpu(str(made.path / "model.onnx"))):
        assert greedy(session, prompt, **encoded(name)) == expected


@pytest.mark.usefixtures("library")
def test_sixteen_tokens_are_the_same_with_caches_of_16_bits(tmp_path: Path) -> None:
    """Both branches of a merged decoder, whose caches are inputs and outputs of float16."""
    name, prompt = "merged_t5", [FIRST["merged_t5"], 17, 29]
    onnx.save(decoder(name), tmp_path / "model.onnx")
    options = Options(archs=(), precision="float16", caches=True, verify=False)
    made = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", options)
    assert made.manifest.precision is not None and len(made.manifest.precision.caches) == 16
    expected = greedy(cpu(str(tmp_path / "model.onnx")), prompt, **encoded(name))
    for session in (made.session(providers=["CPUExecutionProvider"]), cpu(str(made.path / "model.onnx"))):
        assert {value.type for value in session.get_inputs() if value.name.startswith("past")} == {"tensor(float16)"}
        assert greedy(session, prompt, **encoded(name)) == expected


# --- loops with kernels of caches and of experts, compiled by g++ ---


def assert_the_same_with_kernels(
    name: str, kinds: Sequence[str], usual: dict[str, int], function: Callable[..., list[int]], tokens: list[int],
    folder: Path,
) -> None:  # fmt: skip
    """The library runs a kernel of each kind, in both layers, as on a GPU; ONNX Runtime the other nodes."""
    proto = decoder(name)
    expected = function(cpu(proto.SerializeToString()), tokens)
    onnx.save(proto, folder / "model.onnx")
    normalized = normalize.normalize(read.load(folder / "model.onnx").model).model
    assert not rewrite(normalized, folder, usual=usual).refusals
    kernels = [k for k in outline(normalized, fuse(normalized, usual=usual)) if k.kind.name in kinds]
    assert sorted(k.kind.name for k in kernels) == sorted(kinds) and all(len(k.sites) == 2 for k in kernels)
    optimized = with_wrong_bodies(ir.to_proto(ir.external_data.load_to_model(normalized)), [k.name for k in kernels])
    found, launched = emulated_library.used(folder / "run", optimized, kernels, function, tokens)
    assert found == expected
    assert all(any(symbol.startswith(k.name) for symbol in launched) for k in kernels)


@pytest.mark.usefixtures("library")
def test_any_number_of_new_tokens_behind_a_cache(tmp_path: Path) -> None:
    """A prompt of some tokens, then token by token, with the kernels that `--shape` asks for."""
    name, usual = "mixtral", {"s44": 1, "s70": 1}  # of input_ids
    assert_the_same_with_kernels(name, ["attention", "experts"], usual, greedy, [FIRST[name], 17, 29], tmp_path)


@pytest.mark.usefixtures("library")
def test_a_cache_with_room_in_one_buffer(tmp_path: Path) -> None:
    """The kernel then writes the new token alone."""
    name = "qwen3_static"
    assert_the_same_with_kernels(name, ["attention"], {}, greedy_in_room, [FIRST[name], 17, 29], tmp_path)


@pytest.mark.usefixtures("library")
def test_several_tokens_at_once(tmp_path: Path) -> None:
    """As drafts are verified: four tokens a step behind a cache that grows, in one kernel of each layer."""
    tokens = np.random.default_rng(49).integers(3, 128, 16).tolist()
    assert_the_same_with_kernels("llama_several", ["attention"], {}, choices, tokens, tmp_path)


@pytest.mark.parametrize("name", ["genai", "genai_4_bits_packed"])
def test_a_state_that_is_input_and_output(name: str, optimized: Callable[[str], Artifact]) -> None:
    """As genai runs its models: the library leaves the sharing of the two to ONNX Runtime's operator."""
    made, prompt = optimized(name), [FIRST[name], 17, 29]
    expected = greedy(cpu(str(made.path.with_name("model.onnx"))), prompt)
    for session in (made.session(providers=["CPUExecutionProvider"]), cpu(str(made.path / "model.onnx"))):
        assert greedy_in_place(session, prompt, room=24) == expected


@pytest.mark.usefixtures("library")
def test_generated_inputs_fit_the_cache(tmp_path: Path) -> None:
    """The mask has dims of its own, as long as the cache and the new tokens; verification has to find them."""
    onnx.save(decoder("qwen3_dynamic"), tmp_path / "model.onnx")
    made = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=())
    found = made.manifest.verify
    assert found.status == "passed" and not made.manifest.left_out
    assert len({check.case for check in found.of_models}) >= 9 and not found.skipped


# --- what is fused ---


def fused(model: onnx.ModelProto, folder: Path) -> tuple[ir.Model, FusionPlan, dict[str, int]]:
    """The rewritten model, what of it is fused for GPUs, and how often each family of rules was applied."""
    normalized = normalize.normalize(ir.from_proto(model)).model
    done = rewrite(normalized, folder)
    assert not done.refusals
    return normalized, fuse(normalized), done.applied


@pytest.mark.parametrize(
    "name", ["llama_dynamic", "qwen3_dynamic", "qwen3_static", "mixtral", "qwen2_moe", "qwen3_moe"]
)
def test_decoders_of_transformers(name: str, tmp_path: Path) -> None:
    _, plan, applied = fused(decoder(name), tmp_path)
    assert applied["attention"] == 2 and applied["rotary"] == 4
    norms = [r for r in plan.regions if r.kind.name == "rowwise" and any(n.op_type == "ReduceMean" for n in r.nodes)]
    assert len(norms) == (9 if "qwen3" in name else 5)  # q and k are normalized too
    behind_a_sum = [r for r in norms if len(r.outputs) == 2 and r.nodes[0].op_type == "Add"]
    assert len(behind_a_sum) >= 3  # the sum and its norm
    gates = [r for r in plan.regions if {"Sigmoid", "Split", "Mul"} <= {n.op_type for n in r.nodes}]
    assert len(gates) == 2
    if name == "qwen3_static":  # with heads of 64: narrow ones are faster in flash_attention
        caches = [r for r in plan.regions if r.kind.name == "attention"]
        assert [sum(n.op_type == "ScatterND" for n in r.nodes) for r in caches] == [2, 2]
    if name in ("mixtral", "qwen2_moe", "qwen3_moe"):
        mixtures = [r for r in plan.regions if r.kind.name == "experts"]
        assert [sum(n.op_type == "MatMul" for n in r.nodes) for r in mixtures] == [8, 8]  # two of each expert
        assert not [r for r in plan.refusals if "experts' products" in r.reason]


def test_experts_with_biases_and_gates_in_neighbouring_columns(tmp_path: Path) -> None:
    _, plan, _ = fused(decoder("gpt_oss"), tmp_path)
    mixtures = [r.meaning for r in plan.regions if r.kind.name == "experts"]
    assert [(len(m.biases), m.interleaved) for m in mixtures] == [(2, True)] * 2


def test_both_branches_of_a_merged_decoder(tmp_path: Path) -> None:
    model, plan, applied = fused(decoder("merged_t5"), tmp_path)
    assert applied["attention"] == 8  # to the tokens and to the encoder, in two layers of two branches
    (branching,) = (node for node in model.graph if node.op_type == "If")
    for branch in ("then_branch", "else_branch"):
        body = branching.attributes[branch].as_graph()
        inside = [r for r in plan.regions if r.nodes[0].graph is body]
        assert sum(any(n.op_type == "ReduceMean" for n in r.nodes) for r in inside) == 7
        assert any("Gelu" in {n.op_type for n in r.nodes} for r in inside)  # of the gate


@pytest.mark.parametrize("name", GENAI)
def test_decoders_of_genai(name: str, tmp_path: Path) -> None:
    model, plan, applied = fused(decoder(name), tmp_path)
    assert applied["gate"] == 2
    attentions = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    assert all((a.inputs[1] is None) == ("outside" not in name) for a in attentions)  # q, k and v from one product
    stays = [r.reason for r in plan.refusals if r.op_type == "GroupQueryAttention"]
    assert stays == ["ONNX Runtime's kernel runs it: `lengths` do not prove that the tokens fill the cache"] * 2
