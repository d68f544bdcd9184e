"""Other ways to share a row among threads, for kernels.rows --sweep. launch_shapes.py rests on the results."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import onnx

from benchmarks.cases.rows import RowCase
from onnxopt.kinds.rowwise import entry_points, launch_shapes
from onnxopt.kinds.rowwise.launch_shapes import RowShape, vectors_of

_SMALL = 10_000_000  # bytes moved, below which blocks of other sizes are tried too
_WASTE = 1.5  # lanes over those that have work
_MAX_OF_FEW_LANES = 32  # elements a thread, of rows that less than 128 threads share
_MAX_HELD = 80  # and of any others
_MIN_STAYING = 1024  # columns of rows that blocks which stay for row after row are tried for
_MAX_STAYING = 32  # vectors a thread
_MIN_AHEAD = 24 << 10  # bytes that a multiprocessor has room for in the shared memory of its blocks
_THREADS = (512, 1024)  # of a multiprocessor, least and most
_REGISTERS = 65536  # of a multiprocessor
_FLAT = {"residual_layernorm": 2, "residual_rmsnorm": 2}  # inputs as large as the domain, where not 1
_SAME = {"layernorm": 2, "residual_layernorm": 2, "rmsnorm": 1, "residual_rmsnorm": 1, "masked_softmax": 1}  # K


def shapes(case: RowCase, widest: int, size: int) -> Iterator[tuple[str, RowShape]]:
    """Labelled shapes to try. widest: elements of the longest vector; size: bytes of an element."""
    found: list[RowShape] = []
    if case.kind == "softmax_channels":
        found = list(_strided(case.length, widest))
    else:
        narrower = [v for v in (widest, widest // 2, widest // 4, 1) if v and case.length % v == 0]
        sizes = (64, 128, 256) if case.bytes() < _SMALL else (128, 256, 512)
        found += _held("held", case.length, narrower[0], sizes)
        if case.length % widest:
            found += _held("ragged", case.length, widest, sizes)
        elif case.length >= _MIN_STAYING:
            inputs = _FLAT.get(case.kind, 1), _SAME.get(case.kind, 0) if case.mask is None else 0
            found += _staying(case.length, widest, size, inputs)
    if case.length > 400_000:
        found += [RowShape("split", widest, u, t, t) for t in (256, 512, 1024) for u in (2, 4, 8)]
    for shape in dict.fromkeys(found):
        yield label(shape), shape


def label(shape: RowShape) -> str:
    text = f"{shape.layout[0]}{shape.vector}l{shape.lanes}u{shape.unroll}t{shape.threads}"
    return (
        text
        + (f"c{shape.cluster}" if shape.cluster > 1 else "")
        + (f"r{shape.resident}" if shape.resident else "")
        + (f"d{shape.depth}" if shape.depth else "")
        + ("" if shape.keeps else "x")
    )


def _held(layout: str, length: int, vector: int, sizes: tuple[int, ...]) -> Iterator[RowShape]:
    vectors = vectors_of(layout, length, vector)
    for lanes in (1 << k for k in range(11)):
        unroll = -(-vectors // lanes)
        most = _MAX_OF_FEW_LANES if lanes < 128 else _MAX_HELD
        if unroll * vector > most or lanes * unroll > max(_WASTE * vectors, vectors + 5) or lanes * vector < 8:
            continue
        for threads in sorted({max(n, lanes) for n in sizes}):
            yield RowShape(layout, vector, unroll, lanes, threads)
        if lanes >= 256 and unroll * vector >= 32:
            for resident in (2, 3):
                yield RowShape(layout, vector, unroll, lanes, lanes, 1, resident)


def _staying(length: int, vector: int, size: int, inputs: tuple[int, int]) -> Iterator[RowShape]:
    """Piped and ring rows. inputs: how many are as large as the domain, and how many are the same for every row."""
    vectors = length // vector
    clusters = (1,) if length < 8192 else (1, 2, 4) if length < 65536 else (8, 16)
    for cluster, threads, resident, depth in itertools.product(clusters, (256, 512, 1024), (1, 2, 3, 4), (0, 1, 2)):
        lanes = threads * cluster
        unroll = -(-vectors // lanes)
        if lanes * unroll > _WASTE * vectors or unroll > _MAX_STAYING or not _fits(threads * resident, _THREADS):
            continue
        one = unroll * vector * threads * size  # bytes of one input's row in a block
        room = launch_shapes.shared_bytes(resident) - one * max(depth, 1) * inputs[0]
        held = depth > 0 or unroll * vector * size // 4 + 28 <= _REGISTERS // (threads * resident)
        if room >= 0 and held and one * max(depth, 1) * resident * inputs[0] >= _MIN_AHEAD:
            keeps = one * inputs[1] <= room
            layout = "ring" if depth else "piped"
            yield RowShape(layout, vector, unroll, lanes, threads, cluster, resident, keeps, depth)


def _fits(count: int, limits: tuple[int, int]) -> bool:
    return limits[0] <= count <= limits[1]


def _strided(length: int, widest: int) -> Iterator[RowShape]:
    for vector, threads, side in itertools.product((1, 2, 4, 8), (128, 256, 512, 1024), (8, 16, 32)):
        lanes = threads // side
        unroll = -(-length // lanes)
        if vector <= widest and unroll * vector <= 64 and threads * vector * 8 <= 24 << 10:
            yield RowShape("strided", vector, unroll, lanes, threads)
    yield from (RowShape("strided", vector, 0, 8, 256) for vector in (1, 2, 4, 8))


def write(collection: Any, optimized: onnx.ModelProto, case: RowCase, folder: pathlib.Path) -> list[str]:
    """Copies of a case's kernel that share a row in other ways, each with a model that calls it; their labels."""
    widest = entry_points.widest(collection.kernels[optimized.graph.node[0].op_type].program)
    size = 4 if case.dtype == "float32" else 2
    made = []
    for text, shape in shapes(case, widest, size):
        onnx.save(with_shape(collection, optimized, case, shape), folder / f"{case.name}.{text}.onnx")
        made.append(text)
    return made


def with_shape(collection: Any, optimized: onnx.ModelProto, case: RowCase, shape: RowShape) -> onnx.ModelProto:
    """A case's model, calling a copy of its kernel that has no entry point but those of this shape."""
    name = optimized.graph.node[0].op_type
    kernel = collection.kernels[name]
    program = kernel.program
    own = next((v for v in kernel.variants if v.columns == case.length), kernel.variants[0])
    renamed = f"{name}_{label(shape)}"
    if shape.layout == "split":
        variants = entry_points.split_variants(renamed, program, shape, own.modes)
    else:
        variants = [entry_points.variant_of(renamed, program, own.modes, shape, case.length)]
        if shape.layout in ("looped", "strided"):
            variants = [dataclasses.replace(v, columns=0) for v in variants]
    known = collection.kernels.get(renamed)
    merged = {v.symbol: v for v in (*(known.variants if known else ()), *variants)}
    collection.kernels[renamed] = dataclasses.replace(kernel, name=renamed, variants=tuple(merged.values()))
    model = onnx.ModelProto()
    model.CopyFrom(optimized)
    model.graph.node[0].op_type = renamed
    model.functions[0].name = renamed
    return model
