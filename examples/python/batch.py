"""Runs an artifact over a data set: python batch.py ARTIFACT INPUTS.npz OUTPUTS.npz [BATCH].

INPUTS.npz holds one array for each input, by name, with the samples along the first axis. OUTPUTS.npz gets one array
for each output. If the model's batch size is fixed, that size is used, and the last batch is padded with its last
sample. The program uses plain ONNX Runtime.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Mapping

import numpy as np
import onnxruntime as ort


def has_gpu() -> bool:
    """Whether there is a GPU with a driver. ONNX Runtime for GPUs offers CUDA without one, and logs errors then."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False


def session_of(artifact: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.register_custom_ops_library(f"{artifact}/lib/libonnxopt_ops.so")
    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"] if has_gpu() else ["CPUExecutionProvider"]
    usable = [p for p in wanted if p in ort.get_available_providers()]
    return ort.InferenceSession(f"{artifact}/model.onnx", options, providers=usable)


def run_all(session: ort.InferenceSession, data: Mapping[str, np.ndarray], batch: int) -> dict[str, np.ndarray]:
    """Every output for all samples. ValueError where the data is not what the model takes."""
    inputs, outputs = session.get_inputs(), [o.name for o in session.get_outputs()]
    if missing := [i.name for i in inputs if i.name not in data]:
        raise ValueError(f"the data lacks {', '.join(missing)}; it has {', '.join(data)}")
    counts = {i.name: len(data[i.name]) for i in inputs}
    if len(set(counts.values())) != 1:
        raise ValueError(f"inputs differ in how many samples they have: {counts}")
    fixed = inputs[0].shape[0] if isinstance(inputs[0].shape[0], int) else None
    total, batch = next(iter(counts.values())), fixed or batch
    parts = []
    for start in range(0, total, batch):
        feeds = {i.name: data[i.name][start : start + batch] for i in inputs}
        count = len(next(iter(feeds.values())))
        if fixed:
            feeds = {n: np.concatenate([a, np.repeat(a[-1:], batch - count, axis=0)]) for n, a in feeds.items()}
        parts.append([result[:count] for result in session.run(None, feeds)])
    return {name: np.concatenate(results) for name, results in zip(outputs, zip(*parts, strict=True), strict=True)}


def main(artifact: str, source: str, target: str, batch: str = "32") -> None:
    session = session_of(artifact)
    with np.load(source) as data:
        started = time.perf_counter()
        results = run_all(session, data, int(batch))
    seconds = time.perf_counter() - started
    np.savez(target, **results)
    count = len(next(iter(results.values())))
    print(f"{count} samples in {seconds:.2f} s, {count / seconds:.1f} a second, on {session.get_providers()[0]}")


if __name__ == "__main__":
    if len(sys.argv) not in (4, 5):
        sys.exit("usage: batch.py ARTIFACT INPUTS.npz OUTPUTS.npz [BATCH]")
    try:
        main(*sys.argv[1:])
    except ValueError as error:
        sys.exit(f"error: {error}")
