"""Compares an artifact with the outputs that PyTorch gave when a recipe exported the model.

    python check.py FOLDER               runs FOLDER/artifact here, with plain ONNX Runtime and the library
    python check.py FOLDER HOST:PORT     asks a server of Triton's protocol: examples/fastapi, or Triton itself

FOLDER has inputs.npz and expected.npz, which each recipe writes. Exit code 1 where an output differs by more than
`--tolerance` times the largest value of that output (default 0.001). `--rows-by OUTPUT` is for detections, which may
come in another order: rows of all outputs are sorted by the integers of this one, which then have to be equal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort

Tensors = Mapping[str, np.ndarray]


def here(artifact: Path, inputs: Tensors) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(artifact / "lib" / "libonnxopt_ops.so"))
    usable = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in ort.get_available_providers()]
    ort.set_default_logger_severity(4)  # where CUDA does not start, the next line says so
    session = ort.InferenceSession(artifact / "model.onnx", options, providers=usable)
    print(f"runs on {session.get_providers()[0]}")
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def on_a_server(address: str, model: str, inputs: Tensors) -> dict[str, np.ndarray]:
    import tritonclient.http as triton
    from tritonclient.utils import np_to_triton_dtype

    tensors = []
    for name, array in inputs.items():
        tensors.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    with triton.InferenceServerClient(address) as client:
        outputs = [output["name"] for output in client.get_model_metadata(model)["outputs"]]
        result = client.infer(model, tensors)
        return {name: result.as_numpy(name) for name in outputs}


def in_order(outputs: Tensors, key: str) -> dict[str, np.ndarray]:
    """All outputs [n, ...] with their rows sorted by those of `key` [n, k]."""
    order = np.lexsort(outputs[key].T[::-1])
    return {name: array[order] for name, array in outputs.items()}


def report(outputs: Tensors, expected: Tensors, tolerance: float) -> bool:
    """Print a line an output. Whether all agree."""
    agree = True
    for name, wanted in expected.items():
        got = outputs[name]
        if got.shape != wanted.shape:
            print(f"{name}: {list(got.shape)}, PyTorch gave {list(wanted.shape)}")
            agree = False
            continue
        difference = float(np.max(np.abs(got.astype(np.float64) - wanted), initial=0.0))
        limit = tolerance * float(np.max(np.abs(wanted), initial=0.0)) if wanted.dtype.kind == "f" else 0.0
        agree &= difference <= limit  # also False of NaN
        print(f"{name} {list(got.shape)}: max difference from PyTorch {difference:.2g} (limit {limit:.2g})")
    return agree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("address", nargs="?", help="HOST:PORT of a server")
    parser.add_argument("--model", default="model", help="its name on the server")
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--rows-by", metavar="OUTPUT")
    arguments = parser.parse_args()
    needed = [arguments.folder / name for name in ("inputs.npz", "expected.npz")]
    needed += [] if arguments.address else [arguments.folder / "artifact" / "model.onnx"]
    if missing := [str(path) for path in needed if not path.is_file()]:
        parser.error(f"{', '.join(missing)}: no such file; run the recipe and `onnxopt optimize` first")
    inputs, expected = (dict(np.load(path)) for path in needed[:2])
    if arguments.address:
        outputs = on_a_server(arguments.address, arguments.model, inputs)
    else:
        outputs = here(arguments.folder / "artifact", inputs)
    if arguments.rows_by:
        outputs, expected = in_order(outputs, arguments.rows_by), in_order(expected, arguments.rows_by)
    return 0 if report(outputs, expected, arguments.tolerance) else 1


if __name__ == "__main__":
    sys.exit(main())
