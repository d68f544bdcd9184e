"""Folders of optimum: ORTModel classes and pipelines of transformers load the optimized ones, kernels included.

optimum-onnx pins an older transformers than models/ exports with, so the suite's environment has none and these skip.
In an environment of its own: pip install optimum-onnx[onnxruntime-gpu] pytest, `make build`, then
python -m pytest tests/tools/test_optimum.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import onnxopt

pytest.importorskip("optimum.onnxruntime", reason="optimum-onnx is not installed", exc_type=ImportError)
pytestmark = [pytest.mark.models, pytest.mark.slow, pytest.mark.usefixtures("library")]

TEXT = "w1 w5 w9 w12 w40"
WORDS = 99
SIZES = {"vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "max_position_embeddings": 64}


def encoder() -> tuple[Any, str]:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**SIZES, **HEADS, num_labels=3)), "text-classification"


def encoder_decoder() -> tuple[Any, str]:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": WORDS, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    tokens = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 2}
    return T5ForConditionalGeneration(T5Config(**sizes, **tokens)), "text2text-generation-with-past"


def decoder() -> tuple[Any, str]:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, num_key_value_heads=2, **tokens)), "text-generation-with-past"


def test_the_example(tmp_path: Path) -> None:
    made = onnxopt.optimize_folder(export(encoder(), tmp_path / "original"), tmp_path / "made", archs=())
    example = Path(__file__).parents[2] / "examples" / "python" / "from_optimum.py"
    command = [sys.executable, str(example), str(made.path), TEXT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "'label': 'LABEL_" in done.stdout


def export(made: tuple[Any, str], folder: Path) -> Path:
    """A folder as optimum exports it, with a tokenizer of words."""
    from optimum.exporters.onnx import onnx_export_from_model
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model, task = made
    onnx_export_from_model(model.eval(), folder, task=task)
    words = ["<pad>", "<unk>", "</s>", *(f"w{k}" for k in range(WORDS - 3))]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return folder


def used(kind: str, task: str, folder: Path, options: ort.SessionOptions) -> tuple[Any, Any]:
    """What the model says, logits or generated tokens, and what a pipeline of transformers makes of it."""
    import optimum.onnxruntime
    from transformers import AutoTokenizer, pipeline

    model = getattr(optimum.onnxruntime, kind).from_pretrained(folder, session_options=options)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = {"input_ids": tokenizer(TEXT, return_tensors="pt")["input_ids"]}
    tokens["attention_mask"] = tokens["input_ids"] * 0 + 1
    if kind == "ORTModelForSequenceClassification":
        return model(**tokens).logits.numpy(), pipeline(task, model=model, tokenizer=tokenizer)(TEXT)
    generated = model.generate(**tokens, max_new_tokens=12, do_sample=False, num_beams=2).numpy()
    keywords = {"max_new_tokens": 8, "do_sample": False}
    return generated, pipeline(task, model=model, tokenizer=tokenizer)(TEXT, **keywords)


@pytest.mark.parametrize(
    ("make", "kind", "task", "models"),
    [
        (encoder, "ORTModelForSequenceClassification", "text-classification", {"model.onnx"}),
        (
            encoder_decoder, "ORTModelForSeq2SeqLM", "text2text-generation",
            {"encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx", "decoder_model_merged.onnx"},
        ),
        (decoder, "ORTModelForCausalLM", "text-generation", {"model.onnx"}),
    ],
)  # fmt: skip
def test_optimum_uses_the_optimized_folder(
    make: Callable[[], tuple[Any, str]], kind: str, task: str, models: set[str], tmp_path: Path
) -> None:
    import torch

    torch.manual_seed(0)
    original = export(make(), tmp_path / "original")
    made = onnxopt.optimize_folder(original, tmp_path / "made", archs=())
    assert made.exit_code == 0 and {model.path for model in made.models} == models
    assert {path.name for path in made.path.iterdir()} == {*(p.name for p in original.iterdir()), "onnxopt"}
    expected, said = used(kind, task, original, ort.SessionOptions())
    with_kernels = ort.SessionOptions()
    with_kernels.register_custom_ops_library(str(made.library))
    with_kernels.enable_profiling = True
    with_kernels.profile_file_prefix = str(tmp_path / "profile")
    for options in (with_kernels, ort.SessionOptions()):
        got, answer = used(kind, task, made.path, options)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        assert [{k: v for k, v in row.items() if k != "score"} for row in answer] == [
            {k: v for k, v in row.items() if k != "score"} for row in said
        ]
    ran = {
        event["args"]["op_name"]
        for profile in tmp_path.glob("profile*")
        for event in json.loads(profile.read_text())
        if "op_name" in event.get("args", {})
    }
    manifests = [model.manifest for model in made.models if model.manifest]
    assert {kernel.name for manifest in manifests for kernel in manifest.kernels if kernel.cpu} & ran
