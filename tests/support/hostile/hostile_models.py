"""Awkward but valid models: whatever optimizers are known to break. Used by every test that runs models end to end.

MODELS maps a name to a builder that returns the model and a list of feeds, which cover several sizes of dynamic dims.
Every model runs in ONNX Runtime on the CPU. They are written in hostile_kinds.py, hostile_graphs.py, hostile_opsets.py.
"""

from __future__ import annotations

from tests.support.hostile import hostile_graphs, hostile_kinds, hostile_opsets
from tests.support.hostile.hostile_building import MODELS, Builder, Feeds, model_of, random_feeds, text, value

__all__ = ["MODELS", "OPSETS", "Builder", "Feeds", "model_of", "random_feeds", "text", "value"]

OPSETS = hostile_opsets.OPSETS
assert hostile_graphs
assert hostile_kinds
