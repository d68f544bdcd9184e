"""Models of a block of convolutions that computes in NCHW between two Transposes, and its convolutions in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from cases.convolution import TYPES
from cases.models import rounded, tensor

NHWC, NCHW = [0, 2, 3, 1], [0, 3, 1, 2]
Change = Callable[[list[onnx.NodeProto], list[str]], None]


@dataclasses.dataclass(frozen=True)
class BlockModel:
    """A block of x [n, h, w, c].

    symbolic: a name instead of n. Inputs and outputs have the dtype float16 or float32, float32 where it is bfloat16.
    """

    n: int = 2
    h: int = 5
    w: int = 6
    c: int = 64
    dtype: str = "float16"
    symbolic: str = ""
    seed: int = 0

    def feeds(self, seed: int = 1) -> dict[str, np.ndarray]:
        drawn = np.random.default_rng([self.seed, seed]).standard_normal((self.n, self.h, self.w, self.c))
        return {"x": rounded(drawn, self.dtype).astype(np.float32 if self.dtype == "bfloat16" else self.dtype)}

    def between_transposes(
        self,
        block: Sequence[onnx.NodeProto],
        result: str,
        constants: Iterable[tuple[str, np.ndarray]],
        change: Change | None,
    ) -> onnx.ModelProto:
        """The model whose block reads `x_nchw`. change: of its nodes and the names of its outputs, in place."""
        casts = self.dtype == "bfloat16"
        outside = TensorProto.FLOAT if casts else TYPES[self.dtype]
        nodes = [helper.make_node("Cast", ["x"], ["inner"], to=TYPES[self.dtype])] if casts else []
        nodes.append(helper.make_node("Transpose", ["inner" if casts else "x"], ["x_nchw"], perm=NCHW, name="turn"))
        nodes += block
        nodes.append(helper.make_node("Transpose", [result], ["last" if casts else "y"], perm=NHWC, name="back"))
        nodes += [helper.make_node("Cast", ["last"], ["y"], to=outside)] if casts else []
        names = ["y"]
        if change is not None:
            change(nodes, names)
        x = helper.make_tensor_value_info("x", outside, [self.symbolic or self.n, self.h, self.w, self.c])
        outputs = [helper.make_tensor_value_info(name, outside, None) for name in names]
        held = [tensor(name, value, self.dtype) for name, value in constants]
        graph = helper.make_graph(nodes, "g", [x], outputs, held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

    def drawn(self, random: np.random.Generator, c: int, k: int, side: int) -> tuple[np.ndarray, np.ndarray]:
        """A weight [k, c, side, side] and a bias [k], rounded to the dtype; float32."""
        weight = random.standard_normal((k, c, side, side)) * (1.5 / np.sqrt(c * side * side))
        return rounded(weight, self.dtype), rounded(random.standard_normal(k) * 0.2, self.dtype)


def convolved(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """x [N, H, W, C] by a window in its middle, with as many zeros around x."""
    side, (h, w) = weight.shape[2], x.shape[1:3]
    padded = np.pad(x, ((0, 0), (side // 2,) * 2, (side // 2,) * 2, (0, 0)))
    taps = [(r, s) for r in range(side) for s in range(side)]
    return np.asarray(sum(padded[:, r : r + h, s : s + w] @ weight[:, :, r, s].T for r, s in taps) + bias)
