"""Phases: how work that takes long says what it is doing."""

from __future__ import annotations

from collections.abc import Callable

# progress(phase, detail, done, total): called when a phase starts, and as one advances that counts its steps (compile,
# verify); done and total are 0 where nothing is counted, detail may name what is worked on.
Progress = Callable[[str, str, int, int], None]


def silent(phase: str, detail: str, done: int, total: int) -> None:
    """For callers that do not ask."""
