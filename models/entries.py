"""The rows of the model collection: a model's name, its source, and inputs that it runs with."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np

CATALOG = pathlib.Path(__file__).with_name("catalog.json")
CACHE = pathlib.Path(__file__).with_name("cache")


class ModelUnavailable(Exception):
    """A model that cannot be had: unknown name, no package, no exporter, or a file that is not what it should be."""


@dataclasses.dataclass(frozen=True)
class Input:
    """One input that a model is known to run with.

    fill says how it is drawn: {"constant": c}, {"values": [...]}, {"below": n} (integers 0 <= i < n) or {"scale": s}
    (normal with that deviation). Without it floats are standard normal, integers 0 or 1 and bools fair coins.
    """

    dtype: str
    shape: tuple[int, ...]
    fill: dict[str, Any] = dataclasses.field(default_factory=dict)

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """An array of this dtype and shape; the same for the same state of rng."""
        dtype = np.dtype(self.dtype)
        if "constant" in self.fill:
            return np.full(self.shape, self.fill["constant"], dtype)
        if "values" in self.fill:
            return np.asarray(self.fill["values"], dtype).reshape(self.shape)
        if dtype.kind in "iub":
            return np.asarray(rng.integers(0, self.fill.get("below", 2), self.shape)).astype(dtype)
        return np.asarray(rng.standard_normal(self.shape, np.float32) * self.fill.get("scale", 1.0)).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model that a package on the registries carries inside its wheel.

    package: pip requirement with the exact version. path: the file inside the wheel. ort_cannot_run: why the newest
    ONNX Runtime refuses it on the CPU, "" where it runs.
    """

    name: str
    package: str
    path: str
    sha256: str
    bytes: int
    licence: str
    inputs: dict[str, Input]
    ort_cannot_run: str = ""
    kind = "trained"


def catalog(path: pathlib.Path = CATALOG) -> dict[str, Trained]:
    """Every trained model by name, in the order of catalog.json."""
    entries = {}
    for row in json.loads(path.read_text()):
        inputs = row.pop("inputs_that_run")
        row["inputs"] = {k: Input(v["dtype"], tuple(v["shape"]), v.get("fill", {})) for k, v in inputs.items()}
        entries[row["name"]] = Trained(**row)
    return entries
