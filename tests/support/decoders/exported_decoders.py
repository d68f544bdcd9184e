"""Decoders as exporters write them, with their graphs stored in decoders/ and weights drawn from a seed.

    python -m tests.support.decoders.exported_decoders         writes those that transformers exports
    python -m tests.support.decoders.exported_decoders FILE    writes merged_t5 from optimum's decoder_model_merged.onnx

FILE: of `onnx_export_from_model(T5ForConditionalGeneration(...), folder, task="text2text-generation-with-past")` in an
environment with optimum-onnx; `T5` below holds the sizes.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

FOLDER = Path(__file__).parent
NAMES = sorted(path.name.removesuffix(".onnx.xz") for path in FOLDER.glob("*.onnx.xz"))
ROOM = 160  # tokens that a static cache has room for: more than flash_attention takes
SEVERAL = 4  # new tokens of a step that verifies drafts
T5 = {
    "vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "pad_token_id": 0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip
_LLAMA = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip
_KEPT = 1024  # bytes of a weight that is stored
_DEVIATION = 0.2  # of the weights: enough that logits of one step differ by much


def load(name: str) -> onnx.ModelProto:
    """The decoder of this name, with seeded random weights."""
    return with_weights((FOLDER / f"{name}.onnx.xz").read_bytes())


def with_weights(stored: bytes) -> onnx.ModelProto:
    """A stored model with seeded random weights."""
    model = onnx.load_from_string(lzma.decompress(stored))
    rng = np.random.default_rng(0)
    for graph in graphs_of(model.graph):
        for tensor in graph.initializer:
            if np.prod(tensor.dims) and not _stored(tensor):
                array = rng.standard_normal(tuple(tensor.dims), np.float32) * _DEVIATION
                tensor.raw_data = array.astype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).tobytes()
    return model


def graphs_of(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """A graph and the bodies inside it."""
    bodies = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [graph, *(inner for body in bodies for inner in graphs_of(body))]


def _stored(tensor: onnx.TensorProto) -> int:
    """How many bytes or elements a tensor stores."""
    fields = (tensor.raw_data, tensor.float_data, tensor.int32_data, tensor.int64_data)
    return sum(map(len, fields))


def store(name: str, model: onnx.ModelProto, folder: Path = FOLDER) -> None:
    """Write the graph without its weights, and without notes of the exporter on its own files."""
    for graph in graphs_of(model.graph):
        del graph.metadata_props[:]
        for node in graph.node:
            del node.metadata_props[:]
            node.doc_string = ""
        for value in (*graph.input, *graph.output, *graph.value_info):
            del value.metadata_props[:]
        for tensor in graph.initializer:
            floats = tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
            if floats and len(tensor.raw_data) >= _KEPT:
                tensor.ClearField("raw_data")
    del model.metadata_props[:]
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.onnx.xz").write_bytes(lzma.compress(model.SerializeToString(), preset=9))


def export(kind: str, half: bool, cache: str, **sizes: Any) -> onnx.ModelProto:
    """A model of transformers, exported by its own exporter behind a "dynamic" or "static" cache."""
    import onnx_ir as ir
    import torch
    import transformers
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**_LLAMA, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().to(torch.float16 if half else torch.float32)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.1)
    state = (2 if cache == "dynamic" else 1, _LLAMA["num_key_value_heads"], 5, sizes.get("head_dim", 16))
    inputs: dict[str, Any] = {"use_cache": True}
    if cache == "dynamic":
        held = transformers.DynamicCache(config=config)
        for layer in range(_LLAMA["num_hidden_layers"]):
            held.update(torch.randn(state, dtype=model.dtype), torch.randn(state, dtype=model.dtype), layer)
        inputs |= {"input_ids": torch.full((2, 3), 7), "attention_mask": torch.ones(2, 8, dtype=torch.int64)}
        inputs |= {"position_ids": torch.arange(5, 8)[None].repeat(2, 1), "past_key_values": held}
    else:
        held = transformers.StaticCache(config=config, max_cache_len=ROOM)
        held.early_initialization(1, state[1], state[3], model.dtype, "cpu")
        inputs |= {"input_ids": torch.full((1, 1), 7), "position_ids": torch.tensor([[5]]), "past_key_values": held}
    made = OnnxExporter().export(model, inputs, config=OnnxConfig(dynamic=cache == "dynamic"))
    return ir.to_proto(made.program)


def export_several() -> onnx.ModelProto:
    """Llama in float16 with SEVERAL new tokens behind a cache, as the draft of another model is verified."""
    import torch
    import transformers

    from models.architectures.decoders import DecodeStep

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_LLAMA, head_dim=64)).eval().half()
    names = [f"{layer}.{part}" for layer in range(_LLAMA["num_hidden_layers"]) for part in ("key", "value")]
    past = [torch.randn(1, _LLAMA["num_key_value_heads"], 5, 64).half() for _ in names]
    program = torch.onnx.export(
        DecodeStep(model), (torch.full((1, SEVERAL), 7), past), dynamo=True, opset_version=20,
        input_names=["input_ids", *(f"past_key_values.{name}" for name in names)],
        output_names=["logits", *(f"present.{name}" for name in names)],
        dynamic_shapes=({}, [{2: torch.export.Dim("past")}] * len(names)),
    )  # fmt: skip
    assert program is not None
    return program.model_proto


def main() -> None:
    if len(sys.argv) > 1:
        store("merged_t5", onnx.load(sys.argv[1]))
        return
    store("llama_dynamic", export("Llama", True, "dynamic"))
    store("qwen3_dynamic", export("Qwen3", False, "dynamic", head_dim=16))
    store("qwen3_static", export("Qwen3", True, "static", head_dim=64))
    store("llama_several", export_several())
    experts = {"num_experts_per_tok": 2}
    store("mixtral", export("Mixtral", True, "dynamic", num_local_experts=4, **experts))
    shared = {"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
    store("gpt_oss", export("GptOss", True, "dynamic", num_local_experts=4, head_dim=16, **experts))
    narrow = {"num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16}
    store("qwen3_moe", export("Qwen3Moe", True, "dynamic", **narrow, **experts))
    store("qwen2_moe", export("Qwen2Moe", False, "dynamic", **shared, **experts))


if __name__ == "__main__":
    main()
