"""What a check says, and what checks look at."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from onnxopt.artifact.manifest import Manifest

# ok: as it should be. note: worth knowing, nothing to mend. problem: something does not work, or not as it could.
Status = Literal["ok", "note", "problem"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """check: what was looked at. message: what was found. fix: what to do, for every problem."""

    check: str
    status: Status
    message: str
    fix: str = ""

    def verify(self) -> None:
        """ValueError for a problem that leaves the reader alone."""
        if self.status == "problem" and not self.fix:
            raise ValueError(f"{self.check}: a problem without a fix: {self.message}")


@dataclasses.dataclass(frozen=True)
class Subject:
    """The artifact that is looked at. opened: whether its files are what its manifest says."""

    folder: Path
    manifest: Manifest
    opened: bool
