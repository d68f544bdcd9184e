"""Where the library's CPU kernels are faster, and how they divide their work."""

from __future__ import annotations

import dataclasses
import functools

from onnxopt.costs.measured import load


@dataclasses.dataclass(frozen=True)
class CpuCosts:
    """The numbers of costs/data/cpu.json, which says what each is."""

    min_operators: int
    min_beside_fused: int
    serial_nanoseconds: float
    task_nanoseconds: float
    max_tasks: int
    nanoseconds_per_cost: float
    nanoseconds_per_byte: float
    nanoseconds_per_element: float
    shortest_row: int
    longest_period: int
    working_set: int
    shortest_block: int
    longest_block: int
    row_block: int
    part_blocks: int
    min_columns_of_part: int


@functools.cache
def numbers() -> CpuCosts:
    """The measured numbers."""
    return load("cpu", CpuCosts)
