"""Functions of onnxopt/ take few parameters; what rewrite rules take is named by their patterns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.project.test_rooms import FILES, tree_of

_LONGEST, _LONG, _MAX_LONG = 8, 6, 25
_OF_RULES = {"pattern", "check", "rewrite"}


def _counts() -> Iterator[tuple[int, str]]:
    for module in FILES:
        for node in ast.walk(tree_of(module)):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if node.name in _OF_RULES and module.startswith("onnxopt.graph.rewrite."):
                continue
            of = node.args
            names = [argument.arg for argument in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
            names += [extra.arg for extra in (of.vararg, of.kwarg) if extra is not None]
            yield len([name for name in names if name not in ("self", "cls")]), f"{module}.{node.name}"


def test_parameter_lists_are_short() -> None:
    counts = sorted(_counts(), reverse=True)
    assert not [row for row in counts if row[0] > _LONGEST]
    long = [row for row in counts if row[0] > _LONG]
    assert len(long) <= _MAX_LONG, long
