"""custom_ops/program/generated/costs.h: the numbers that the library reads, from the rows with a C++ type."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from onnxopt.costs.measured import FOLDER, Row, family

PATH = Path("custom_ops/program/generated/costs.h")
_WIDTH = 120


def text() -> str:
    """The header. It is as clang-format would write it."""
    lines = [
        "#pragma once",
        "",
        "// Written by custom_ops/generate.py from onnxopt/costs/data/*.json, which say where each number comes from.",
        "",
        "#include <cstddef>",
        "#include <cstdint>",
        "",
    ]
    for name in sorted(path.stem for path in FOLDER.glob("*.json")):
        rows = {key: row for key, row in family(name).rows.items() if row.cpp}
        if rows:
            lines += [f"namespace onnxopt::costs::{name} {{", ""]
            lines += [line for key, row in rows.items() for line in _constant(key, row)]
            lines += ["", f"}}  // namespace onnxopt::costs::{name}", ""]
    return "\n".join(lines)


def _constant(key: str, row: Row) -> Iterator[str]:
    yield from textwrap.wrap(f"{row.unit}: {row.what}", _WIDTH, initial_indent="// ", subsequent_indent="// ")
    name = "k" + "".join(part.capitalize() for part in key.split("_"))
    yield f"constexpr {row.cpp} {name} = {row.value};"
