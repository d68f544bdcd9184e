"""What a check returns, and what it examines."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from onnxopt.artifact.manifest import Manifest

# ok: as expected. note: worth knowing, nothing to fix. problem: something does not work, or is slower than it could be.
Status = Literal["ok", "note", "problem"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check. check: its name. message: what it observed. fix: what to do; every problem has one."""

    check: str
    status: Status
    message: str
    fix: str = ""

    def verify(self) -> None:
        """ValueError for a problem without a fix."""
        if self.status == "problem" and not self.fix:
            raise ValueError(f"{self.check}: a problem without a fix: {self.message}")


@dataclasses.dataclass(frozen=True)
class Subject:
    """The artifact to examine. opened: whether its files are as its manifest says."""

    folder: Path
    manifest: Manifest
    opened: bool
