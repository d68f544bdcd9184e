"""The tables of cases, one a kind of kernel; forms of a kind that take other operands have tables of their own."""

from __future__ import annotations

import importlib
from pathlib import Path

from cases.table import Table

_MODULES = [importlib.import_module(f"cases.{path.stem}") for path in sorted(Path(__file__).parent.glob("*.py"))]
TABLES: tuple[Table, ...] = tuple(module.TABLE for module in _MODULES if hasattr(module, "TABLE"))
