"""Runs an artifact from Python three ways and compares them: python run.py ARTIFACT [INPUT=1x3x48x320 ...].

Only `through_onnxopt` needs onnxopt installed; the other two are plain ONNX Runtime.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime as ort


def with_library(artifact: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.register_custom_ops_library(f"{artifact}/lib/libonnxopt_ops.so")
    return ort.InferenceSession(f"{artifact}/model.onnx", options, providers=["CPUExecutionProvider"])


def without_library(artifact: str) -> ort.InferenceSession:
    return ort.InferenceSession(f"{artifact}/model.onnx", providers=["CPUExecutionProvider"])


def through_onnxopt(artifact: str) -> ort.InferenceSession:
    """Checks every file's hash first, and takes the options of this machine's provider."""
    import onnxopt

    return onnxopt.load(artifact)


_NUMPY = {"tensor(double)": "float64", "tensor(float)": "float32"}


def inputs(session: ort.InferenceSession, shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Ones for integers (valid as token id, as mask and as type), seeded noise for floats; symbolic dims are 1."""
    rng = np.random.default_rng(0)
    feeds = {}
    for entry in session.get_inputs():
        shape = shapes.get(entry.name, [d if isinstance(d, int) else 1 for d in entry.shape])
        dtype = np.dtype(_NUMPY.get(entry.type, entry.type.removeprefix("tensor(").removesuffix(")")))
        values = rng.standard_normal(shape) if dtype.kind == "f" else np.ones(shape)
        feeds[entry.name] = np.asarray(values).astype(dtype)
    return feeds


def main(artifact: str, *shapes: str) -> None:
    told = {name: [int(d) for d in dims.split("x")] for name, _, dims in (s.rpartition("=") for s in shapes)}
    plain = without_library(artifact)
    feeds = inputs(plain, told)
    expected = plain.run(None, feeds)
    print(f"ONNX Runtime {ort.__version__} from Python")
    for opened in (with_library, through_onnxopt):
        results = opened(artifact).run(None, feeds)
        for output, result, reference in zip(plain.get_outputs(), results, expected, strict=True):
            difference = np.max(np.abs(np.subtract(result, reference, dtype=np.float64)), initial=0.0)
            print(f"  {opened.__name__:16} {output.name} {list(result.shape)}  max difference {difference:.3g}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: run.py ARTIFACT [INPUT=1x3x48x320 ...]")
    main(*sys.argv[1:])
