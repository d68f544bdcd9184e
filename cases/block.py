"""Blocks as detectors have them: a Split, convolutions on one half, and a Concat of the halves and what these computed.

x -> 1x1 -> SiLU -> Split -> 3x3 -> SiLU -> 3x3 -> SiLU -> Add the half -> ... -> Concat of all -> y
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper

from cases import dense_block
from cases.block_model import BlockModel, Change, convolved
from cases.dense_block import Dense
from cases.models import Fused, fused_model, laid_out
from cases.table import Row, Table


@dataclasses.dataclass(frozen=True)
class Halves(BlockModel):
    """One such block of x [n, h, w, c] to y [n, h, w, (2 + depth) * half].

    depth: pairs of convolutions. shortcut: whether what a pair reads is added to its result. activation: "silu" or
    "relu".
    """

    half: int = 64
    depth: int = 2
    shortcut: bool = True
    activation: str = "silu"

    def layers(self) -> list[tuple[str, int, int, int]]:
        """Every convolution: its name, C, K, and the side of its window."""
        pairs = [(f"{side}{k}", self.half, self.half, 3) for k in range(self.depth) for side in "ab"]
        return [("open", self.c, 2 * self.half, 1), *pairs]

    def weights(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Every convolution's name, its weight [K, C, R, S] and its bias, rounded to the dtype; float32."""
        random = np.random.default_rng(self.seed)
        for name, c, k, side in self.layers():
            yield name, *self.drawn(random, c, k, side)

    def model(self, change: Change | None = None) -> onnx.ModelProto:
        """change: of its nodes and the names of its outputs, in place."""
        nodes: list[onnx.NodeProto] = []
        nodes += self._convolved("open", "x_nchw")
        nodes += [helper.make_node("Split", ["open_y"], ["left", "right"], name="split", axis=1, num_outputs=2)]
        parts = ["left", "right"]
        for k in range(self.depth):
            nodes += self._convolved(f"a{k}", parts[-1]) + self._convolved(f"b{k}", f"a{k}_y")
            if self.shortcut:
                nodes.append(helper.make_node("Add", [parts[-1], f"b{k}_y"], [f"sum{k}"], name=f"sum{k}"))
            parts.append(f"sum{k}" if self.shortcut else f"b{k}_y")
        nodes += [helper.make_node("Concat", parts, ["joined"], name="joined", axis=1)]
        weights = list(self.weights())
        constants = [(f"{name}_{k}", v) for name, w, b in weights for k, v in (("w", w), ("bias", b))]
        return self.between_transposes(nodes, "joined", constants, change)

    def _convolved(self, name: str, x: str) -> list[onnx.NodeProto]:
        side = 1 if name == "open" else 3
        window = {"kernel_shape": [side] * 2, "pads": [side // 2] * 4}
        nodes = [helper.make_node("Conv", [x, f"{name}_w", f"{name}_bias"], [f"{name}_c"], name=name, **window)]
        if self.activation == "relu":
            return [*nodes, helper.make_node("Relu", [f"{name}_c"], [f"{name}_y"], name=f"{name}_y")]
        gate = helper.make_node("Sigmoid", [f"{name}_c"], [f"{name}_g"], name=f"{name}_g")
        product = helper.make_node("Mul", [f"{name}_c", f"{name}_g"], [f"{name}_y"], name=f"{name}_y")
        return [*nodes, gate, product]

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """y in float64."""
        weights = {name: (w.astype(np.float64), b.astype(np.float64)) for name, w, b in self.weights()}

        def computed(name: str, x: np.ndarray) -> np.ndarray:
            total = convolved(x, *weights[name])
            return np.maximum(total, 0) if self.activation == "relu" else total / (1 + np.exp(-total))

        whole = computed("open", feeds["x"].astype(np.float64))
        parts = [whole[..., : self.half], whole[..., self.half :]]
        for k in range(self.depth):
            result = computed(f"b{k}", computed(f"a{k}", parts[-1]))
            parts.append(parts[-1] + result if self.shortcut else result)
        return np.concatenate(parts, axis=-1)


def draw(seed: int) -> Halves:
    """A random block."""
    random = np.random.default_rng(seed)

    def pick(*choices: int) -> int:
        return int(random.choice(choices))

    return Halves(
        n=pick(1, 2, 3), h=pick(1, 2, 5, 8, 13), w=pick(1, 3, 7, 16), c=pick(8, 24, 64, 100), half=pick(32, 40, 64, 72),
        depth=pick(1, 2, 3), shortcut=bool(pick(0, 1)), dtype=str(random.choice(["float16", "bfloat16"])), seed=seed,
    )  # fmt: skip


def fused(case: Halves | Dense) -> Fused:
    """The block in channels last."""
    original = case.model()
    return fused_model(original, laid_out(original))


def error(case: Halves | Dense, _: str, found: np.ndarray, right: np.ndarray) -> float:
    """As a multiple of the limit of the largest magnitude: five convolutions, each rounded to storage."""
    limit = {"float16": 4e-3, "bfloat16": 3e-2}[case.dtype] * np.abs(right).max(initial=1.0)
    wide = found.astype(np.float64)
    return np.inf if wide.shape != right.shape else float((np.abs(wide - right) / limit).max(initial=0.0))


CASES = (
    Halves(), Halves(depth=1, shortcut=False), Halves(depth=3, n=1, h=3, w=4, c=72), Halves(n=1, h=1, w=1),
    Halves(dtype="bfloat16"), *map(draw, range(6)),
)  # fmt: skip
TABLE = Table(
    "block",
    (Row("halves", CASES, gpu=True), Row("dense", dense_block.CASES, gpu=True)),
    fused,
    error,
    emulated="",
    damaged={
        "block": (Halves(n=1, h=3, w=4, c=8, half=32, depth=1),),
        "dense_block": (Dense(n=1, h=3, w=4, c=8, growth=8, layers=3, activation="prelu"),),
    },
)
