"""Writing what tune found into the artifact: it stays whole, and has no signature that does not fit."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxopt import versions
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact import package, signing
from onnxopt.artifact.report import page
from onnxopt.runtime import devices, providers
from onnxopt.runtime.configuration import Configuration
from onnxopt.tools.tuning import kernels as measured_kernels
from onnxopt.tools.tuning.result import Change
from onnxopt.tools.tuning.rounds import Comparison
from onnxopt.tools.tuning.search import SECTIONS
from onnxopt.tools.tuning.state import State


def document(
    base: dict[str, Any],
    kept: dict[str, Any],
    changes: tuple[Change, ...],
    comparisons: Mapping[str, Comparison],
    kernels: Mapping[str, Any],
    state: State,
    case: str,
    chosen: Configuration,
) -> dict[str, Any]:
    """The provider file to write: what was kept, why, and the figures."""
    import onnxruntime as ort

    made = copy.deepcopy(kept)
    device = chosen.device.name if chosen.device else devices.cores()
    for change in changes:
        before = "ONNX Runtime's default" if change.before is None else change.before
        gain = f"{change.ratio:.3f} times as fast as" if change.ratio else "instead of"
        where = f"{device}, ONNX Runtime {ort.__version__}, {case}"
        made["why"][change.option] = f"measured: {gain} {before} ({where})"
    if {"plain", "cuda_graph"} <= comparisons.keys():
        times = {mode: round(c.second_ms, 4) for mode, c in comparisons.items()}
        made["cuda_graph"]["measured"] = {"plain_ms": times["plain"], "cuda_graph_ms": times["cuda_graph"]}
    made["tuned"] = {
        "onnxopt": versions.onnxopt(),
        "onnxruntime": ort.__version__,
        "device": device,
        "driver": devices.driver_release() if chosen.device else None,
        "case": case,
        "noise": state.noise,
        "comparisons": {mode: _figures(c) for mode, c in comparisons.items()},
        "kernels": kernels,
        "trials": [dataclasses.asdict(t) for t in state.trials],
        "rule_made": {part: base[part] for part in (*SECTIONS, "why")},
    }
    if made[measured_kernels.SECTION] == measured_kernels.RULES:
        del made[measured_kernels.SECTION]  # as optimize writes it
    return made


def record(
    folder: Path,
    name: str,
    configuration: Mapping[str, Any],
    beside_library: Mapping[str, str | None],
    key: signing.SecretKey | None,
) -> list[str]:
    """Write providers/<name>.json, the files beside the library (None: no such file), their hashes and the report.

    The signature that the artifact had is of what it was: it is made anew with `key`, or removed. Returns what the user
    has to know then.
    """
    texts: dict[str, str | None] = {f"{providers.FOLDER}/{name}.json": providers.to_json(configuration)}
    texts |= {f"{package.LIBRARY_FOLDER}/{file}": text for file, text in beside_library.items()}
    with _signals_held():  # between the two writes the artifact would not load
        removed = _remove_signatures(folder)
        manifest = manifests.load(folder)
        files = dict(manifest.files)
        for path, text in texts.items():
            files.pop(path, None)
            if text is None:
                (folder / path).unlink(missing_ok=True)
            else:
                package.replace_text(folder / path, text, folder)
                files[path] = package.hash_file(folder / path)
        changed = manifest.model_copy(update={"files": dict(sorted(files.items()))})
        package.write_manifest(folder, changed)
        package.write_manifest(folder, page.renewed(folder, changed))  # whatever the page lacks, the artifact is whole
        if key is not None:
            signing.sign_artifact(folder, key)
    return _told(folder, removed, key)


def _remove_signatures(folder: Path) -> list[str]:
    found = sorted(folder.glob(f"{manifests.FILE}.*"))
    for path in found:
        path.unlink()
    return [path.name for path in found]


def _told(folder: Path, removed: Sequence[str], key: signing.SecretKey | None) -> list[str]:
    notes = [f"signed again with key {key.public.name}"] if key is not None else []
    for name in removed:
        if key is None or name != signing.SIGNATURE_FILE:
            notes.append(
                f"{name} was removed, as it signed what the artifact was before: sign it again with "
                f"`onnxopt sign {folder} --key FILE`, or tune with --sign FILE"
            )
    return notes


def _figures(found: Comparison) -> dict[str, Any]:
    return {
        "rule_made_ms": round(found.first_ms, 4),
        "tuned_ms": round(found.second_ms, 4),
        "ratio": round(found.ratio, 4),
        "low": round(found.low, 4),
        "high": round(found.high, 4),
        "rounds": found.rounds,
    }


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
