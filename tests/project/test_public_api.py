"""The names of onnxopt itself: all are there, and none costs anything before it is used.

typed_caller.py uses them; `make check` finds that they are typed.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnxopt

PACKAGE = Path(onnxopt.__file__).parent


def test_every_name_is_there() -> None:
    for name in onnxopt.__all__:
        assert getattr(onnxopt, name) is not None
    assert dir(onnxopt) == sorted(onnxopt.__all__)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        onnxopt.optimise  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_see_what_is_imported() -> None:
    """The imports for type checkers and the table of modules name the same things, and `__all__` has them all."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == {name: f"onnxopt.{module}" for name, module in onnxopt._MODULES.items()}
    errors = {name for name in onnxopt.__all__ if name.endswith("Error")}
    assert sorted({*typed, *errors, "__version__"}) == sorted(onnxopt.__all__)


def test_no_module_hides_a_name() -> None:
    """Importing onnxopt.x sets the attribute x of the package, in place of what was there."""
    assert not {path.stem for path in PACKAGE.iterdir()} & set(onnxopt.__all__)


def test_importing_onnxopt_imports_nothing_heavy() -> None:
    command = [sys.executable, "-c", "import sys, onnxopt; print(*sys.modules)"]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.split()
    assert "onnxopt" in loaded
    assert not {"click", "numpy", "onnx", "onnx_ir", "onnxruntime", "pydantic", "sympy"} & set(loaded)


@pytest.mark.parametrize(
    ("before", "after", "young"),
    [
        ("", "gc.isenabled() and not gc.get_freeze_count()", False),
        ("gc.freeze()", "gc.isenabled() and gc.get_freeze_count()", True),  # the caller's objects stay frozen
        ("gc.disable()", "not gc.isenabled() and not gc.get_freeze_count()", True),
    ],
)
def test_what_is_imported_on_first_use_is_old_at_once(before: str, after: str, young: bool) -> None:
    """No collection goes through it until one goes through everything; the collector is as it was."""
    program = f"""
import gc, onnxopt
{before}
onnxopt.Options
assert {after}
made = onnxopt.Options.__dataclass_fields__
print(not any(row is made for row in gc.get_objects(generation=2)))
"""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert printed == f"{young}\n"
