"""What is at the place of an output: an artifact or an optimized folder of onnxopt, or what nobody may replace.

Imports neither ONNX nor pydantic: a run that finds its artifact done ends in a fraction of a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxopt import files
from onnxopt.errors import UsageError

MANIFEST = "manifest.json"
SIGNATURE = f"{MANIFEST}.minisig"
UNLISTED = (MANIFEST, SIGNATURE)  # the files that no manifest lists
# What an optimized folder of models has, beside its models:
RECORD_FOLDER = "onnxopt"
FOLDER_RECORD = f"{RECORD_FOLDER}/folder.json"


def record_of(output: Path) -> dict[str, Any] | None:
    """The JSON of an artifact's manifest, or of an optimized folder's record, not validated; None where it is neither.

    files: by path, each with its size. request: what it was made of (pipeline/rerun.py), where it says so.
    """
    for name in (MANIFEST, FOLDER_RECORD):
        try:
            document = json.loads(files.read_bytes(output / name, follow=False))
            sizes = [_size(row) for row in document["files"].values()]
            if isinstance(document["onnxopt"], str) and all(isinstance(size, int) for size in sizes):
                return dict(document)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    return None


def _size(row: Any) -> Any:
    """The size of a file: a manifest states it beside the hash."""
    return row["bytes"] if isinstance(row, dict) else row


def damage(output: Path, record: dict[str, Any]) -> str:
    """The first file that is missing or has another size than its record says, "" where there is none."""
    for name, row in record["files"].items():
        try:
            if (output / name).stat().st_size != _size(row):
                return f"{name} was changed"
        except (OSError, ValueError):  # a name that no file can have
            return f"{name} is missing"
    return ""


def check_replaceable(output: Path) -> None:
    """UsageError unless a folder is an artifact or an optimized folder, with no file but those that onnxopt wrote."""
    if output.is_symlink():
        raise UsageError(f"{output}: is a link, which is not replaced; name the folder itself")
    record = record_of(output)
    if record is None:
        raise UsageError(
            f"{output}: exists already and is no artifact; only what onnxopt wrote is replaced: remove it, or choose "
            "another output"
        )
    other = next((path for path in _paths(output) if path.relative_to(output).as_posix() not in record["files"]), None)
    if other is not None:
        raise UsageError(f"{other}: is no file of the artifact, and would be lost; move it, or choose another output")


def _paths(output: Path) -> Iterator[Path]:
    """Everything in a folder but folders and the files that no record lists."""
    ours = {output / name for name in (*UNLISTED, FOLDER_RECORD)}
    return (path for path in sorted(output.rglob("*")) if path.is_symlink() or not path.is_dir() if path not in ours)
