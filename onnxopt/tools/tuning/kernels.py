"""Measurements that the library makes itself: algorithms of matrix products, plans of convolutions, and entry points.

With ONNXOPT_GEMM_TUNE, ONNXOPT_CONV_TUNE and ONNXOPT_LAUNCH_TUNE set, the library measures every product, convolution
and kernel that has no entry yet when it first runs it, and writes the entry to a file
(custom_ops/kernel_file/measured/). Without them it reads such files beside itself; a file may hold entries of several
GPUs. Here a process of its own runs the model once with these variables set. Copies of the library with and without the
entries lie in folders of their own, so that sessions with either can be timed in turn.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxopt import children
from onnxopt.artifact import layout
from onnxopt.codegen import kernels_json, sealed_json
from onnxopt.errors import ArtifactError
from onnxopt.runtime.sessions import Array
from onnxopt.tools.tuning.knobs import Knob

SECTION = "kernels"  # of a provider file
_SCHEMA = 2  # of the files that the library reads and writes; schema 1 had no digest
_OFF, _ON = "0", "1"
# option: file beside the library, variable that has it written, what an entry says of the rule's choice
_KINDS = {
    "measured_products": (layout.PRODUCT_ALGORITHMS, "ONNXOPT_GEMM_TUNE", "heuristic_microseconds"),
    "measured_convolutions": (layout.CONVOLUTION_PLANS, "ONNXOPT_CONV_TUNE", "heuristic_microseconds"),
    "measured_launches": (layout.LAUNCH_CHOICES, "ONNXOPT_LAUNCH_TUNE", "rule_microseconds"),
}
FILES = tuple(f"{layout.LIBRARY_FOLDER}/{file}" for file, _, _ in _KINDS.values())  # below the artifact; tune's own
RULES = dict.fromkeys(_KINDS, _OFF)  # of a configuration, as optimize writes it

_ABOUT = "about"  # in entries without times: cuDNN's own choice for shapes of about a size

Entry = dict[str, Any]


class MeasuredKernels:
    """Of one artifact on one GPU.

    gpu: as the driver names it. state: the file of tune's state; what is measured lies beside it until tune is done.
    scratch: a folder for libraries, which lives as long as this. ArtifactError where the library is of another release,
    whose files have another form.
    """

    def __init__(self, library: Path, gpu: str, state: Path, scratch: Path):
        _check_release(library)
        self._library, self._gpu, self._scratch = library, gpu, scratch
        self._measured = {option: state.with_name(f"{state.stem}.{file}") for option, (file, _, _) in _KINDS.items()}
        self._folders: dict[tuple[str, ...], Path] = {}

    def measure(self, run: Mapping[str, Any], feeds: Mapping[str, Array], seconds: float) -> str | None:
        """Run the model once in a process of its own, measuring all kernels; returns why that failed, None on success.

        run: keyword arguments of configuration.open_session. The process is killed after `seconds`: its results so far
        are kept, and the next call continues from there.
        """
        variables = {variable: str(self._measured[option]) for option, (_, variable, _) in _KINDS.items()}
        arguments = pickle.dumps({"run": {**run, "library": self._without_entries()}, "feeds": dict(feeds)})
        try:
            done = subprocess.run(
                [sys.executable, "-m", "onnxopt.tools.tuning.first_run"],
                input=arguments,
                capture_output=True,
                env={**children.QUIET, **os.environ, **variables},
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return f"not every kernel was measured in {seconds:.0f} s: give a larger --budget"
        if done.returncode == 0:
            return None
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return f"kernels could not be measured: {last[0]}"

    def knobs(self) -> list[Knob]:
        """One for each kind of which some choice was measured to be faster than the rule's."""
        return [Knob(SECTION, option, (_OFF, _ON), _OFF) for option in _KINDS if self._gains(option)]

    def library(self, configuration: Mapping[str, Any]) -> Path:
        """The library, in a folder with what a configuration's section `kernels` asks for."""
        wanted = tuple(sorted(k for k, v in configuration.get(SECTION, {}).items() if v == _ON))
        if wanted not in self._folders:
            self._folders[wanted] = self._staged(wanted)
        return self._folders[wanted]

    def texts(self, configuration: Mapping[str, Any]) -> dict[str, str | None]:
        """What a configuration's files beside the library hold, by their names; None: no such file."""
        return {
            file: self._text(option, configuration[SECTION][option] == _ON) for option, (file, _, _) in _KINDS.items()
        }

    def record(self) -> dict[str, list[Entry]]:
        """What was measured to be faster than the rule's choice, for people. runs_on: of a product that cuDNN runs."""
        shown = ("product", "convolution", "kernel", "size", "symbol", "microseconds")
        return {
            option: [{k: e[k] for k in (*shown, rule) if k in e} | _library_of(e) for e in self._gains(option)]
            for option, (_, _, rule) in _KINDS.items()
        }

    def summary(self) -> str:
        """How much was measured, and of how much another choice was faster, for people."""
        counts = [(sum(e["gpu"] == self._gpu for e in _timed(self._measured[o])), len(self._gains(o))) for o in _KINDS]
        words = ("products", "convolutions", "launches of kernels")
        texts = [
            f"{n} {word}, {gains} of them faster otherwise" for word, (n, gains) in zip(words, counts, strict=True)
        ]
        return f"measured: {'; '.join(texts)}"

    def forget(self) -> None:
        """Remove what was measured and is not in the artifact."""
        for path in self._measured.values():
            path.unlink(missing_ok=True)

    def _gains(self, option: str) -> list[Entry]:
        rule = _KINDS[option][2]
        return [e for e in _timed(self._measured[option]) if e["gpu"] == self._gpu and e["microseconds"] < e[rule]]

    def _text(self, option: str, measured: bool) -> str | None:
        """The artifact's entries of other GPUs, and this one's: of what was measured, where that is wanted."""
        entries = [e for e in _entries(self._library.with_name(_KINDS[option][0])) if e["gpu"] != self._gpu]
        own = [e for e in _entries(self._measured[option]) if e["gpu"] == self._gpu]
        entries += [e for e in own if measured or _ABOUT in e]
        return sealed_json.seal({"schema": _SCHEMA, "entries": entries}) if entries else None

    def _without_entries(self) -> Path:
        return self.library({SECTION: RULES})

    def _staged(self, wanted: tuple[str, ...]) -> Path:
        """A copy, as the dynamic loader takes two links to one file for one library."""
        folder = self._scratch / ("lib-" + ("-".join(wanted) or "rules"))
        shutil.copytree(self._library.parent, folder)
        for option, (file, _, _) in _KINDS.items():
            text = self._text(option, option in wanted)
            (folder / file).unlink(missing_ok=True)
            if text is not None:
                (folder / file).write_text(text, "utf-8")
        return folder / self._library.name


def _library_of(entry: Entry) -> Entry:
    return {"runs_on": "cuDNN"} if "product" in entry and "cudnn" in entry else {}


def _check_release(library: Path) -> None:
    path = library.with_name(layout.KERNELS)
    schema = json.loads(path.read_text("utf-8"))["schema"]
    if schema != kernels_json.SCHEMA:
        raise ArtifactError(
            f"{path}: has schema {schema}, and this onnxopt tunes artifacts of schema {kernels_json.SCHEMA}: optimize "
            "the model again, or tune with the release that made the artifact"
        )


def _timed(path: Path) -> list[Entry]:
    """Those of them that have times."""
    return [entry for entry in _entries(path) if _ABOUT not in entry]


def _entries(path: Path) -> list[Entry]:
    """The entries of a file, none where there is no file. ArtifactError where it is not what the library writes."""
    try:
        document = sealed_json.unseal(path.read_text("utf-8"))
        if document["schema"] != _SCHEMA:
            raise ValueError(f"its schema is {document['schema']}, not {_SCHEMA}")
        entries: list[Entry] = document["entries"]
        for entry in entries:
            entry["gpu"], entry["microseconds" if _ABOUT not in entry else _ABOUT]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path}: is not what the library writes ({error}); remove it") from None
    return entries
