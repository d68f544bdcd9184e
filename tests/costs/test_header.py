"""The header of the numbers that the library reads is the one that costs/header.py writes."""

from __future__ import annotations

import re
from pathlib import Path

from onnxopt.costs import header, measured

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(path.stem for path in measured.FOLDER.glob("*.json"))


def test_the_header_is_generated() -> None:
    assert (ROOT / header.PATH).read_text() == header.text(), "run python custom_ops/generate.py"


def test_every_number_in_the_header_is_read_by_the_library() -> None:
    sources = [
        path.read_text()
        for path in sorted((ROOT / "custom_ops").rglob("*.*"))
        if path.suffix in (".cc", ".h") and "generated" not in path.parts
    ]
    read = {use for text in sources for use in re.findall(r"\bcosts::(\w+::k\w+)", text)}
    of_family = {
        family: re.findall(rf"namespace onnxopt::costs::{family} {{(.*?)\n}}", header.text(), re.DOTALL)
        for family in FAMILIES
    }
    declared = {
        f"{f}::{name}"
        for f, texts in of_family.items()
        for t in texts
        for name in re.findall(r"constexpr \S+ (k\w+) =", t)
    }
    assert read == declared
