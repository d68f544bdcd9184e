"""The order of graph's parts: shapes <- placement <- passes <- layout <- rewrite.

Masks within rewrite stand on shapes alone. What finds sizes stands on these masks, which tell positions.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import onnxopt.graph

FOLDER = Path(onnxopt.graph.__file__).parent
# What each folder may import of graph: folders, and modules beside them that import no folder.
MAY_IMPORT = {
    "shapes": {"shapes"},
    "placement": {"placement", "shapes", "signature"},
    "passes": {"passes", "shapes", "placement", "codes", "match", "fused_domain"},
    "layout": {"layout", "passes", "shapes", "match", "codes", "coded_convolutions"},
    "precision": {"additive_masks", "precision", "passes", "branches", "match"},
    "sizes": {"sizes", "rewrite.masks", "passes", "shapes", "match"},
    "rewrite/masks": {"additive_masks", "rewrite.masks", "shapes"},
    "rewrite": {"additive_masks", "rewrite", "layout", "passes", "placement", "shapes", "match", "read", "refusal"},
}
WITHOUT_FOLDERS = (
    "additive_masks",
    "branches",
    "coded_convolutions",
    "codes",
    "match",
    "numeric_dims",
    "read",
    "write",
    "wire",
    "external_data",
    "fused_domain",
    "input_uses",
    "limits",
    "refusal",
    "signature",
    "text",
)


def imported(path: Path) -> set[str]:
    """The parts of graph that a file imports, as "shapes.dims"."""
    names: set[str] = set()
    for module, imports in re.findall(
        r"^from onnxopt\.graph(\S*) import (\([^)]*\)|.*)$", path.read_text("utf-8"), re.M
    ):
        names |= {module[1:]} if module else set(re.findall(r"\w+", imports))
    return names


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_folders_to_its_left_alone(folder: str) -> None:
    for path in (FOLDER / folder).rglob("*.py"):
        wrong = {name for name in imported(path) if not name.startswith(tuple(MAY_IMPORT[folder]))}
        assert not wrong, f"{path.relative_to(FOLDER)} may not import {wrong}"


@pytest.mark.parametrize("module", WITHOUT_FOLDERS)
def test_modules_that_folders_may_import_import_no_folder(module: str) -> None:
    assert imported(FOLDER / f"{module}.py") <= set(WITHOUT_FOLDERS)
