"""Transformers that nothing was tuned for: exported, optimized and timed on the GPU machine, beside ORT and torch.

    python -m benchmarks.gpu.unseen_transformers [NAME...] [--modes reduce-overhead max-autotune] [--torch NAME...]
        [--out OUT.json]

Needs torch, transformers, onnxscript and what the tests marked gpu need there (build/gpu-tests). Weights are random.
Outputs are compared with those of ONNX Runtime's CUDA provider before anything is timed; all run in CUDA graphs. Exit
code 1 where an output differs or onnxopt fails.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import gc
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import traceback
from typing import Any

import numpy as np

from benchmarks.gpu.models import compare
from benchmarks.support import skeletons
from benchmarks.support.gpu_timing import session

_RUNS, _ROUNDS = 40, 4


@dataclasses.dataclass(frozen=True)
class Model:
    """A class of transformers, what its configuration says beside the defaults, and the input.

    batch, tokens: of the input; tokens is the side of images where channels are given. padded: the input has a mask.
    dynamic: exported with dynamic batch and tokens, and run at the same sizes.
    """

    name: str
    configuration: dict[str, Any]
    batch: int
    tokens: int
    dtype: str = "float16"
    padded: bool = False
    channels: int = 0
    dynamic: bool = False


_GROUPED = {
    "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 2816, "vocab_size": 8000, "use_cache": False,
}  # fmt: skip
_LOCAL = {
    "num_hidden_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 2816, "vocab_size": 8000, "sliding_window": 256, "use_cache": False,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
}  # fmt: skip
MODELS = {
    "gpt2": Model("GPT2Model", {"use_cache": False}, 4, 256),
    "bert_padded": Model("BertModel", {}, 16, 128, padded=True),
    "bert_padded_long": Model("BertModel", {}, 8, 384, padded=True),
    "mpnet": Model("MPNetModel", {}, 16, 128, padded=True),
    "t5": Model("T5EncoderModel", {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072}, 8, 256),
    "beit": Model("BeitModel", {"use_relative_position_bias": True}, 16, 224, channels=3),
    "llama": Model("LlamaModel", _GROUPED, 1, 512),
    "llama_padded": Model("LlamaModel", _GROUPED, 4, 512, padded=True),
    "llama_bfloat16": Model("LlamaModel", _GROUPED, 1, 512, dtype="bfloat16"),
    "qwen2_bfloat16": Model("Qwen2Model", _GROUPED, 4, 256, dtype="bfloat16"),
    "modernbert": Model("ModernBertModel", {"num_hidden_layers": 12}, 4, 1024, padded=True),
    "bert_one": Model("BertModel", {}, 1, 32),
    "gemma3": Model("Gemma3TextModel", _LOCAL, 4, 1024),
    "mistral": Model("MistralModel", {**_GROUPED, "sliding_window": 256}, 4, 1024),
}
MODELS |= {  # within 5 % of the static ones; exporters give a dim that is 1 in the example no symbol everywhere
    f"{name}_dynamic": dataclasses.replace(MODELS[name], dynamic=True)
    for name in ("gpt2", "bert_padded", "t5", "llama_padded", "modernbert", "gemma3", "mistral")
}


def net_of(model: Model) -> Any:
    """The module, which returns its last hidden states in float32."""
    import torch
    import transformers

    kind = getattr(transformers, model.name)
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            configuration = kind.config_class(**model.configuration)
            configuration._attn_implementation = "sdpa" if kind._supports_sdpa else "eager"
            self.net = kind(configuration)

        def forward(self, x: Any, mask: Any = None) -> Any:
            given = {"pixel_values": x} if model.channels else {"input_ids": x}
            given |= {} if mask is None else {"attention_mask": mask}
            return self.net(**given, return_dict=True).last_hidden_state.float()

    return Net().eval().to(getattr(torch, model.dtype))


def inputs_of(model: Model) -> dict[str, np.ndarray]:
    """Seeded inputs by name; every second sequence of a padded one ends early."""
    random = np.random.default_rng(1)
    if model.channels:
        shape = (model.batch, model.channels, model.tokens, model.tokens)
        return {"x": random.standard_normal(shape, np.float32).astype(np.float16)}
    given = {"x": random.integers(0, 5000, (model.batch, model.tokens))}
    if model.padded:
        given["mask"] = np.ones_like(given["x"])
        given["mask"][::2, model.tokens * 3 // 4 :] = 0
    return given


def export(name: str, folder: pathlib.Path) -> str:
    """Export and optimize one model; "" or why that failed."""
    import torch

    import onnxopt

    try:
        model = MODELS[name]
        given = {k: torch.from_numpy(v) for k, v in inputs_of(model).items()}
        sizes = {name: {0: "batch", 1: "tokens"} for name in given} if model.dynamic else None
        with torch.no_grad():
            torch.onnx.export(
                net_of(model), tuple(given.values()), str(folder / f"{name}.onnx"), dynamo=True, opset_version=20,
                input_names=list(given), dynamic_shapes=sizes, verbose=False,
            )  # fmt: skip
        onnxopt.optimize(folder / f"{name}.onnx", folder / name, archs=("sm_90",), verify=False)
    except Exception:  # noqa: BLE001 - the other models are worth having
        return traceback.format_exc()[-600:]
    return ""


def measure(name: str, folder: pathlib.Path) -> None:
    """Write to NAME.json the milliseconds of ONNX Runtime and of onnxopt, after each, as that may end the process."""
    harness = skeletons.harness()
    options = json.loads((folder / name / "providers" / "cuda.json").read_text())["provider_options"]
    options = {k: v for k, v in options.items() if k not in ("enable_cuda_graph", "do_copy_in_default_stream")}
    forms: dict[str, tuple[pathlib.Path, str | None, dict[str, str]]] = {
        "ORT": (folder / f"{name}.onnx", None, {}),
        "onnxopt": (folder / name / "model.onnx", str(folder / name / "lib" / "libonnxopt_ops.so"), options),
    }
    row: dict[str, Any] = {}
    expected, given = None, inputs_of(MODELS[name])
    for label, (path, library, settings) in forms.items():
        row[label] = "ended the process"
        _row(name, folder).write_text(json.dumps(row))
        try:
            plain = session(str(path), library, "cuda", options=settings).run(None, given)[0]
            expected = plain if expected is None else expected
            check = compare(plain, expected)
            row |= {f"{label} agrees": check["agrees"], f"{label} cosine": round(check["cosine"], 7)}
            bound = harness.Bound(session(str(path), library, "cuda", cuda_graph=True, options=settings), given)
            for _ in range(3):
                bound()
            row[label] = round(min(harness.milliseconds(bound, _RUNS, repeats=1) for _ in range(_ROUNDS)), 4)
        except Exception as error:  # noqa: BLE001
            row[label] = f"{type(error).__name__}: {error}"[:300]
        bound = None
        gc.collect()
        _row(name, folder).write_text(json.dumps(row))


def _row(name: str, folder: pathlib.Path) -> pathlib.Path:
    return folder / f"{name}.json"


def torch_milliseconds(name: str, mode: str) -> float | str:
    """Of torch.compile in a mode; or why that failed."""
    import torch

    try:
        model = MODELS[name]
        given = [torch.from_numpy(v).cuda() for v in inputs_of(model).values()]
        with torch.inference_mode():
            run = torch.compile(net_of(model).cuda(), mode=mode, dynamic=False)
            for _ in range(4):
                run(*given)
            torch.cuda.synchronize()
            times = [skeletons.harness().milliseconds(lambda: run(*given), _RUNS, repeats=1) for _ in range(_ROUNDS)]
        return round(min(times), 4)
    except Exception:  # noqa: BLE001
        return traceback.format_exc()[-300:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--modes", nargs="*", default=["reduce-overhead", "max-autotune"])
    parser.add_argument("--torch", nargs="*", default=[], help="the names that torch compiles too; all by default")
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {name: {} for name in args.names}
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as place, concurrent.futures.ProcessPoolExecutor(8, mp_context=spawn) as pool:
        folder = pathlib.Path(place)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{place}/inductor"
        static = [name for name in args.torch or args.names if not MODELS[name].dynamic]
        compiled = [pool.submit(torch_milliseconds, name, mode) for mode in args.modes for name in static]
        exported = {name: pool.submit(export, name, folder) for name in args.names}
        failed = {name: done.result() for name, done in exported.items()}
        concurrent.futures.wait(compiled)  # for the cache alone: nothing else runs while models are timed
        for name in args.names:
            if failed[name]:
                rows[name]["failed"] = failed[name]
                continue
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as worker:
                with contextlib.suppress(concurrent.futures.BrokenExecutor):
                    worker.submit(measure, name, folder).result()
                rows[name] |= json.loads(_row(name, folder).read_text())
            print(name, rows[name], flush=True)
            _keep(args.out, rows)
        for mode in args.modes:
            for name in static:
                with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as worker:
                    rows[name][f"torch.compile {mode}"] = worker.submit(torch_milliseconds, name, mode).result()
                print(name, mode, rows[name][f"torch.compile {mode}"], flush=True)
                _keep(args.out, rows)
    wrong = [name for name, row in rows.items() if row.get("onnxopt agrees") is not True]
    print(f"{len(rows) - len(wrong)} of {len(rows)} agree" + (f"; not {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


def _keep(out: pathlib.Path | None, rows: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
