"""One run of a session in a process of its own, because the library reads its environment variables only once.

`python -m onnxopt.tools.tuning.first_run` reads pickled arguments from stdin, which kernels.MeasuredKernels writes.
"""

from __future__ import annotations

import pickle
import sys

from onnxopt.runtime import configuration
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.sessions import RunError


def main() -> int:
    arguments = pickle.load(sys.stdin.buffer)
    try:
        session = configuration.open_session(**arguments["run"])
        BoundRun(session, arguments["feeds"], arguments["run"]["data"]["provider"])
    except RunError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
