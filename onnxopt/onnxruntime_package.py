"""Whether exactly one build of ONNX Runtime is installed.

The builds are packages of different names with one module, `onnxruntime`: installing a second overwrites files of the
first, and removing either one takes files that the other needs.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

BUILDS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino")


class Fault(NamedTuple):
    """What is wrong with the installation, and what to do; as text both in one line."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def require_one() -> None:
    """As `onnxopt` is imported: ImportError where there is no ONNX Runtime, a warning where several are installed.

    The command says the same in a line of its own (tools/cli.py), so nothing happens in its process.
    """
    if _is_the_command():
        return
    if fault := missing():
        raise ImportError(str(fault), name="onnxruntime")
    if fault := doubled():
        warnings.warn(str(fault), RuntimeWarning, stacklevel=3)


def missing() -> Fault | None:
    """Why ONNX Runtime cannot be imported; None where it can be."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None:
        remedy = "pip install onnxruntime-gpu, or pip install onnxruntime where there is no GPU"
        return Fault("ONNX Runtime is not installed", remedy)
    if spec.origin is None:  # a folder without __init__.py
        folders = list(spec.submodule_search_locations or ())
        installed = _installed(folders) or ("onnxruntime-gpu",)
        what = f"ONNX Runtime in {folders[0]} is incomplete, as after removing one of two builds"
        return Fault(what, f"pip install --force-reinstall --no-deps {installed[0]}")
    return None


def doubled() -> Fault | None:
    """Which builds lie over each other; None where there is at most one."""
    spec = importlib.util.find_spec("onnxruntime")
    names = _installed(list(spec.submodule_search_locations or ())) if spec is not None else ()
    if len(names) < 2:
        return None
    what = f"{' and '.join(names)} are both installed: they are one Python package and overwrite each other"
    return Fault(what, f"pip uninstall {' '.join(names)}, then install the one that is wanted")


def _is_the_command() -> bool:
    """Whether this process is the program `onnxopt` or python -m onnxopt, whose sys.argv[0] is "-m" so early."""
    name = Path(sys.argv[0]).name if sys.argv else ""
    return name == "onnxopt" or (name == "-m" and "onnxopt" in sys.orig_argv)


def _installed(folders: Sequence[str]) -> tuple[str, ...]:
    """The builds that pip knows beside the folders of the module. Reading names is faster than importlib.metadata."""
    beside = {path.name for folder in folders for path in Path(folder).parent.glob("onnxruntime*.dist-info")}
    names = {match[1].replace("_", "-") for name in beside if (match := re.match(r"(\w+)-\d", name))}
    return tuple(name for name in BUILDS if name in names)
