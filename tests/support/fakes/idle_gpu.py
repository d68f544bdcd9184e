"""Calls of the library's CUDA kernels on a GPU whose launches do nothing: what is refused, and which shapes come out.

Files, meanings and calls are read and checked as on a GPU. Of what is computed, only cuBLASLt's products and cuDNN's
convolutions are, and only where stand-ins compute them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.fusion.region import Kernel, Kind
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.verification import emulation
from tests.support.custom_ops.custom_ops_artifact import copy_library
from tests.support.emulation import emulated_library
from tests.support.fakes.custom_ops_fake_driver import fatbin
from tests.support.wrong_bodies import failing_nodes, read_by_casts

Change = Callable[[dict[str, Any]], None]
_STAND_INS = Path(__file__).parents[2] / "fuzz" / "library"
MULTIPLIES = Path(__file__).with_name("multiplying_cublaslt.cc")
CONVOLVES = Path(__file__).with_name("convolving_cudnn.cc")
_DRIVER = Path(__file__).parents[1] / "emulation" / "idle_driver.cc"
_MAJOR = 9
FATBIN = fatbin((_MAJOR * 10, False))


def document(kernels: Sequence[Kernel], change: Change | None = None) -> dict[str, Any]:
    """What kernels.json says of these kernels. change: made in place."""
    made: dict[str, Any] = json.loads(kernels_json.to_json(kernels, FATBIN))
    if change is not None:
        change(made)
    return made


def products(
    folder: Path,
    cases: Sequence[tuple[onnx.ModelProto, Sequence[Kernel], Sequence[dict[str, np.ndarray]]]],
    kinds: Sequence[Kind] = (GEMM,),
) -> list[list[dict[str, np.ndarray]]]:
    """What fused models give for feeds where stand-ins for cuBLASLt and cuDNN compute the kernels of some kinds.

    folder: a new one. The other functions are inlined. AssertionError where the library fails.
    """
    described = document(list({k.name: k for _, kernels, _ in cases for k in kernels if k.kind in kinds}.values()))
    for row in described["kernels"]:
        row["variants"] = [v for v in row["variants"] if "rows" not in v]
    found = run(folder, described, [(model, feeds) for model, _, feeds in cases], multiplies=True)
    failed = [each for results in found for each in results if isinstance(each, str)]
    assert not failed, failed
    return [[each for each in results if not isinstance(each, str)] for results in found]


def document_of(*rows: dict[str, Any]) -> dict[str, Any]:
    """A kernels.json of rows that were made by hand."""
    described = {"file": kernels_json.FATBIN, "sha256": hashlib.sha256(FATBIN).hexdigest(), "bytes": len(FATBIN)}
    return {"schema": kernels_json.SCHEMA, "fatbin": described, "kernels": list(rows)}


def calls(
    folder: Path, model: onnx.ModelProto, described: dict[str, Any], feeds: Sequence[dict[str, np.ndarray]]
) -> list[dict[str, tuple[int, ...]] | str]:
    """The shapes of a model's outputs for each of the feeds, or the text of the error. folder: a new one."""
    (found,) = run(folder, described, [(model, feeds)])
    return [each if isinstance(each, str) else {name: y.shape for name, y in each.items()} for each in found]


def run(
    folder: Path,
    described: dict[str, Any],
    jobs: Sequence[tuple[onnx.ModelProto, Sequence[dict[str, np.ndarray]]]],
    multiplies: bool = False,
) -> list[list[dict[str, np.ndarray] | str]]:
    """What models give for each of their feeds, in a session each, or the text of the error. folder: a new one.

    The bodies of the kernels' functions fail if they run. multiplies: stand-ins for cuBLASLt and cuDNN compute; else
    results are what is in memory.
    """
    library, paths = _written(folder, described), list[tuple[Path, list[dict[str, np.ndarray]]]]()
    for k, (model, feeds) in enumerate(jobs):
        paths.append((folder / f"{k}.onnx", list(feeds)))
        onnx.save(_with_failing_bodies(model, described), paths[-1][0])
    products = MULTIPLIES if multiplies else _STAND_INS / "stand_in_cublaslt.cc"
    convolutions = CONVOLVES if multiplies else _STAND_INS / "stand_in_cudnn.cc"
    stand_ins = [
        emulated_library.stand_in(_DRIVER, "libcuda.so.1", f"-I{Path(emulation.__file__).parent}"),
        emulated_library.stand_in(products, "libcublasLt.so.13"),
        emulated_library.stand_in(convolutions, "libcudnn.so.9"),
    ]
    return emulated_library.in_sessions(folder, library, paths, _MAJOR, stand_ins)


def assert_refused(folder: Path, described: dict[str, Any], message: str) -> None:
    """The library says so, and of which file, when it is registered."""
    library = _written(folder, described)
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        ort.SessionOptions().register_custom_ops_library(str(library))
    assert "kernels.json" in str(caught.value)


def _with_failing_bodies(model: onnx.ModelProto, described: dict[str, Any]) -> onnx.ModelProto:
    changed, rows = onnx.ModelProto(), {row["name"]: row for row in described["kernels"]}
    changed.CopyFrom(model)
    for function in changed.functions:
        if function.name in rows:
            outputs = dict(zip(function.output, rows[function.name]["outputs"], strict=True))
            del function.node[:]
            function.node.extend(read_by_casts(function.input))
            function.node.extend(failing_nodes(function.input[0], outputs))
    return changed


def _written(folder: Path, described: dict[str, Any]) -> Path:
    library = copy_library(folder / "lib")
    library.with_name("kernels.json").write_text(sealed_json.seal(described))
    library.with_name(kernels_json.FATBIN).write_bytes(FATBIN)
    return library
