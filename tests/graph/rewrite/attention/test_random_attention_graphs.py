"""Random graphs of attention, of many exporters' forms, compute the same once they are rewritten, and become operators.

`pytest -m exhaustive` runs many more than the others do.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from cases.models import fuse, outline
from onnxopt.graph.normalize import normalize
from onnxopt.graph.rewrite import rewrite
from onnxopt.kinds.flash_attention.kind import FLASH_ATTENTION
from tests.support.attention.attention_building import Case
from tests.support.attention.random_attention_layouts import FORMS, drawn

SEEDS = 5 * len(FORMS)  # that every run tries
MANY, STEP = 700, 50
REFERENCE = 4  # of so many graphs one is compared with onnx's reference too, and one has its kernels in functions
LIMITS = {np.dtype(np.float16): 2e-2, np.dtype(np.float32): 1e-4}  # of the largest element, or of 1


def _run(model: onnx.ModelProto, feeds: Sequence[dict[str, np.ndarray]]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(session.run(None, feed)[0]) for feed in feeds]


def _distance(found: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> float:
    """The largest difference, as a part of the largest element where that is more than 1."""
    assert [f.shape for f in found] == [e.shape for e in exact]
    assert all(np.isfinite(f).all() for f in found)
    return max(
        float(np.abs(f.astype(np.float64) - e).max() / max(1.0, np.abs(e).max()))
        for f, e in zip(found, exact, strict=True)
    )


def _examined(seed: int, folder: Path) -> tuple[Case, int, int]:
    """The graph, and how many attentions became operators, and regions of our kernel."""
    case, exact = drawn(seed), drawn(seed, exact=True)
    model = normalize(ir.from_proto(case.model)).model
    done = rewrite(model, folder, usual={"T": 5, "K": 7})
    expected, original = _run(exact.model, exact.feeds), _run(case.model, case.feeds)
    if seed % REFERENCE == 0:
        reference = ReferenceEvaluator(exact.model)
        assert _distance([reference.run(None, exact.feeds[0])[0]], expected[:1]) < 1e-4, case.forms
    found = _run(ir.to_proto(model), case.feeds)
    # 16 bits round wherever products are summed in another order, so the original's own error counts.
    limit = LIMITS[original[0].dtype] + 2 * _distance(original, expected)
    assert _distance(found, expected) <= limit, (seed, case.forms, done.applied)
    plan = fuse(model, usual={"T": 5, "K": 7})
    regions = sum(region.kind is FLASH_ATTENTION for region in plan.regions)
    if seed % REFERENCE == 1:  # the functions' bodies, which ONNX Runtime inlines
        outline(model, plan)
        assert _distance(_run(ir.to_proto(model), case.feeds), expected) <= limit, (seed, case.forms, done.applied)
    return case, done.applied["attention"] + done.applied["heads"], regions


def test_results_stay_and_attention_is_found(tmp_path: Path) -> None:
    _check(range(SEEDS), tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, MANY, STEP))
def test_results_stay_in_many_graphs(first: int, tmp_path: Path) -> None:
    _check(range(first, first + STEP), tmp_path)


def _check(seeds: range, folder: Path) -> None:
    seen = collections.Counter[str]()
    for seed in seeds:
        case, operators, regions = _examined(seed, folder)
        if not {"size 4", "size 20"} & set(case.forms):  # zeros fill others up where that pays
            seen["attentions"] += case.layers
            seen["operators"] += operators
        if "dtype float16" in case.forms:  # heads of any size
            seen["in 16 bits"] += case.layers
            seen["regions"] += regions
    assert seen["operators"] >= 0.9 * seen["attentions"], seen
    assert seen["regions"] >= 0.7 * seen["in 16 bits"], seen


def test_equal_seeds_give_equal_graphs() -> None:
    assert all(drawn(seed).model == drawn(seed).model for seed in range(len(FORMS)))
