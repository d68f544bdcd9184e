"""Idle threads leave their core to other processes: those of ONNX Runtime would spin for 50 ms after each run."""

from __future__ import annotations

import functools
import os
from typing import Any

import onnxruntime as ort

_SPINNING = "session.intra_op.allow_spinning"
_opened = ort.InferenceSession.__init__


@functools.wraps(_opened)
def _without_spinning(session: Any, model: Any, sess_options: Any = None, *arguments: Any, **options: Any) -> None:
    chosen = sess_options or ort.SessionOptions()
    try:
        chosen.get_session_config_entry(_SPINNING)  # as the test asks for it
    except RuntimeError:
        chosen.add_session_config_entry(_SPINNING, "0")
    _opened(session, model, chosen, *arguments, **options)


def stop_spinning() -> None:
    """In all sessions of this process whose options say nothing about it, and in numpy and torch of those it starts."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    ort.InferenceSession.__init__ = _without_spinning
