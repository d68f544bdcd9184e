"""A float32 model whose caches are of 16 bits: what a decoder's artifact is compared with where that was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onnxopt.errors import UsageError
from onnxopt.graph import normalize, read, write
from onnxopt.graph import traits as model_traits
from onnxopt.graph.precision import caches
from onnxopt.graph.traits import Traits
from onnxopt.program.dtypes import to_ir
from onnxopt.verification.sampling.user_data import UserData

NONE = (
    "has no caches: no float32 input of three dims or more comes back as an output of its dims, with new elements that "
    "Concat, a scatter or attention adds, and no input or output of four dims holds keys or values of attention; leave "
    "out caches"
)


class NoCachesError(UsageError):
    """Caches of 16 bits were asked for, and the model has none."""


def caches_of(source: read.Source) -> tuple[str, ...]:
    """The inputs and outputs that are caches, by name. The model stays as it is. UsageError where there are none."""
    rows = caches.find(normalize.normalize(source.model.clone()).model)
    if not rows:
        raise NoCachesError(f"{source}: {NONE}")
    return rows


def narrowed(source: read.Source, names: Sequence[str], dtype: str, folder: Path) -> read.Source:
    """The model with caches of this dtype, in a file in `folder`, which is made and has to outlive the result."""
    folder.mkdir(exist_ok=True)
    model = source.model.clone()
    caches.narrow(model, names, to_ir(dtype))
    write.save(model, folder)
    return dataclasses.replace(read.load(folder / write.MODEL_FILE), title=f"{source} with caches of {dtype}")


def traits_of(source: read.Source) -> Traits:
    """The traits of such a model, which computes in float32."""
    return dataclasses.replace(model_traits.of(source.model), precision="float32")


def narrowed_data(data: Sequence[UserData], names: Sequence[str], dtype: str) -> tuple[UserData, ...]:
    """The user's inputs, which are those of the original, with caches of this dtype."""
    wanted = to_ir(dtype).numpy()

    def one(name: str, array: np.ndarray) -> np.ndarray:
        return array.astype(wanted) if name in names else array

    return tuple(dataclasses.replace(item, inputs={n: one(n, a) for n, a in item.inputs.items()}) for item in data)
