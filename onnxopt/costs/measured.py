"""The files of measured numbers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_MEASURED = {"gpu", "date", "results"}


@functools.cache
def newest(family: str) -> dict[str, Any]:
    """The numbers of a family on the newest architecture that was measured. ValueError names what is wrong."""
    by_arch = parse(json.loads((FOLDER / f"{family}.json").read_text("utf-8")), family)
    return by_arch[max(by_arch, key=lambda arch: int(arch.removeprefix("sm_")))]


def parse(document: dict[str, Any], family: str) -> dict[str, dict[str, Any]]:
    """The numbers by architecture. ValueError where a file does not say on which GPU they were measured, and when."""
    for arch, section in document["archs"].items():
        if section["measured"].keys() != _MEASURED or not all(section["measured"].values()):
            raise ValueError(f"{family}.json, {arch}: measured must state {', '.join(sorted(_MEASURED))}")
    return {arch: section["values"] for arch, section in document["archs"].items()}
