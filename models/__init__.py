"""Real models by name, for tests, the demo and benchmarks: trained ones from packages, exports from PyTorch.

`path(name)` downloads or exports a model on first use and keeps the file in models/cache. `python -m models list` shows
all of them.
"""

from __future__ import annotations

import pathlib

import numpy as np

from models import exported, fetch
from models.entries import CACHE, ModelUnavailable, Trained, catalog
from models.exported import Exported, exports

__all__ = ["CACHE", "ModelUnavailable", "entry", "feeds", "is_cached", "names", "path"]


def names(kind: str | None = None, *, runnable: bool = False) -> list[str]:
    """Names of every model, or of one kind ("trained", "exported"); runnable leaves out what ORT itself cannot run."""
    rows: dict[str, Trained | Exported] = {**catalog(), **exports()}
    return [k for k, v in rows.items() if kind in (None, v.kind) and not (runnable and v.ort_cannot_run)]


def entry(name: str) -> Trained | Exported:
    """The model's row. Raises ModelUnavailable for an unknown name."""
    row = catalog().get(name) or exports().get(name)
    if row is None:
        raise ModelUnavailable(f"no model {name!r}: `python -m models list` shows the names")
    return row


def is_cached(name: str, cache: pathlib.Path = CACHE) -> bool:
    """Whether path(name) would neither download nor export."""
    row = entry(name)
    return fetch.is_cached(row, cache) if isinstance(row, Trained) else exported.is_cached(row, cache)


def path(name: str, cache: pathlib.Path = CACHE) -> pathlib.Path:
    """The model's file, fetched or exported if needed. Raises ModelUnavailable where neither works."""
    return fetch.fetch(name, cache) if isinstance(entry(name), Trained) else exported.export(name, cache)


def feeds(name: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs that the model runs with: token ids in range, masks of ones, sample rates, and seeded normal numbers."""
    rng = np.random.default_rng(seed)
    return {k: spec.draw(rng) for k, spec in entry(name).inputs.items()}
