"""Rows of the tables of cases in sessions: a library for all kernels of a row, a session for cases of one model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import onnx

from cases.table import Row, Table
from onnxopt.fusion.region import Kernel
from tests.support.wrong_bodies import with_wrong_bodies


@dataclasses.dataclass(frozen=True)
class Runs:
    """models: each with the cases that call it. Bodies of the kind's functions are wrong."""

    kernels: tuple[Kernel, ...]
    models: tuple[tuple[onnx.ModelProto, tuple[Any, ...]], ...]

    def only(self, first: str) -> tuple[Kernel, ...]:
        """The kernels with no other entry points than those whose names begin so, where there are some."""
        return tuple(dataclasses.replace(k, variants=_named(k, (first,)) or k.variants) for k in self.kernels)


def of_row(table: Table, row: Row) -> Runs:
    """What is run of a row; of its entry points alone where nothing else shall run and one runs a call."""
    kernels: dict[str, Kernel] = {}
    models: dict[bytes, tuple[onnx.ModelProto, list[Any]]] = {}
    for case in row.cases:
        key = case.model().SerializeToString()
        if key not in models:
            found = table.fused(case)
            for kernel in found.kernels:
                kernels[kernel.name] = _merged(kernels.get(kernel.name, kernel), kernel, row)
            assert found.kernels, case
            names = [kernel.name for kernel in found.kernels if kernel.kind.name == table.kind]
            models[key] = (with_wrong_bodies(found.optimized, names), [])
        models[key][1].append(case)
    chosen = tuple(kernels.values())
    if row.alone and table.single:
        chosen = tuple(dataclasses.replace(k, variants=_named(k, row.entry_points)) for k in chosen)
        assert all(k.variants for k in chosen)
    return Runs(chosen, tuple((model, tuple(cases)) for model, cases in models.values()))


def _merged(first: Kernel, other: Kernel, row: Row) -> Kernel:
    """A kernel with the entry points of both: cases of one meaning have some of their own."""
    variants = {
        v.symbol: v for k in (first, other) for v in (*k.variants, *(k.kind.alternatives(k) if row.every else ()))
    }
    return dataclasses.replace(first, variants=tuple(variants.values()))


def _named(kernel: Kernel, first: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(v for v in kernel.variants if v.symbol.removeprefix(f"{kernel.name}_").startswith(first))


def rows(tables: tuple[Table, ...]) -> Iterator[tuple[str, Table, Row]]:
    """Every row with a name of its own."""
    for table in tables:
        for row in table.rows:
            yield f"{table.kind} {row.name}", table, row
