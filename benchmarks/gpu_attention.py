"""Rewriting alone on the GPU: original and rewritten graphs beside each other, without kernels of the library.

    python3 -m benchmarks.gpu_attention OUT.json [MODEL ...]     on the GPU machine; needs .gpu/ and the onnxopt package

Rewriting runs there too, so nothing but code travels. Each output is compared with the original's and with a run of the
model widened to float32 (TF32 off) before anything is timed; then milliseconds in a CUDA graph and the kernels without.
"""

from __future__ import annotations

import gc
import json
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from benchmarks import skeletons
from onnxopt import loading, normalize, rewrite, saving

MODELS = ("bert", "vit", "whisperenc", "llama")
FORMS: dict[str, dict[str, Any]] = {
    "rewritten": {},
    "three products": {"leave_out": ("merge",)},
    "gate and up as one": {"gates": True},
}


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 wherever it had float16."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    constants = list(wide.graph.initializer)
    for nodes in (wide.graph.node, *(function.node for function in wide.functions)):
        for node in nodes:
            for attribute in node.attribute:
                if attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
                    attribute.i = TensorProto.FLOAT
                if attribute.HasField("t"):
                    constants.append(attribute.t)
    for tensor in constants:
        if tensor.data_type == TensorProto.FLOAT16:
            array = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    del wide.graph.value_info[:]
    return wide


def measure(path: pathlib.Path, x: np.ndarray, expected: dict[str, np.ndarray]) -> dict[str, Any]:
    """Distances to the expected outputs, then milliseconds, launches and kernels."""
    harness = skeletons.harness()
    session = harness.session(str(path))
    feeds = {session.get_inputs()[0].name: x}
    found = session.run(None, feeds)[0].astype(np.float64)
    row: dict[str, Any] = {k: float(np.sqrt(np.square(found - v).mean())) for k, v in expected.items()}
    kernels = harness.kernels(harness.Bound(session, feeds))
    row |= {"launches": sum(n for _, n, _ in kernels), "device_us": sum(us for *_, us in kernels)}
    row["kernels"] = [[name[:110], n, round(us, 2)] for name, n, us in kernels[:25]]
    del session
    row["ms"] = harness.milliseconds(harness.Bound(harness.session(str(path), cuda_graph=True), feeds), 40)
    gc.collect()
    return row


def forms(name: str, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """The original, its float32 form and the rewritten ones, as files."""
    source = skeletons.original(name)
    paths = {"original": folder / "original.onnx", "float32": folder / "float32.onnx"}
    wide = widened(source)
    for label, model in (("original", source), ("float32", wide)):
        onnx.save(model, paths[label], save_as_external_data=True, location=f"{label}.data", size_threshold=1024)
    normalized = normalize.normalize(loading.load(paths["original"]).model).model
    for label, options in FORMS.items():
        model, place = normalized.clone(), folder / label.replace(" ", "_")
        place.mkdir()
        done = rewrite.rewrite(model, place, **options)
        print(name, label, done.applied, [r.reason for r in done.refusals], flush=True)
        saving.save(model, place, external=True)
        paths[label] = place / saving.MODEL_FILE
    return paths


def main() -> None:
    out, *names = sys.argv[1:]
    harness, rows = skeletons.harness(), {}
    for name in names or MODELS:
        rows[name] = row = {}
        with tempfile.TemporaryDirectory() as folder:
            paths = forms(name, pathlib.Path(folder))
            x = harness.sample_input(name)
            wide = harness.session(str(paths.pop("float32")), options={"use_tf32": "0"})
            given = x.astype(np.float32) if x.dtype == np.float16 else x
            expected = {"rms_from_float32": wide.run(None, {wide.get_inputs()[0].name: given})[0].astype(np.float64)}
            del wide
            for label, path in paths.items():
                row[label] = measure(path, x, expected)
                print(
                    f"{name:12} {label:20} {row[label]['ms']:.4f} ms {row[label]['rms_from_float32']:.2e}", flush=True
                )
        pathlib.Path(out).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
