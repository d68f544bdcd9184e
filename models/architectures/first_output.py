"""The form in which models of one input are exported."""

from __future__ import annotations

import torch


class FirstOutput(torch.nn.Module):
    """One positional input "x" and the first output."""

    def __init__(self, model: torch.nn.Module, key: str) -> None:
        super().__init__()
        self.m, self.key = model, key

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.m(**{self.key: x})[0]
