"""Dense blocks: each convolution reads a Concat of x and of all earlier results, and a last Concat has all of them.

x -> 3x3 -> activation -> a; Concat(x, a) -> 3x3 -> activation -> b; ...; Concat(x, a, b, ...) -> y
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper

from cases.block_model import BlockModel, Change, convolved
from cases.convolution import ACTIVATIONS, SLOPE
from cases.models import rounded


@dataclasses.dataclass(frozen=True)
class Dense(BlockModel):
    """One such block of x [n, h, w, c] to y [n, h, w, c + layers * growth].

    activation: "", "prelu", or one of cases/convolution.py. nested: a Concat has the result of the one before it as
    operand. first: whether x is the first operand, not the last. narrow: channels of a 1x1 convolution with the
    activation before each of the others, 0 for none.
    """

    growth: int = 32
    layers: int = 4
    activation: str = "leaky_relu"
    nested: bool = False
    first: bool = True
    narrow: int = 0

    def sizes(self) -> list[tuple[str, int, int, int]]:
        """Every convolution: its name, C, K, and the side of its window."""
        found = []
        for k in range(self.layers):
            wide = self.c + k * self.growth
            found += [(f"narrow{k}", wide, self.narrow, 1)] if self.narrow else []
            found.append((f"conv{k}", self.narrow or wide, self.growth, 3))
        return found

    def weights(self) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """Every convolution's name, weight [K, C, R, S], bias and slopes [K, 1, 1], rounded to the dtype; float32."""
        random = np.random.default_rng(self.seed)
        for name, c, k, side in self.sizes():
            weight, bias = self.drawn(random, c, k, side)
            yield name, weight, bias, rounded(random.uniform(0, 1, (k, 1, 1)), self.dtype)

    def model(self, change: Change | None = None) -> onnx.ModelProto:
        """change: of its nodes and the names of its outputs, in place."""
        nodes: list[onnx.NodeProto] = []
        parts, joined = ["x_nchw"], "x_nchw"
        for k in range(self.layers):
            read = joined
            if self.narrow:
                nodes += self._convolved(f"narrow{k}", read, 1)
                read = f"narrow{k}_y"
            nodes += self._convolved(f"conv{k}", read, 3)
            parts = [*parts, f"conv{k}_y"] if self.first else [f"conv{k}_y", *parts]
            latest = [joined, f"conv{k}_y"]
            operands = parts if not self.nested else latest if self.first else latest[::-1]
            joined = f"joined{k}"
            nodes.append(helper.make_node("Concat", operands, [joined], name=joined, axis=1))
        count = 3 if self.activation == "prelu" else 2
        constants = [
            (f"{name}_{suffix}", value)
            for name, *values in self.weights()
            for suffix, value in zip(("w", "bias", "slopes")[:count], values, strict=False)
        ]
        return self.between_transposes(nodes, joined, constants, change)

    def _convolved(self, name: str, x: str, side: int) -> list[onnx.NodeProto]:
        """A convolution and its activation."""
        before, y = f"{name}_y" if not self.activation else f"{name}_c", f"{name}_y"
        window = {"kernel_shape": [side] * 2, "pads": [side // 2] * 4}
        nodes = [helper.make_node("Conv", [x, f"{name}_w", f"{name}_bias"], [before], name=name, **window)]
        single = {"relu": "Relu", "leaky_relu": "LeakyRelu", "prelu": "PRelu", "hardswish": "HardSwish"}
        if self.activation == "silu":
            gate = helper.make_node("Sigmoid", [before], [f"{name}_g"], name=f"{name}_g")
            nodes += [gate, helper.make_node("Mul", [before, f"{name}_g"], [y], name=y)]
        elif self.activation:
            slope = {"alpha": SLOPE} if self.activation == "leaky_relu" else {}
            operands = [before, f"{name}_slopes"] if self.activation == "prelu" else [before]
            nodes.append(helper.make_node(single[self.activation], operands, [y], name=y, **slope))
        return nodes

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """y in float64."""
        return self.values(feeds)[f"joined{self.layers - 1}"]

    def values(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The values of the graph that no activation follows, in float64 and NHWC."""
        weights = {name: [v.astype(np.float64) for v in values] for name, *values in self.weights()}

        def computed(name: str, x: np.ndarray) -> np.ndarray:
            weight, bias, slopes = weights[name]
            y = convolved(x, weight, bias)
            if self.activation == "prelu":
                return np.where(y < 0, slopes.reshape(-1) * y, y)
            return ACTIVATIONS[self.activation](y) if self.activation else y

        values = {"x": feeds["x"].astype(np.float64)}
        joined = values["x"]
        for k in range(self.layers):
            read = values[f"narrow{k}_y"] = computed(f"narrow{k}", joined) if self.narrow else joined
            y = values[f"conv{k}_y"] = computed(f"conv{k}", read)
            joined = values[f"joined{k}"] = np.concatenate([joined, y] if self.first else [y, joined], axis=-1)
        return values


def draw(seed: int) -> Dense:
    """A random block, whose Concats pay."""
    random = np.random.default_rng(seed)

    def pick(*choices: int) -> int:
        return int(random.choice(choices))

    return Dense(
        n=pick(1, 2, 3), h=pick(2, 5, 8, 13), w=pick(1, 3, 7, 16), c=pick(8, 24, 32, 64), growth=pick(8, 24, 32, 40),
        layers=pick(4, 5, 6), activation=str(random.choice(["silu", "leaky_relu", "prelu", "hardswish"])),
        nested=bool(pick(0, 1)), first=bool(pick(0, 1)), narrow=pick(0, 0, 32),
        dtype=str(random.choice(["float16", "bfloat16"])), seed=seed,
    )  # fmt: skip


CASES = (
    Dense(), Dense(growth=8, nested=True), Dense(activation="prelu", layers=3, first=False),
    Dense(dtype="bfloat16", narrow=64, activation="silu"), *map(draw, range(8)),
)  # fmt: skip
