"""Pools with ceil_mode have the sizes that ONNX Runtime gives them, or unknown ones."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from onnxopt.graph.shapes.infer import infer
from tests.support.graphs import graph, run


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("size", [4, 5, 8])
def test_no_window_begins_in_the_padding(pool: str, size: int) -> None:
    x = {"x": np.zeros((1, 1, size), np.float32)}
    for kernel, stride, begin, end in itertools.product((2, 3), (2, 3), (0, 1), (0, 1)):
        attributes = f"kernel_shape=[{kernel}], strides=[{stride}], pads=[{begin}, {end}], ceil_mode=1"
        model = graph(f"float[1, 1, {size}] x", "float[?, ?, ?] y", f"y = {pool}<{attributes}>(x)")
        dims, found = infer(model).dims(model.graph.outputs[0]), run(model, x)[0].shape
        assert dims is not None
        begins_in_padding = (
            found[2] * stride >= size + begin and found[2] * stride + kernel < size + begin + end + stride
        )
        assert dims == found if not begins_in_padding else not isinstance(dims[2], int), attributes
