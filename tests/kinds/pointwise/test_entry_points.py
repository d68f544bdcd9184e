"""Variants: the mode letters that shapes foresee, and the general entry points behind them."""

from __future__ import annotations

import re

import pytest

from cases.models import fuse, outline
from onnxopt import paths
from onnxopt.fusion import cost
from onnxopt.fusion.region import Kernel
from onnxopt.kinds.pointwise.access_modes import Mode
from tests.support.graphs import graph


def _kernel(inputs: str, body: str = "a = Add(x, q)  y = Tanh(a)", dtype: str = "float") -> Kernel:
    model = graph(inputs, f"{dtype}[] y", body)
    (kernel,) = outline(model, fuse(model))
    return kernel


def _suffixes(kernel: Kernel) -> list[str]:
    return [v.symbol.removeprefix(kernel.name + "_") for v in kernel.variants]


@pytest.mark.parametrize(
    ("x", "q", "modes"),
    [
        ("[2, 3, 4, 5]", "[2, 3, 4, 5]", "FF"),
        ("[2, 3, 4, 5]", "", "FS"),
        ("[2, 3, 4, 5]", "[1]", "FS"),
        ("[2, 3, 4, 5]", "[1, 1, 1, 1]", "FS"),
        ("[2, 3, 4, 5]", "[5]", "Fr"),  # bias
        ("[2, 3, 4, 5]", "[4, 5]", "FR"),
        ("[2, 3, 4, 5]", "[1, 1, 4, 5]", "FR"),
        ("[2, 3, 4, 5]", "[3, 1, 1]", "FC"),  # per channel
        ("[2, 3, 4, 5]", "[2, 1, 1, 1]", "FC"),
        ("[2, 3, 4, 5]", "[2, 3, 1, 1]", "FC"),
        ("[2, 3, 4, 5]", "[3, 1, 5]", "Ft"),  # a mask over batch and keys
        ("[2, 3, 4, 5]", "[2, 1, 4, 1]", "Ft"),
        ("[2, 3, 4, 5, 6]", "[2, 1, 4, 1, 6]", "FG"),
        ("[1, 3, 4, 5]", "[3, 1, 1]", "FC"),
        ("[1, 3, 1, 5]", "[3, 5]", "tr"),  # both are broadcast: the domain is [1, 3, 3, 5]
        ("[1, 3, 1, 1]", "[3, 1, 1]", "FF"),
        ("[5]", "[2, 3, 4, 5]", "rF"),
        ("[3, 1]", "[1, 4]", "CR"),
        ("[N, 8]", "[8]", "FR"),
        ("[N, M, 8]", "[M, 8]", "FR"),
        ("[N, 8]", "[N, 1]", "FC"),
        ("[N, 8]", "[N, 8]", "FF"),
        ("[?, 8]", "[8]", "FR"),  # x has the shape of the result, whatever it is
        ("[N, 8]", "[M, 8]", None),
        ("[N, 8]", "[?, 8]", None),
        ("[]", "[8]", None),
        ("[]", "", "FS"),
    ],
)
def test_modes(x: str, q: str, modes: str | None) -> None:
    kernel = _kernel(f"float{x} x, float{q} q")
    special = [v.modes for v in kernel.variants if not v.symbol.endswith(("_strided", "_strided64"))]
    assert special == ([] if modes is None else [modes])


@pytest.mark.parametrize(
    ("x", "q", "suffixes"),
    [
        ("[4, 8]", "[4, 8]", ["contiguous_FF", "strided"]),
        ("[4, 8]", "[8]", ["row_FR", "strided"]),
        ("[4, 8]", "[4, 1]", ["column_FC", "strided"]),
        ("[2, 3, 4, 5, 6]", "[2, 1, 4, 1, 6]", ["strided_FG", "strided"]),
        ("[N, 8]", "[8]", ["row_FR", "strided", "strided64"]),
        ("[N, 8]", "[M, 8]", ["strided", "strided64"]),
        ("[65536, 32768]", "[32768]", ["row_FR", "strided", "strided64"]),  # 2^31 elements
        ("[65536, 32767]", "[32767]", ["row_Fr", "strided"]),
    ],
)
def test_entry_points(x: str, q: str, suffixes: list[str]) -> None:
    kernel = _kernel(f"float{x} x, float{q} q")
    assert _suffixes(kernel) == suffixes
    assert all(v.symbol.isidentifier() for v in kernel.variants)
    assert [v.index for v in kernel.variants] == [64 if s == "strided64" else 32 for s in suffixes]


@pytest.mark.parametrize(("dtype", "vector"), [("float16", 8), ("float", 4), ("double", 2)])
def test_a_vector_is_16_bytes(dtype: str, vector: int) -> None:
    kernel = _kernel(f"{dtype}[4, 8] x, {dtype}[4, 8] q", dtype=dtype)
    assert {v.vector for v in kernel.variants} == {vector}


def test_the_widest_operand_decides_the_vector() -> None:
    kernel = _kernel("float16[4, 8] x", "a = Cast<to = 11>(x)  y = Neg(a)", dtype="double")
    assert kernel.variants[0].vector == 2


def test_the_most_frequent_modes_come_first_and_few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "TINY_BYTES", 0)
    uses = ["[4, 8]", "[8]", "[8]", "[4, 1]", "[4, 1]", "[4, 1]", "[1]"]
    inputs = ", ".join(f"float[4, 8] x{k}, float{dims} q{k}" for k, dims in enumerate(uses))
    body = " ".join(f"a{k} = Add(x{k}, q{k})  b{k} = Tanh(a{k})  s{k} = Hardmax(b{k})" for k in range(len(uses)))
    outputs = ", ".join(f"float[4, 8] s{k}" for k in range(len(uses)))
    model = graph(inputs, outputs, body)
    (kernel,) = outline(model, fuse(model))
    assert [v.modes for v in kernel.variants] == ["FC", "FR", "FF", "**"]


def test_the_library_and_the_kernels_have_the_same_access_modes() -> None:
    """One table in Python and one header that C++ and CUDA read: the same letters under the same names."""
    text = (paths.cuda_kernels() / "device" / "access_modes.h").read_text()
    header = dict(re.findall(r"^  k(\w+) = '(.)',$", text, re.MULTILINE))
    assert header == {mode.name.title().replace("_", ""): mode.value for mode in Mode}
