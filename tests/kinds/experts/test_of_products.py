"""Mixtures of experts whose products cuBLASLt computes, one expert after the other: a stand-in, against float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cases.experts import Case, fused, multiplied_by_cublaslt
from onnxopt.kinds.experts import cuda
from onnxopt.program.experts import Experts
from tests.support.emulation import emulated_library
from tests.support.fakes import idle_gpu
from tests.support.wrong_bodies import with_wrong_bodies

pytestmark = pytest.mark.usefixtures("library")
SORTED = {"route128", "sort", "activate_sorted", "join_sorted"}


def _launched(
    folder: Path,
    case: Case,
    least_rows: int,
    *feeds: dict[str, np.ndarray],
    multiplied: bool = True,
    captured: bool = False,
) -> tuple[set[str], list[str]]:
    """Run one session over these feeds; the entry points that ran, and "rows columns depth" of cuBLASLt's products.

    multiplied: a stand-in for cuBLASLt is there.
    """
    found = fused(case)
    libraries = [emulated_library.stand_in(idle_gpu.MULTIPLIES, "libcublasLt.so.13")] if multiplied else []
    (kernel,) = found.kernels
    changed = multiplied_by_cublaslt(kernel, least_rows)
    results, symbols = emulated_library.run(
        folder, with_wrong_bodies(found.optimized), [changed], feeds, libraries=libraries, captured=captured
    )
    for feed, result in zip(feeds, results, strict=True):
        of = dataclasses.replace(case, tokens=len(feed["x"]))
        assert (error := of.worst(result["y"], of.expected(feed))) <= 1, (of, error)
    path = folder / "products"
    products = path.read_text().splitlines() if path.exists() else []
    return {s.removeprefix(f"{kernel.name}_") for s in symbols}, products


def _feeds(case: Case, tokens: int, crowded: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    feeds = dataclasses.replace(case, tokens=tokens).feeds()
    feeds["scores"][:, list(crowded)] += 100  # all tokens choose these
    return feeds


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 4, 2, 72, 40, "float16"), Case(1, 5, 3, 16, 24, "float32", "squared", plain=True),
        Case(1, 3, 2, 40, 72, "bfloat16", "clamped", wide=False, biased=True, interleaved=True),
        Case(1, 4, 1, 24, 16, "float16", "gelu", biased=True),
    ],
    ids=str,
)  # fmt: skip
def test_products_of_each_expert(case: Case, tmp_path: Path) -> None:
    """One session over any number of tokens: experts without rows are left out, and rows behind are written twice."""
    feeds = [_feeds(case, 1), _feeds(case, 90), _feeds(case, 150, tuple(range(1, 1 + case.chosen)))]
    launched, products = _launched(tmp_path / "run", case, 0, *feeds)
    assert launched == SORTED
    wide = case.hidden * (2 if case.gated else 1)
    assert {p.split(" ", 1)[1] for p in products} == {f"{wide} {case.columns}", f"{case.columns} {case.hidden}"}
    assert (
        products[: 2 * case.chosen]
        == [f"64 {wide} {case.columns}"] * case.chosen + [f"64 {case.columns} {case.hidden}"] * case.chosen
    )
    assert products[-1] == f"192 {case.columns} {case.hidden}"  # 150 rows


def test_few_rows_are_ours(tmp_path: Path) -> None:
    """From 10 rows of an expert on average on cuBLASLt multiplies."""
    case = Case(1, 4, 2, 24, 16, "float16")
    assert _launched(tmp_path / "few", case, 10, _feeds(case, 19)) == ({"first32", "second32", "join"}, [])
    assert _launched(tmp_path / "many", case, 10, _feeds(case, 20))[0] == SORTED


def test_a_capture_does_not_wait(tmp_path: Path) -> None:
    case = Case(1, 4, 2, 24, 16, "float16")
    assert _launched(tmp_path / "run", case, 0, _feeds(case, 5), captured=True) == ({"first16", "second16", "join"}, [])


def test_without_cublaslt(tmp_path: Path) -> None:
    case = Case(1, 4, 2, 24, 16, "float16")
    assert _launched(tmp_path / "run", case, 0, _feeds(case, 5), multiplied=False) == (
        {"first16", "second16", "join"},
        [],
    )


@pytest.mark.parametrize(
    ("dtype", "columns", "hidden", "activation", "least"),
    [
        ("float16", 4096, 14336, "silu", 64), ("bfloat16", 2048, 4096, "silu", 120),
        ("float16", 2048, 768, "silu", 636), ("float16", 2048, 768, "squared", 954),
        ("float32", 1024, 2048, "silu", 32), ("float32", 4096, 14336, "silu", 16),
    ],
)  # fmt: skip
def test_from_how_many_rows(dtype: str, columns: int, hidden: int, activation: str, least: int) -> None:
    """Sizes that were measured (benchmarks/notes: experts), but for the last ones of each dtype."""
    (kernel,) = fused(Case(1, dtype=dtype, activation=activation)).kernels
    meaning = kernel.program
    assert isinstance(meaning, Experts)
    assert cuda.least_rows(dataclasses.replace(meaning, columns=columns, hidden=hidden)) == least
