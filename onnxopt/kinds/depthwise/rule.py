"""The measured table rule.json."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).with_name("rule.json")


@functools.cache
def table() -> dict[str, Any]:
    """The numbers of the newest architecture that was measured; the field `how` says what they mean."""
    archs = json.loads(_TABLE.read_text())["archs"]
    newest: dict[str, Any] = archs[max(archs, key=lambda arch: int(arch.removeprefix("sm_")))]
    return newest
