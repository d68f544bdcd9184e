"""Figures of quality, computed by hand, and what an output misses."""

from __future__ import annotations

import numpy as np
import pytest

from onnxopt.errors import UsageError
from onnxopt.verification.lowering.goals import Goals, Quality
from onnxopt.verification.lowering.quality import qualities


def test_figures_of_logits() -> None:
    """Of 2 rows one keeps its greatest element, and the other has it in second place; hand-computed divergence."""
    reference = np.zeros((2, 10), np.float32)
    reference[0, 3], reference[1, 4] = 2.0, 1.0
    actual = reference.copy()
    actual[1, 5] = 1.5
    (row,) = qualities("P", False, [({"y": reference}, {"y": actual})])
    assert (row.argmax, row.top5) == (0.5, 1.0)
    p, q = (np.exp(x) / np.exp(x).sum() for x in (reference[1].astype(float), actual[1].astype(float)))
    assert row.kl == pytest.approx(float((p * np.log(p / q)).sum()) / 2)
    (same,) = qualities("P", False, [({"y": reference}, {"y": reference})])
    assert (same.sqnr_db, same.kl, same.argmax) == (None, 0.0, 1.0)
    (short,) = qualities("P", False, [({"y": reference[:, :9]}, {"y": actual[:, :9]})])
    assert short.top5 is None and short.kl is None


def test_what_an_output_misses() -> None:
    row = Quality("P", False, "y", 1, 20.0, 0.99, 0.9, top5=0.95, kl=0.01)
    reached = Goals(20.0, 0.99, 0.9, 0.95, 0.01)
    assert reached.reached_by([row]) and reached.stated["max_kl"] == 0.01
    for goals, words in (
        (Goals(min_sqnr=20.1), "20.0 dB from float32, at least 20.1 dB"),
        (Goals(min_cosine=0.991), "cosine 0.9900000"),
        (Goals(min_top1=0.91), "top-1 agrees in 90.00%"),
        (Goals(min_top5=0.96), "top-5 agrees in 95.00%"),
        (Goals(max_kl=0.009), "KL 1.00e-02 nats"),
    ):
        assert words in goals.missed(row)
    assert "2 elements" in Goals().missed(Quality("P", False, "y", 1, None, None, None, invalid=2))
    assert "as one of the two is 0" in Goals(min_cosine=0.0).missed(Quality("P", False, "y", 1, 0.0, None, 1.0))
    assert Goals(min_cosine=0.9).reached_by([Quality("P", False, "y", 1, None, None, None)])  # both are 0
    with pytest.raises(UsageError, match="max_kl was asked for, and no output has"):
        Goals(max_kl=1.0).check_rows([Quality("P", False, "y", 1, 20.0, 0.99, 0.9)])
