"""The tutorial's notebook runs, and prints what its page shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onnxopt.runtime.predicted import ERROR

ROOT = Path(__file__).resolve().parents[2]


def printed(cell: dict) -> str:
    """What a cell of code printed, and the value of its last line."""
    texts = (o["text"] if o["output_type"] == "stream" else o["data"]["text/plain"] for o in cell["outputs"])
    return "".join(texts)


def headings(text: str) -> list[str]:
    """The lines that begin a part of what `explain` prints."""
    return [line for line in text.splitlines() if line and not line.startswith(" ")]


def test_the_notebook_runs(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install = 'is not installed; run: pip install -e ".[dev]"'
    nbformat = pytest.importorskip("nbformat", reason=f"nbformat {install}")
    nbclient = pytest.importorskip("nbclient", reason=f"nbclient {install}")
    pytest.importorskip("ipykernel", reason=f"ipykernel {install}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(ROOT / "docs" / "tutorial.ipynb", as_version=4)
    before = [printed(cell) for cell in notebook.cells if cell.cell_type == "code"]
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    after = [printed(cell) for cell in notebook.cells if cell.cell_type == "code"]
    explained = next(k for k, text in enumerate(before) if "fused kernels, called by" in text)
    assert headings(after[explained]) == headings(before[explained])  # names and predicted figures may differ
    assert f"a roofline: {ERROR}\n" in before[explained]
    assert "calls  launches" in after[explained]  # the table is text in a notebook, too
    assert after[:explained] + after[explained + 1 :] == before[:explained] + before[explained + 1 :]
