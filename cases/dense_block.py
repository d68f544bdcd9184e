"""Dense blocks: each convolution reads a Concat of x and of all earlier results, and a last Concat has all of them.

x -> 3x3 -> activation -> a; Concat(x, a) -> 3x3 -> activation -> b; ...; Concat(x, a, b, ...) -> y
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper

from cases.convolution import ACTIVATIONS, SLOPE, TYPES, rounded, tensor

NHWC, NCHW = [0, 2, 3, 1], [0, 3, 1, 2]


@dataclasses.dataclass(frozen=True)
class Dense:
    """One such block of x [n, h, w, c] to y [n, h, w, c + layers * growth].

    activation: "", "prelu", or one of cases/convolution.py. nested: a Concat has the result of the one before it as
    operand. first: whether x is the first operand, not the last. narrow: channels of a 1x1 convolution with the
    activation before each of the others, 0 for none. symbolic: a name instead of n. Inputs and outputs have the dtype
    float16 or float32, float32 where it is bfloat16.
    """

    n: int = 2
    h: int = 5
    w: int = 6
    c: int = 64
    growth: int = 32
    layers: int = 4
    activation: str = "leaky_relu"
    nested: bool = False
    first: bool = True
    narrow: int = 0
    dtype: str = "float16"
    symbolic: str = ""
    seed: int = 0

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
            scale = 1.5 / np.sqrt(c * side * side)
            drawn = random.standard_normal((k, c, side, side)) * scale, random.standard_normal(k) * 0.2
            weight, bias, slopes = (rounded(v, self.dtype) for v in (*drawn, random.uniform(0, 1, (k, 1, 1))))
            yield name, weight, bias, slopes

    def feeds(self, seed: int = 1) -> dict[str, np.ndarray]:
        drawn = np.random.default_rng([self.seed, seed]).standard_normal((self.n, self.h, self.w, self.c))
        return {"x": rounded(drawn, self.dtype).astype(np.float32 if self.dtype == "bfloat16" else self.dtype)}

    def model(self, change: Callable[[list[onnx.NodeProto], list[str]], None] | None = None) -> onnx.ModelProto:
        """The block in NCHW between two Transposes. change: of its nodes and the names of its outputs, in place."""
        casts = self.dtype == "bfloat16"
        outside = TensorProto.FLOAT if casts else TYPES[self.dtype]
        nodes = [helper.make_node("Cast", ["x"], ["inner"], to=TYPES[self.dtype])] if casts else []
        nodes.append(helper.make_node("Transpose", ["inner" if casts else "x"], ["x_nchw"], perm=NCHW, name="turn"))
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
        nodes.append(helper.make_node("Transpose", [joined], ["last" if casts else "y"], perm=NHWC, name="back"))
        nodes += [helper.make_node("Cast", ["last"], ["y"], to=outside)] if casts else []
        names = ["y"]
        if change is not None:
            change(nodes, names)
        constants = []
        for name, *values in self.weights():
            for suffix, value in zip(("w", "bias", "slopes")[: 2 + (self.activation == "prelu")], values, strict=False):
                constants.append(tensor(f"{name}_{suffix}", value, self.dtype))
        x = helper.make_tensor_value_info("x", outside, [self.symbolic or self.n, self.h, self.w, self.c])
        outputs = [helper.make_tensor_value_info(name, outside, None) for name in names]
        graph = helper.make_graph(nodes, "g", [x], outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)

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

        def convolved(name: str, x: np.ndarray) -> np.ndarray:
            weight, bias, slopes = weights[name]
            side = weight.shape[2]
            padded = np.pad(x, ((0, 0), (side // 2,) * 2, (side // 2,) * 2, (0, 0)))
            h, w = x.shape[1:3]
            taps = [(r, s) for r in range(side) for s in range(side)]
            y = sum(padded[:, r : r + h, s : s + w] @ weight[:, :, r, s].T for r, s in taps) + bias
            if self.activation == "prelu":
                return np.where(y < 0, slopes.reshape(-1) * y, y)
            return ACTIVATIONS[self.activation](y) if self.activation else y

        values = {"x": feeds["x"].astype(np.float64)}
        joined = values["x"]
        for k in range(self.layers):
            read = values[f"narrow{k}_y"] = convolved(f"narrow{k}", joined) if self.narrow else joined
            y = values[f"conv{k}_y"] = convolved(f"conv{k}", read)
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
