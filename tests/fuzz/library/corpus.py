"""The corpus: kernel files of the tables of cases, with the shapes that their kernels are called with.

A file has the field "cases", which the library does not read: {kernel: [[dims of each input], ...]}. Of long lists of
entry points only some are retained. All files share one fatbin of empty images.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from cases.table import Table
from cases.tables import TABLES
from onnxopt.codegen import kernels_json, sealed_json
from tests.support.fakes import custom_ops_fake_driver

MEASURED_SCHEMA = 2  # of the files of MEASURED (custom_ops/kernel_file/measured/file.h)
MEASURED = {"launches.json": "pointwise", "gemm_algos.json": "gemm", "conv_plans.json": "convolution"}  # of which model
FATBIN = custom_ops_fake_driver.fatbin((90, False), (90, True))
_ENTRY_POINTS = 6  # retained of a kernel: the first ones, and the most general ones at the end

Dims = tuple[int, ...]

LAUNCHES = [
    {"gpu": "NVIDIA H200", "size": "840", "microseconds": 3.1, "rule_microseconds": 3.4},
    {"gpu": "NVIDIA H100", "size": "165 in rows of 33", "microseconds": 2.5, "rule_microseconds": 2.75},
]  # fmt: skip
PRODUCTS: list[dict[str, Any]] = [
    {"gpu": gpu, "cublaslt": 130100, "product": "float32 m10 n12 k8 bias residual", "algorithm": [f"{k:016x}"] * 8,
     "microseconds": 9.1, "heuristic_microseconds": 9.9}
    for k, gpu in enumerate(("NVIDIA H200", "NVIDIA H100"))
]  # fmt: skip
PRODUCTS.append(
    {
        "gpu": "NVIDIA H200",
        "cublaslt": 130100,
        "about": "float32 m1 n12 k8 bias residual",
        "algorithms": [[f"{k:016x}"] * 8 for k in range(3)],
    }
)
PRODUCTS[0]["cudnn"] = {"version": 91900, "engine": 4, "knobs": [[3, 1], [11, 64]], "algorithm_microseconds": 9.6}
PLANS = [
    {"gpu": gpu, "cudnn": 91900, "engine": 4, "knobs": [[3, 1], [11, 64]], "microseconds": 9.1,
     "convolution": "float16 x 2x9x11x16 w 24x3x3x16 y 9x11 pads 1x1x1x1 residual bias relu",
     "heuristic_microseconds": 9.9}
    for gpu in ("NVIDIA H200", "NVIDIA H100")
] + [
    {"gpu": "NVIDIA H200", "cudnn": 91900, "engine": 7, "knobs": [[3, 2]],
     "about": "float16 x 1x16x16x16 w 24x3x3x16 y 16x16 pads 1x1x1x1 residual bias relu"}
]  # fmt: skip


def _of_products(document: dict[str, Any]) -> None:
    """cuBLASLt multiplies all rows of experts."""
    for variant in document["kernels"][0]["variants"]:
        variant["least_rows"] = 0


def _of_usual_sizes(document: dict[str, Any]) -> None:
    """A block's plans are made for the sizes that it is called with."""
    (block,) = (row for row in document["kernels"] if row["kind"] == "block")
    block["usual"] = document["cases"][block["name"]]


# The model of a table, and what is changed of its file; by name.
_Source = tuple[Table, str, Callable[[dict[str, Any]], None]]
_SOURCES: dict[str, _Source] = {
    name: (table, name, _of_usual_sizes if name == "block" else lambda document: None)
    for table in TABLES
    for name in table.damaged
}
_SOURCES["experts_of_products"] = (_SOURCES["experts"][0], "experts", _of_products)
KINDS = {name: table.kind for name, (table, *_) in sorted(_SOURCES.items())}  # of every model


@functools.cache
def files(name: str) -> dict[str, bytes]:
    """The files beside a library of a model: kernels.json, the fatbin, and what was measured."""
    table, source, change = _SOURCES[name]
    document = _document(table, table.damaged[source])
    change(document)
    found = {"kernels.json": sealed_json.seal(document).encode(), "kernels.fatbin": FATBIN}
    kernel = document["kernels"][0]
    of_kernel = {"kernel": kernel["name"], "symbol": kernel["variants"][-1]["symbol"] if kernel["variants"] else ""}
    for file, entries in zip(MEASURED, ([entry | of_kernel for entry in LAUNCHES], PRODUCTS, PLANS), strict=True):
        if MEASURED[file] == name:
            found[file] = sealed_json.seal({"entries": entries, "schema": MEASURED_SCHEMA}).encode()
    return found


def originals() -> dict[str, dict[str, bytes]]:
    """The files of every model by its name."""
    return {name: files(name) for name in KINDS}


def _document(table: Table, cases: Sequence[Any]) -> dict[str, Any]:
    """kernels.json of a model, with the shapes of its kernels' inputs in each case."""
    found = table.fused(cases[0])
    document: dict[str, Any] = json.loads(kernels_json.to_json(found.kernels, FATBIN))
    shapes: dict[str, list[list[list[int]]]] = {}
    for case in cases:
        for name, of in _shapes(found.optimized, case.feeds()).items():
            shapes.setdefault(name, []).append(of)
    for kernel in document["kernels"]:
        points = kernel["variants"]
        if kernel["kind"] in ("pointwise", "gemm") and len(points) > _ENTRY_POINTS:
            kernel["variants"] = [*points[: _ENTRY_POINTS - 2], *points[-2:]]
    return {**document, "cases": shapes}


def _shapes(optimized: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, list[list[int]]]:
    """The input shapes of every fused node, from a run of the model that gives them as outputs where it must."""
    proto = onnx.ModelProto()
    proto.CopyFrom(optimized)
    nodes = [n for n in proto.graph.node if n.domain == "onnxopt"]
    wanted = {name for n in nodes for name in n.input}
    shapes = {name: array.shape for name, array in feeds.items()}
    shapes |= {t.name: tuple(t.dims) for t in proto.graph.initializer}
    if not wanted <= shapes.keys():
        outputs = {o.name for o in proto.graph.output}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(wanted - shapes.keys() - outputs))
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        shapes |= {name: np.shape(y) for name, y in zip(names, session.run(None, feeds), strict=True)}
    return {n.op_type: [list(shapes[name]) for name in n.input] for n in nodes}
