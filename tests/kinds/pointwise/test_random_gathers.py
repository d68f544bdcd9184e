"""Random programs around a Gather: what the library's entry points give, run on the CPU, against ONNX Runtime."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.fusion.region import Kernel
from tests.support.emulation import emulated_library
from tests.support.graphs import graph, run

pytestmark = pytest.mark.usefixtures("library")

_DTYPES = {"float": np.float32, "float16": np.float16, "int32": np.int32, "int64": np.int64}
_SIZES = (1, 2, 3, 5, 7, 8, 16, 24)


class _Drawn:
    """A graph of a Gather and one to three operators after it, with the values of all inputs."""

    def __init__(self, seed: int):
        self._rng, self._arrays = random.Random(seed), np.random.default_rng(seed)
        self._dtype = self._rng.choice(["float", "float", "float16", "float16", "int32"])
        self.feeds: dict[str, np.ndarray] = {}
        self._inputs: list[str] = []
        self._constants: list[str] = []
        self._body: list[str] = []
        value, dims = self._gathered()
        for step in self._rng.choices([self._joined, self._shifted, self._turned, self._cut, self._padded], k=2):
            value, dims = step(value, dims)
        self._body.append(f"y = Neg({value})")

    @property
    def model(self) -> ir.Model:
        text = "  ".join(self._body)
        return graph(", ".join(self._inputs), f"{self._dtype}[] y", text, constants=", ".join(self._constants))

    def _input(self, dtype: str, array: np.ndarray) -> str:
        name = f"x{len(self._inputs)}"
        dims = f"[{', '.join(map(str, array.shape))}]" if array.ndim else ""
        self._inputs.append(f"{dtype}{dims} {name}")
        self.feeds[name] = array.astype(_DTYPES[dtype])
        return name

    def _tensor(self, dims: list[int]) -> str:
        return self._input(self._dtype, self._arrays.uniform(-9, 9, dims))

    def _vector(self, *numbers: int) -> str:
        self._constants.append(f"int64[{len(numbers)}] c{len(self._constants)} = {{{', '.join(map(str, numbers))}}}")
        return f"c{len(self._constants) - 1}"

    def _result(self, call: str) -> str:
        self._body.append(f"v{len(self._body)} = {call}")
        return f"v{len(self._body) - 1}"

    def _gathered(self) -> tuple[str, list[int]]:
        dims = self._rng.choices(_SIZES, k=self._rng.randint(1, 4))
        axis = self._rng.randrange(len(dims))
        places = self._rng.choices(_SIZES[:6], k=self._rng.randint(0, 2))
        indices = self._arrays.integers(-dims[axis], dims[axis], places)
        if len(places) == 1 and self._rng.random() < 0.4:
            which = self._vector(*indices.tolist())
        else:
            dtype = self._rng.choice(["int32", "int64"])
            which = self._input(dtype, indices)
            if self._rng.random() < 0.4:
                others = self._arrays.integers(-dims[axis], dims[axis], places[self._rng.randint(0, len(places)) :])
                which = self._result(f"Min({which}, {self._input(dtype, others)})")
        gathered = self._result(f"Gather<axis={axis}>({self._tensor(dims)}, {which})")
        return gathered, [*dims[:axis], *places, *dims[axis + 1 :]]

    def _joined(self, value: str, dims: list[int]) -> tuple[str, list[int]]:
        if not dims:
            return value, dims
        axis, more = self._rng.randrange(len(dims)), self._rng.choice(_SIZES[:6])
        other = self._tensor([*dims[:axis], more, *dims[axis + 1 :]])
        parts = self._rng.sample([value, other], 2)
        return self._result(f"Concat<axis={axis}>({', '.join(parts)})"), _changed(dims, axis, dims[axis] + more)

    def _shifted(self, value: str, dims: list[int]) -> tuple[str, list[int]]:
        shape = [d if self._rng.random() < 0.6 else 1 for d in dims][self._rng.randint(0, len(dims)) :]
        return self._result(f"Add({value}, {self._tensor(shape)})"), dims

    def _turned(self, value: str, dims: list[int]) -> tuple[str, list[int]]:
        if not dims:
            return value, dims
        order = self._rng.sample(range(len(dims)), len(dims))
        return self._result(f"Transpose<perm={order}>({value})"), [dims[k] for k in order]

    def _cut(self, value: str, dims: list[int]) -> tuple[str, list[int]]:
        axes = [k for k, d in enumerate(dims) if d > 1]
        if not axes:
            return value, dims
        axis = self._rng.choice(axes)
        first = self._rng.randint(1, dims[axis] - 1)
        bounds = [self._vector(n) for n in (first, dims[axis], axis)]
        return self._result(f"Slice({value}, {', '.join(bounds)})"), _changed(dims, axis, dims[axis] - first)

    def _padded(self, value: str, dims: list[int]) -> tuple[str, list[int]]:
        if not dims:
            return value, dims
        axis, low, high = self._rng.randrange(len(dims)), self._rng.randint(0, 3), self._rng.randint(1, 3)
        widths = [0] * (2 * len(dims))
        widths[axis], widths[axis + len(dims)] = low, high
        return self._result(f"Pad({value}, {self._vector(*widths)})"), _changed(dims, axis, dims[axis] + low + high)


def _changed(dims: list[int], axis: int, size: int) -> list[int]:
    return [*dims[:axis], size, *dims[axis + 1 :]]


def _compare(seeds: range, folder: Path) -> int:
    """How many Gathers became part of kernels. AssertionError where a result differs from ONNX Runtime's."""
    drawn, kernels, looked_up = [], dict[str, Kernel](), 0
    models: list[tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]] = []
    for seed in seeds:
        one = _Drawn(seed)
        optimized = one.model
        kernels |= {kernel.name: kernel for kernel in outline(optimized, fuse(optimized))}
        looked_up += all(node.op_type != "Gather" for node in optimized.graph)
        drawn.append(one)
        models.append((ir.serde.serialize_model(optimized), [one.feeds]))
    found, _ = emulated_library.run_models(folder, models, list(kernels.values()))
    for seed, one, (results,) in zip(seeds, drawn, found, strict=True):
        np.testing.assert_array_equal(results["y"], run(one.model, one.feeds)[0], err_msg=f"seed {seed}")
    return looked_up


def test_a_sample(tmp_path: Path) -> None:
    assert _compare(range(20), tmp_path / "run") >= 16


@pytest.mark.exhaustive
@pytest.mark.parametrize("batch", range(8))
def test_many(batch: int, tmp_path: Path) -> None:
    assert _compare(range(100 + 50 * batch, 150 + 50 * batch), tmp_path / "run") >= 40
