"""Values as views of earlier tensors: every element is where the parts of the axes say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest

from onnxopt.graph.shapes.shapes import infer
from onnxopt.kinds.grid_sample.views import Part, Run, Viewed, inner, run, views
from tests.support.graphs import graph
from tests.support.graphs import run as outputs_of


def _random_chain(rng: np.random.Generator, sizes: Sequence[int]) -> tuple[str, str]:
    """The body and the constants of some steps from x of these sizes."""
    body, constants, dims, name = "", [], list(sizes), "x"
    for k in range(int(rng.integers(1, 6))):
        result, axis = f"v{k}", int(rng.integers(1, len(dims))) if len(dims) > 1 else 0
        step = str(rng.choice(["transpose", "slice", "gather", "merge", "divide", "unsqueeze", "split"]))
        if step == "transpose":
            order = [int(n) for n in rng.permutation(len(dims))]
            body += f" {result} = Transpose <perm = {order}> ({name})"
            dims = [dims[n] for n in order]
        elif step == "slice" and dims[axis] > 1:
            start = int(rng.integers(0, dims[axis]))
            end = int(rng.integers(start + 1, dims[axis] + 1))
            begin = start - dims[axis] if rng.random() < 0.5 else start
            constants += [f"int64[1] b{k} = {{{begin}}}, int64[1] e{k} = {{{end}}}, int64[1] a{k} = {{{axis}}}"]
            body += f" {result} = Slice ({name}, b{k}, e{k}, a{k})"
            dims[axis] = end - start
        elif step == "gather" and len(dims) > 2:
            constants.append(f"int64 n{k} = {{{int(rng.integers(0, dims[axis]))}}}")
            body += f" {result} = Gather <axis = {axis}> ({name}, n{k})"
            dims.pop(axis)
        elif step == "split" and dims[axis] > 1:
            first = int(rng.integers(1, dims[axis]))
            constants.append(f"int64[2] s{k} = {{{first}, {dims[axis] - first}}}")
            taken = int(rng.integers(2))
            pair = (result, f"o{k}") if taken == 0 else (f"o{k}", result)
            body += f" {pair[0]}, {pair[1]} = Split <axis = {axis}> ({name}, s{k})"
            dims[axis] = first if taken == 0 else dims[axis] - first
        else:
            if step == "merge" and len(dims) > 2:
                dims[axis - 1 : axis + 1] = [dims[axis - 1] * dims[axis]]
            elif step == "divide" and dims[axis] % 2 == 0:
                dims[axis : axis + 1] = [2, dims[axis] // 2]
            else:
                dims.insert(axis, 1)
            constants.append(f"int64[{len(dims)}] r{k} = {{{', '.join(map(str, dims))}}}")
            body += f" {result} = Reshape ({name}, r{k})"
        name = result
    return f"{body} y = Identity ({name})", ", ".join(constants)


def _elements(viewed: Viewed, shapes: object) -> np.ndarray:
    """The elements of the tensor that a view has."""
    total = np.zeros((), np.int64)
    for dim in viewed.dims:
        along = np.zeros((), np.int64)
        for part in dim:
            assert part.size is not None
            steps = np.arange(part.size) * part.step * inner(viewed.tensor, part.axis, shapes)  # type: ignore[arg-type]
            along = np.add.outer(along, steps)
        total = np.add.outer(total, along.ravel())
    return total + sum(at * inner(viewed.tensor, axis, shapes) for axis, at in viewed.first)  # type: ignore[arg-type]


def test_random_views() -> None:
    rng, followed = np.random.default_rng(5), 0
    for _ in range(150):
        sizes = [int(n) for n in rng.choice([1, 2, 3, 4, 6], int(rng.integers(2, 5)))]
        body, constants = _random_chain(rng, sizes)
        model = graph(f"float[{', '.join(map(str, sizes))}] x", "float[] y", body, constants=constants)
        shapes, x = infer(model), np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
        (expected,) = outputs_of(model, {"x": x})
        value = model.graph.outputs[0].producer().inputs[0]  # type: ignore[union-attr]
        assert value is not None
        for viewed in views(value, shapes):
            if viewed.tensor is model.graph.inputs[0]:
                np.testing.assert_array_equal(_elements(viewed, shapes).reshape(expected.shape), expected)
                followed += bool(viewed.nodes)
    assert followed > 90


def test_runs() -> None:
    model = graph("float[2, 3, 4] x", "float[] y", "y = Identity (x)")
    shapes, x = infer(model), model.graph.inputs[0]
    assert run((Part(1, 3), Part(2, 4)), x, shapes) == Run(12, 1)
    assert run((Part(2, 4), Part(1, 3)), x, shapes) is None
    assert run((), x, shapes) == Run(1, 0)
    assert run((Part(0, None),), x, shapes) is None


@pytest.mark.parametrize(
    "body",
    [
        "v = Reshape (x, t)",  # of a computed shape
        "v = Slice (x, zero, one, one, two)",
        "v = Slice (x, one, two, zero)",  # of the batch
        "v = Cast <to = 10> (x)",
        "v = Relu (x)",
    ],
)
def test_what_is_no_view(body: str) -> None:
    constants = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}"
    model = graph("float[4, 6] x, int64[2] t", "float[] y", f"{body} y = Identity (v)", constants=constants)
    shapes, value = infer(model), model.graph.outputs[0].producer().inputs[0]  # type: ignore[union-attr]
    assert isinstance(value, ir.Value)
    assert not any(viewed.tensor.name == "x" for viewed in views(value, shapes))
