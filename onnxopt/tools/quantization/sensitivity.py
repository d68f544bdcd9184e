"""What quantizing each product alone costs the outputs, and what it saves: which go back to float32 first."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from onnxopt.tools.quantization.products import Product
from onnxopt.verification.lowering.goals import Quality
from onnxopt.verification.lowering.quality import worst

_SECONDS = 60.0  # of measuring; a large model has more products than that


class Sensitivity:
    """Measures when it is asked for the first time. alone: signal to noise in dB of the worst output, by node.

    run(node): quality of the model with this product quantized and no other one.
    """

    def __init__(self, products: Sequence[Product], run: Callable[[str], Sequence[Quality]]) -> None:
        self.alone: dict[str, float] = {}
        self._products, self._run = products, run
        self._losses: Mapping[str, float] = {}

    def loss(self, node: str) -> float:
        """The noise that a product makes at the outputs, for each element of its weight.

        What a product saves is nearly proportional to these elements: bytes where few rows multiply them, operations
        where many do.
        """
        if not self._losses:
            noise = self._noise()
            self._losses = {p.node: noise[p.node] / (p.rows * p.columns) for p in self._products}
        return self._losses[node]

    def _noise(self) -> dict[str, float]:
        """Noise of each product to the signal; estimated by its weight where there was no time to measure it."""
        noise: dict[str, float] = {}
        deadline = time.monotonic() + _SECONDS
        for product in sorted(self._products, key=lambda p: -p.noise):
            if time.monotonic() > deadline:
                break
            row = worst(self._run(product.node))
            noise[product.node] = _to_signal(row)
            if row is not None and row.sqnr_db is not None:
                self.alone[product.node] = row.sqnr_db
        weight_noise = sum(p.noise for p in self._products if p.node in noise)
        measured = sum(n for n in noise.values() if math.isfinite(n))
        times = measured / weight_noise if weight_noise and measured else 1.0
        return {p.node: noise.get(p.node, p.noise * times) for p in self._products}


def _to_signal(row: Quality | None) -> float:
    if row is None or (row.sqnr_db is None and not row.invalid):
        return 0.0
    return math.inf if row.invalid or row.sqnr_db is None else 10.0 ** (-row.sqnr_db / 10.0)
