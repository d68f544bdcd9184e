"""`python -m onnxopt.verification.emulation.run FOLDER N`: the process that runs emulated kernels, from job N on.

The stand-in for the CUDA driver lies in FOLDER. FOLDER/jobs has the library, and for each job (model, inputs of each
case), pickled. What case K of job J gives is pickled into FOLDER/J.K as soon as it is there: arrays by name, or the
text of ONNX Runtime's error. The parent process made the folder for this alone.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import RunError


def main(folder: Path, first: int) -> None:
    """Run the jobs from the number `first` on, each case in a session of its own."""
    library, jobs = pickle.loads((folder / "jobs").read_bytes())
    for number, (model, cases) in enumerate(jobs):
        if number < first:
            continue
        for k, feeds in enumerate(cases):
            result = _run(model, library, feeds)
            partial = folder / f"{number}.{k}.partial"
            partial.write_bytes(pickle.dumps(result))
            partial.rename(folder / f"{number}.{k}")


def _run(model: Path, library: Path, feeds: dict[str, Any]) -> dict[str, Any] | str:
    try:
        return sessions.run(sessions.open_session(model, library=library), feeds)
    except RunError as error:
        return str(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
