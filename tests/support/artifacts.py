"""Artifacts for tests of what happens to one after it was made."""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

import onnxopt
from onnxopt.artifact import minisign
from onnxopt.codegen import sealed_json
from onnxopt.runtime import providers
from onnxopt.tools.tuning import recording
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE, write

# A batched chain: dim 0 of every input and output is the batch, which Triton can put requests together along.
BATCHED = """
< ir_version: 9, opset_import: ["": 20] >
batched (float[batch, 16] x, float[batch, 16] y) => (float[batch, 16] z) <float[16] bias = {BIAS}>
{
    a = Add(x, bias)
    b = Tanh(a)
    c = Mul(b, y)
    z = Sub(c, a)
}
""".replace("BIAS", ", ".join(["0.5"] * 16))


@functools.cache
def _made(text: str, archs: tuple[str, ...]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="onnxopt.artifacts."))
    return onnxopt.optimize(write(folder / "chain.onnx", text), folder / "artifact", archs=archs).path


def make(output: Path, text: str = CHAIN, archs: tuple[str, ...] = ()) -> Path:
    """A copy, at `output`, of an artifact of the model."""
    return Path(shutil.copytree(_made(text, archs), output))


def with_weights(output: Path) -> np.ndarray:
    """Make, at `output`, an artifact of y = x @ w whose weight lies in model.onnx.data; returns w, 64 x 64."""
    model = onnx.load(write(output.with_suffix(".onnx"), NOTHING_TO_FUSE.replace("4", "64")))
    weight = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    del model.graph.input[1]
    onnx.save(model, output.with_suffix(".onnx"))
    onnxopt.optimize(output.with_suffix(".onnx"), output, external_data=True)
    return weight


def full(output: Path) -> Path:
    """Make, at `output`, an artifact with everything that one can have: weights beside both graphs, code for a GPU with
    entry points to choose from, files for TensorRT, the report, and what tune measured on two GPUs; signed.
    """
    text = CHAIN.replace("8]", "64]").replace("float[64, 64] weight", "float[64, 64] unused")
    model = onnx.load(write(output.with_suffix(".onnx"), text))
    weight = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "weight"))
    del model.graph.input[2]
    onnx.save(model, output.with_suffix(".onnx"))
    onnxopt.optimize(
        output.with_suffix(".onnx"), output, archs=["sm_90"], external_data=True, portable=True, launch_choices=True
    )
    beside: dict[str, str | None] = {
        name: sealed_json.seal({"schema": 2, "entries": []}) for name in ("gemm_algos.json", "launches.json")
    }
    recording.record(output, "h200", providers.read(output, "h200"), beside, minisign.generate_key())
    return output


def with_digest(document: dict[str, Any]) -> bytes:
    """A manifest.json with this content and the digest that belongs to it: edited by someone who knows how."""
    text = json.dumps(document | {"sha256": "0" * 64}, indent=2) + "\n"
    before, _, after = text.rpartition("0" * 64)
    return f"{before}{hashlib.sha256(text.encode()).hexdigest()}{after}".encode()


def edit_manifest(artifact: Path, **changes: object) -> None:
    path = artifact / "manifest.json"
    document = json.loads(path.read_text())
    document.pop("sha256")
    path.write_bytes(with_digest({**document, **changes}))
