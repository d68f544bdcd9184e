"""Processes of this machine, as /proc shows them."""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process started, and those that they did, with their command lines."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents.setdefault(int((path / "stat").read_text().rsplit(")", 1)[1].split()[1]), []).append(int(path.name))
        except OSError:  # it ended meanwhile
            continue
    found: dict[int, str] = {}
    pending = [pid]
    while pending:
        for child in parents.get(pending.pop(), []):
            pending.append(child)
            try:
                found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
