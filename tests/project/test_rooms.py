"""The rooms of onnxopt/ and which imports they allow, read from the source."""

from __future__ import annotations

import ast
import collections
import functools
import graphlib
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.conftest import LONGEST

PACKAGE = Path(__file__).resolve().parents[2] / "onnxopt"
# A module imports from its own room, from rooms to the left, and from BASE, the modules that belong to no room.
ROOMS = (
    "program",
    "costs",
    "graph",
    "fusion",
    "kinds",
    "codegen",
    "runtime",
    "verification",
    "artifact",
    "pipeline",
    "tools",
)
BASE = {
    "errors", "paths", "files", "caches", "versions", "background", "phases", "leftovers", "children",
    "onnxruntime_package", "option_fields", "printable", "imports", "text_table",
}  # fmt: skip
# Which kinds import which others, and why; no kind else does.
KIND_IMPORTS = {
    ("block", "convolution"): "its steps are convolutions with their epilogues",
    ("gemm", "convolution"): "an activation of several nodes is the same after both",
    ("rowwise", "pointwise"): "it fuses pointwise regions, with their index operations",
    ("scan", "pointwise"): "it names access modes",
    ("scan", "rowwise"): "it has the rows and the launch shapes of one",
    ("squeeze_excite", "depthwise"): "its kernel computes the map too",
    ("squeeze_excite", "gemm"): "it is two products",
}
FACE = {"onnxopt", "onnxopt.__main__"}  # what users import and run; no module of a room imports it
FILES = {
    ".".join(("onnxopt", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text("utf-8"))


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules of onnxopt that the import statements of a tree name; `from package import module` is the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, ast.unparse(node)
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in FILES else str(node.module) for name in inner]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "onnxopt")


def rank(module: str) -> int:
    """The place of a module's room in ROOMS; -1 for BASE."""
    top = module.split(".")[1]
    return -1 if top in BASE else ROOMS.index(top)


def test_a_module_imports_no_room_to_its_right() -> None:
    wrong = [
        f"{module} may not import {name}"
        for module in sorted(FILES.keys() - FACE)
        for name in imports(tree_of(module))
        if name in FACE or rank(name) > rank(module)
    ]
    assert not wrong, "\n".join([*wrong, f"the order is {' <- '.join(ROOMS)}"])


def test_kinds_import_each_other_where_a_reason_is_stated() -> None:
    crossings = [
        (module, name)
        for module in sorted(FILES)
        for name in imports(tree_of(module))
        if module.startswith("onnxopt.kinds.") and name.startswith("onnxopt.kinds.")
        if module.split(".")[2] != name.split(".")[2]
    ]
    assert {(module.split(".")[2], name.split(".")[2]) for module, name in crossings} == set(KIND_IMPORTS)
    texts = {(module.split(".")[2], name) for module, name in crossings if name.endswith(".cuda")}
    assert texts == {("squeeze_excite", "onnxopt.kinds.depthwise.cuda")}


def _tops(trees: Iterable[ast.Module]) -> set[str]:
    """The first names of the modules that files import at their top: the package imports nowhere else."""
    nodes = [node for tree in trees for node in tree.body]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_cases_import_the_package_and_nothing_imports_them_but_tests_and_benchmarks() -> None:
    assert not _tops(tree_of(module) for module in FILES) & {"benchmarks", "cases", "tests"}
    cases = (PACKAGE.parent / "cases").glob("*.py")
    assert not _tops(ast.parse(path.read_text("utf-8")) for path in cases) & {"benchmarks", "tests"}


def test_no_two_modules_import_each_other_directly_or_through_others() -> None:
    graph = {module: {name for name in imports(tree_of(module)) if name != module} for module in FILES}
    graph["onnxopt.kinds"] |= {m for m in FILES if m.startswith("onnxopt.kinds.") and m.endswith(".kind")}  # by name
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import circle: {' <- '.join(error.args[1])}")


def test_modules_import_each_other_at_the_top_of_the_file_only() -> None:
    """An import inside a function, or for the type checker alone, hides what a module stands on."""
    wrong = []
    for module in sorted(FILES.keys() - FACE):
        tree = tree_of(module)
        body: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        hidden = set(imports(tree)) - set(imports(ast.Module(body, [])))
        wrong += [f"{module} imports {name} below its top" for name in sorted(hidden)]
    assert not wrong, "\n".join(wrong)


def test_the_longest_files_of_tests_are_there() -> None:
    """Or the workers would begin with others, and one of them end long after the rest."""
    assert not [name for name in LONGEST if not (PACKAGE.parent / "tests" / name).is_file()]


def test_folders_have_at_most_25_files() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=PACKAGE.parent, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a checkout")
    counts = collections.Counter(str(Path(name).parent) for name in listed.stdout.splitlines())
    assert not {folder: count for folder, count in counts.items() if count > 25}
