"""The program `onnxopt`, also python -m onnxopt. Importing this module sets signal handlers: only a program may."""

import os
import signal

# ONNX Runtime from 1.31 on makes a device id and sends events, beginning when it is imported. It is silent in our
# commands and their child processes; 0 leaves it on.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Importing what a command needs takes a while, during which there is nothing to clean up: Ctrl-C ends the process
# at once, without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from onnxopt.tools import interrupts
from onnxopt.tools.cli import main


def run() -> None:
    """Run the command that sys.argv names."""
    try:
        main(obj=interrupts.install)
    except SystemExit as ended:
        interrupts.leave_runs(ended.code)
        raise


if __name__ == "__main__":
    run()
