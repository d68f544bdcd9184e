"""What tune knows so far, in a file beside the artifact: a run that was stopped, or killed, goes on from there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from onnxopt import files
from onnxopt.artifact.folder import replace_text

SCHEMA = 2
_STARTS = 2  # a trial that was begun so often and never ended takes the process down


@dataclasses.dataclass(frozen=True)
class Trial:
    """One value of one knob against the settings that were best then.

    outcome: "faster" (taken), "not faster", "wrong" (outputs differ), "failed" (ORT refuses it, or it crashed).
    settings: hash of what it was tried on. ratio: time of the best so far over its own; None where it was not timed.
    """

    knob: str
    value: Any
    settings: str
    outcome: str
    reason: str = ""
    ratio: float | None = None
    error: float | None = None
    ms: float | None = None


class State:
    """The trials of one artifact, device, release of ORT and case; written after every one of them.

    key: what the figures hold for. A file with another key is not used, and `stale` says so.
    """

    def __init__(self, path: Path, key: dict[str, Any]):
        self.path, self.key = path, key
        self.trials: list[Trial] = []
        self.noise: float | None = None
        self.kernels_measured = False  # whether the library has measured all of its kernels
        self.seconds = 0.0
        self.stale = False
        self._starts: dict[str, int] = {}
        self._read()
        self.resumed = len(self.trials)

    def earlier(self, knob: str, value: Any, settings: str) -> Trial | None:
        """The trial of this value on these settings, if there was one; a failed one where it crashed before."""
        trial = next((t for t in self.trials if (t.knob, t.value, t.settings) == (knob, value, settings)), None)
        if trial is None and self._starts.get(_name(knob, value, settings), 0) >= _STARTS:
            trial = Trial(knob, value, settings, "failed", f"ended the process {_STARTS} times")
            self.add(trial)
        return trial

    def begin(self, knob: str, value: Any, settings: str) -> None:
        """Note that a trial begins: should it take the process down, the next run knows which one did."""
        name = _name(knob, value, settings)
        self._starts[name] = self._starts.get(name, 0) + 1
        self.write()

    def give_up(self, knob: str, value: Any, settings: str) -> None:
        """Note that a trial was stopped from outside, so that it may begin again."""
        self._starts.pop(_name(knob, value, settings), None)
        self.write()

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._starts.pop(_name(trial.knob, trial.value, trial.settings), None)
        self.write()

    def write(self) -> None:
        """In one step: a reader finds the old file or the new one."""
        document = {
            "schema": SCHEMA,
            "key": self.key,
            "noise": self.noise,
            "kernels_measured": self.kernels_measured,
            "seconds": round(self.seconds, 3),
            "starts": self._starts,
            "trials": [dataclasses.asdict(t) for t in self.trials],
        }
        replace_text(self.path, json.dumps(document, indent=1))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            document = json.loads(files.read_text(self.path))
            if document["schema"] != SCHEMA or document["key"] != self.key:
                self.stale = True
                return
            self.trials = [Trial(**row) for row in document["trials"]]
            self.noise, self.seconds = document["noise"], document["seconds"]
            self.kernels_measured, self._starts = document["kernels_measured"], document["starts"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            self.stale = True  # written by another version, or not by tune


def _name(knob: str, value: Any, settings: str) -> str:
    return f"{knob}={value} on {settings}"
