"""The program `onnxopt`, also python -m onnxopt. Importing this module sets signal handlers: only a program may."""

import os
import signal

# Importing what a command needs takes a while, during which there is nothing to clean up: Ctrl-C ends the process
# at once, without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from onnxopt import children
from onnxopt.tools import interrupts
from onnxopt.tools.cli import main

for name, value in children.QUIET.items():  # before a command imports ONNX Runtime
    os.environ.setdefault(name, value)


def run() -> None:
    """Run the command that sys.argv names."""
    try:
        main(obj=interrupts.install)
    except SystemExit as ended:
        interrupts.leave_runs(ended.code)
        raise


if __name__ == "__main__":
    run()
