"""First runs of a session in a process of its own, because the library reads its environment variables only once.

The first session asks heuristics for sizes that may come, which takes seconds. The second one measures: it may be
stopped before its end, where there is no more time.

`python -m onnxopt.tools.tuning.first_run` reads pickled arguments from stdin, which kernels.MeasuredKernels writes.
"""

from __future__ import annotations

import os
import pickle
import sys

from onnxopt.runtime import configuration
from onnxopt.runtime.bound_run import BoundRun
from onnxopt.runtime.sessions import RunError

_SIZES = "ONNXOPT_TUNE_SIZES"


def main() -> int:
    arguments = pickle.load(sys.stdin.buffer)
    try:
        for sizes_alone in (True, False):
            os.environ.pop(_SIZES, None)
            if sizes_alone:
                os.environ[_SIZES] = "1"
            session = configuration.open_session(**arguments["run"])
            BoundRun(session, arguments["feeds"], arguments["run"]["data"]["provider"])
    except RunError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
