"""Other ways to share a row among threads, for gpu_rows --sweep: what row_shapes.py takes its rules from."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import onnx

from benchmarks.rows import RowCase
from onnxopt import row_shapes, row_variants
from onnxopt.row_shapes import RowShape, vectors_of

_LONG = 32768  # columns from which looping over a row is tried as well
_SMALL = 10_000_000  # bytes moved, below which blocks of other sizes are tried too
_WASTE = 1.5  # lanes over those that have work
_REGISTERS = 65536  # of a multiprocessor


def shapes(case: RowCase, widest: int, size: int) -> Iterator[tuple[str, RowShape]]:
    """Labelled shapes to try. widest: elements of the longest vector; size: bytes of an element."""
    found: list[RowShape] = []
    if case.kind == "softmax_channels":
        found = list(_strided(case.length, widest))
    elif case.length > 400_000:
        found = [RowShape("split", widest, u, t, t) for t in (256, 512, 1024) for u in (2, 4, 8)]
        found += list(_piped(case.length, widest, size, (8, 16)))
    else:
        narrower = [v for v in (widest, widest // 2, widest // 4, 1) if v and case.length % v == 0]
        sizes = (64, 128, 256) if case.bytes() < _SMALL else (128,)
        found += _held("held", case.length, narrower[0], sizes)
        if case.length % widest:
            found += _held("ragged", case.length, widest, sizes)
        else:
            clusters = (1, 2) if case.length < _LONG else (1, 2, 4, 8, 16) if case.length > 2 * _LONG else (1, 2, 4)
            same = case.kind.startswith(("layernorm", "residual", "masked", "rmsnorm"))
            found += [s for s in _piped(case.length, widest, size, clusters) if same or s.keeps]
    if case.length >= _LONG and case.kind != "softmax_channels":
        found += [RowShape("looped", widest, 4, 512 * c, 512, c) for c in (1, 8)]
        found += [RowShape("split", widest, 4, 512, 512)]
    for shape in dict.fromkeys(found):
        yield label(shape), shape


def label(shape: RowShape) -> str:
    text = f"{shape.layout[0]}{shape.vector}l{shape.lanes}u{shape.unroll}t{shape.threads}"
    return (
        text
        + (f"c{shape.cluster}" if shape.cluster > 1 else "")
        + (f"r{shape.resident}" if shape.resident else "")
        + ("" if shape.keeps else "x")
    )


def _held(layout: str, length: int, vector: int, sizes: tuple[int, ...]) -> Iterator[RowShape]:
    vectors = vectors_of(layout, length, vector)
    for lanes in (1 << k for k in range(11)):
        unroll = -(-vectors // lanes)
        if unroll * vector > 64 or lanes * unroll > max(_WASTE * vectors, vectors + 5) or lanes * vector < 8:
            continue
        for threads in sorted({max(n, lanes) for n in sizes}):
            yield RowShape(layout, vector, unroll, lanes, threads)


def _piped(length: int, vector: int, size: int, clusters: tuple[int, ...]) -> Iterator[RowShape]:
    vectors = length // vector
    for cluster in clusters:
        for threads in (256, 512, 1024):
            lanes = threads * cluster
            unroll = -(-vectors // lanes)
            if lanes * unroll > _WASTE * vectors or unroll > 16 or unroll * vector < 16:
                continue
            for resident in (1, 2, 3, 4):
                registers = _REGISTERS // (threads * resident)
                kept = unroll * vector * min(size, 4) // 4
                if kept + 28 > registers or threads * resident > 2048 or resident * threads < 512:
                    continue
                if cluster == 16 and (resident > 2 or threads == 1024):
                    continue
                if unroll * vector * threads * size > row_shapes.shared_bytes(resident):
                    continue
                yield RowShape("piped", vector, unroll, lanes, threads, cluster, resident)
                if resident == 1:
                    yield RowShape("piped", vector, unroll, lanes, threads, cluster, resident, keeps=False)


def _strided(length: int, widest: int) -> Iterator[RowShape]:
    for vector in (1, 2, 4, 8):
        for threads in (128, 256, 512, 1024):
            unroll = -(-length // (threads // 32))
            if vector <= widest and unroll * vector <= 64 and threads * vector * 8 <= 24 << 10:
                yield RowShape("strided", vector, unroll, 1, threads)
        yield RowShape("strided", vector, 0, 1, 256)


def write(collection: Any, optimized: onnx.ModelProto, case: RowCase, folder: pathlib.Path) -> list[str]:
    """Copies of a case's kernel that share a row in other ways, each with a model that calls it; their labels."""
    widest = row_variants.widest(collection.kernels[optimized.graph.node[0].op_type].program)
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
        variants = row_variants.split_variants(renamed, program, shape, own.modes)
    else:
        variants = [row_variants.variant_of(renamed, program, own.modes, shape, case.length)]
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
