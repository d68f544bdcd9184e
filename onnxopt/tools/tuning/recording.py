"""Writing tune's results into the artifact, which stays loadable and keeps no signature that does not fit."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxopt import versions
from onnxopt.artifact import layout, signing
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import hash_file, replace_text, write_manifest
from onnxopt.artifact.minisign import SecretKey
from onnxopt.artifact.report import page
from onnxopt.runtime import devices, providers
from onnxopt.runtime.configuration import Configuration
from onnxopt.tools.tuning import kernels as measured_kernels
from onnxopt.tools.tuning.result import OptionChange
from onnxopt.tools.tuning.rounds import Comparison
from onnxopt.tools.tuning.search import SECTIONS
from onnxopt.tools.tuning.state import State


def document(
    base: dict[str, Any],
    best: dict[str, Any],
    changes: tuple[OptionChange, ...],
    comparisons: Mapping[str, Comparison],
    kernels: Mapping[str, Any],
    state: State,
    case: str,
    chosen: Configuration,
) -> dict[str, Any]:
    """The provider file to write: the options kept, their reasons, and the figures."""
    import onnxruntime as ort

    written = copy.deepcopy(best)
    device = chosen.device.name if chosen.device else devices.cores()
    for change in changes:
        before = "ONNX Runtime's default" if change.before is None else change.before
        gain = f"{change.ratio:.3f} times as fast as" if change.ratio else "instead of"
        where = f"{device}, ONNX Runtime {ort.__version__}, {case}"
        written["why"][change.option] = f"measured: {gain} {before} ({where})"
    if {"plain", "cuda_graph"} <= comparisons.keys():
        times = {mode: round(c.second_ms, 4) for mode, c in comparisons.items()}
        written["cuda_graph"]["measured"] = {"plain_ms": times["plain"], "cuda_graph_ms": times["cuda_graph"]}
    written["tuned"] = {
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
    if written[measured_kernels.SECTION] == measured_kernels.RULES:
        del written[measured_kernels.SECTION]  # as optimize writes it
    return written


def record(
    folder: Path,
    name: str,
    configuration: Mapping[str, Any],
    beside_library: Mapping[str, str | None],
    key: SecretKey | None,
) -> list[str]:
    """Write providers/<name>.json, the files beside the library (None: no such file), their hashes and the report.

    The artifact's earlier signature no longer fits: it is replaced by one of `key`, or removed. Returns notes on that
    for the user.
    """
    texts: dict[str, str | None] = {f"{layout.PROVIDERS}/{name}.json": providers.to_json(configuration)}
    texts |= {f"{layout.LIBRARY_FOLDER}/{file}": text for file, text in beside_library.items()}
    with _signals_held():  # between the two writes the artifact would not load
        removed = _remove_signatures(folder)
        manifest = manifests.load(folder)
        files = dict(manifest.files)
        for path, text in texts.items():
            files.pop(path, None)
            if text is None:
                (folder / path).unlink(missing_ok=True)
            else:
                replace_text(folder / path, text, folder)
                files[path] = hash_file(folder / path)
        changed = manifest.model_copy(update={"files": dict(sorted(files.items()))})
        write_manifest(folder, changed)
        write_manifest(folder, page.renewed(folder, changed))  # the artifact loads even if this fails
        if key is not None:
            signing.sign(folder, key)
    return _signature_notes(folder, removed, key)


def _remove_signatures(folder: Path) -> list[str]:
    signatures = sorted(folder.glob(f"{layout.MANIFEST}.*"))
    for path in signatures:
        path.unlink()
    return [path.name for path in signatures]


def _signature_notes(folder: Path, removed: Sequence[str], key: SecretKey | None) -> list[str]:
    notes = [f"signed again with key {key.public.name}"] if key is not None else []
    for name in removed:
        if key is None or name != layout.SIGNATURE:
            notes.append(
                f"{name} was removed, as it signed the artifact before this change: sign the artifact again with "
                f"`onnxopt sign {folder} --key FILE`, or tune with --sign FILE"
            )
    return notes


def _figures(comparison: Comparison) -> dict[str, Any]:
    return {
        "rule_made_ms": round(comparison.first_ms, 4),
        "tuned_ms": round(comparison.second_ms, 4),
        "ratio": round(comparison.ratio, 4),
        "low": round(comparison.low, 4),
        "high": round(comparison.high, 4),
        "rounds": comparison.rounds,
    }


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
