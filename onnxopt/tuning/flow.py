"""The whole of tune, top to bottom: rule-made file in, measured file out."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from onnxopt import devices, execution, gpus, loading, package, providers, versions
from onnxopt import manifest as manifests
from onnxopt.configuration import Configuration, configuration_for
from onnxopt.errors import ModelError, UsageError
from onnxopt.execution import CPU, CUDA, RunError
from onnxopt.opening import open_artifact
from onnxopt.providers import facts as model_facts
from onnxopt.reporting import page
from onnxopt.tuning import search
from onnxopt.tuning.knobs import knobs
from onnxopt.tuning.oracle import Oracle
from onnxopt.tuning.rounds import MOST_SECONDS, Comparison
from onnxopt.tuning.search import SECTIONS, Progress, Search, Target
from onnxopt.tuning.state import State

_CONFIRM_SHARE = 0.15  # of the budget, kept for the last comparison
_COMPARISON_SHARE = 0.08


@dataclasses.dataclass(frozen=True)
class Change:
    """An option that tune changed. before: None where the rule-made file leaves it to ORT. ratio: what it gained."""

    option: str
    before: Any
    after: Any
    ratio: float | None


@dataclasses.dataclass(frozen=True)
class Result:
    """What tune did. file: below the artifact. complete: whether everything was tried.

    comparisons: by mode ("plain", "cuda_graph"), the rule-made file against the one now written, in milliseconds.
    resumed: trials that an earlier, unfinished run had made. notes: what a reader should know.
    """

    file: str
    provider: str
    device: str
    case: str
    status: str  # "faster", "unchanged", "interrupted"
    complete: bool
    changes: tuple[Change, ...]
    comparisons: dict[str, Comparison]
    noise: float | None
    trials: int
    resumed: int
    seconds: float
    notes: tuple[str, ...]


def tune(
    artifact: str | Path,
    *,
    budget: float = 300.0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    provider: str | None = None,
    restart: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Find the fastest options for an artifact on this machine and write them into its providers/.

    budget: seconds this call may take, about. shapes: sizes to run at, as bench takes them. provider: ORT's name,
    default CUDA where a device is usable. restart: forget what an unfinished run found out.

    Only a configuration whose outputs agree with the plain graph's is kept, and only if it is faster than the rule-made
    one in a last comparison, and not slower without a CUDA graph where it is faster with one. ctrl-C keeps what is
    known; a run that was killed goes on from its last trial.

    Raises ArtifactError, ModelError, UsageError; VerificationError where the artifact itself computes something else.
    """
    started = time.monotonic()
    opened = open_artifact(artifact)
    folder, manifest = opened.folder, opened.manifest
    if not Path(artifact).is_dir():
        raise UsageError(f"{artifact}: tune writes into an artifact folder; unpack it first")
    if budget <= 0:
        raise UsageError(f"a budget of {budget:g} s leaves no time to measure anything")
    execution.check_providers([provider] if provider else [])
    chosen = configuration_for(folder, provider)
    name, base = _rule_made(chosen)
    facts = model_facts.of(loading.load(folder / package.MODEL).model)
    library = opened.library
    advance = progress or (lambda _done, _total, _text: None)
    with tempfile.TemporaryDirectory(prefix="onnxopt.") as scratch:
        advance(0, 0, "running the plain graph")
        oracle = Oracle(folder / package.MODEL, chosen.provider, shapes or {}, Path(scratch))
    target, notes = _target(folder, library, chosen, base, oracle)
    if oracle.allowed > 1.0:
        notes.append(
            f"the rule-made options differ from exact float32 already; {oracle.allowed:.3g} limits are allowed"
        )
    state = State(_state_file(folder, name), _key(manifest, chosen, base, oracle))
    if restart:
        state = _forgotten(state)
    elif state.stale:
        notes.append(f"{state.path}: belongs to another model, machine or release, and was not used")
    deadline = started + (1 - _CONFIRM_SHARE) * budget
    tried = knobs(facts, chosen.provider, library=library is not None)
    seconds = min(MOST_SECONDS, _COMPARISON_SHARE * budget)
    searching = Search(target, oracle, state, base, tried, deadline, advance, seconds)
    status, complete, comparisons = "interrupted", False, dict[str, Comparison]()
    with contextlib.suppress(KeyboardInterrupt):
        complete = searching.run()
        advance(0, 0, "comparing with the rule-made file")
        comparisons = _comparisons(target, oracle, base, searching.best, seconds)
        status = "faster" if _is_confirmed(comparisons, state.noise or 0.0, base, searching.best) else "unchanged"
    kept = searching.best if status != "unchanged" else base
    if status == "unchanged" and searching.taken:
        notes.append("what was faster alone was not faster than the rule-made file in the end: nothing was changed")
    changes = _changes(base, kept, searching)
    result = Result(
        file=f"{providers.FOLDER}/{name}.json",
        provider=chosen.provider,
        device=_device_text(chosen),
        case=str(oracle.case),
        status=status,
        complete=complete,
        changes=changes,
        comparisons=comparisons,
        noise=state.noise,
        trials=len(state.trials),
        resumed=state.resumed,
        seconds=round(time.monotonic() - started, 1),
        notes=tuple(notes + _record(folder, name, _document(base, kept, changes, comparisons, state, oracle, chosen))),
    )
    if complete and status != "interrupted":
        state.remove()
    return result


def _rule_made(chosen: Configuration) -> tuple[str, dict[str, Any]]:
    """The file to write, and the configuration that rules made, also where tune has changed it since."""
    base = copy.deepcopy(chosen.data)
    tuned = base.pop("tuned", None)
    if tuned is not None:
        base |= copy.deepcopy(tuned["rule_made"])
        base.get("cuda_graph", {}).pop("measured", None)
    if chosen.device is None:
        return chosen.name, base
    name = gpus.key_of(chosen.device.name)
    base["gpu"] = {
        "key": name,
        "name": chosen.device.name,
        "compute_capability": chosen.device.compute_capability,
    }
    return name, base


def _target(
    folder: Path, library: Path | None, chosen: Configuration, base: dict[str, Any], oracle: Oracle
) -> tuple[Target, list[str]]:
    """What to time: with a CUDA graph where the model has one. Also checks what the rule-made file computes."""
    plain = Target(folder, folder / package.MODEL, library, chosen.provider, graph=False)
    notes: list[str] = []
    if chosen.provider == CUDA and chosen.blocking == ():
        graph = dataclasses.replace(plain, graph=True)
        try:
            oracle.trust(search.verdict_on(graph, oracle, base))
            return graph, notes
        except RunError as error:
            notes.append(f"timed without a CUDA graph, which ONNX Runtime refuses: {error}")
    elif chosen.blocking:
        node, reason = chosen.blocking[0]
        notes.append(f"timed without a CUDA graph, which {node} prevents: {reason}")
    try:
        oracle.trust(search.verdict_on(plain, oracle, base))
    except RunError as error:
        raise ModelError(f"{folder}: does not run with {chosen.path.name}: {error}") from error
    return plain, notes


def _comparisons(
    target: Target, oracle: Oracle, base: dict[str, Any], best: dict[str, Any], seconds: float
) -> dict[str, Comparison]:
    """Rule-made against tuned, without a CUDA graph and with one."""
    modes = {"cuda_graph": True, "plain": False} if target.graph else {"plain": False}
    return {
        mode: search.confirm(target, oracle, base, best, graph=graph, seconds=seconds) for mode, graph in modes.items()
    }


def _is_confirmed(
    comparisons: Mapping[str, Comparison], noise: float, base: dict[str, Any], best: dict[str, Any]
) -> bool:
    """Faster in the mode that was tuned for, slower in none."""
    if best == base:
        return False
    tuned_for = comparisons.get("cuda_graph", comparisons["plain"])
    return tuned_for.faster(0.0) and not any(c.slower(noise) for c in comparisons.values())


def _changes(base: dict[str, Any], kept: dict[str, Any], searching: Search) -> tuple[Change, ...]:
    gains: dict[str, float] = {}
    for knob, trial in searching.taken:  # one option may have been changed in several steps
        gains[knob.option] = round(gains.get(knob.option, 1.0) * (trial.ratio or 1.0), 4)
    return tuple(
        Change(option, base[section].get(option), kept[section].get(option), gains.get(option))
        for section in SECTIONS
        for option in sorted({*base[section], *kept[section]})
        if base[section].get(option) != kept[section].get(option)
    )


def _document(
    base: dict[str, Any],
    kept: dict[str, Any],
    changes: tuple[Change, ...],
    comparisons: Mapping[str, Comparison],
    state: State,
    oracle: Oracle,
    chosen: Configuration,
) -> dict[str, Any]:
    """The file to write: what was kept, why, and the figures."""
    import onnxruntime as ort

    document = copy.deepcopy(kept)
    where = f"{_device_text(chosen)}, ONNX Runtime {ort.__version__}, {oracle.case}"
    for change in changes:
        before = "ONNX Runtime's default" if change.before is None else change.before
        gain = f"{change.ratio:.3f} times as fast as" if change.ratio else "instead of"
        document["why"][change.option] = f"measured: {gain} {before} ({where})"
    if {"plain", "cuda_graph"} <= comparisons.keys():
        times = {mode: round(c.second_ms, 4) for mode, c in comparisons.items()}
        document["cuda_graph"]["measured"] = {"plain_ms": times["plain"], "cuda_graph_ms": times["cuda_graph"]}
    document["tuned"] = {
        "onnxopt": versions.onnxopt(),
        "onnxruntime": ort.__version__,
        "device": _device_text(chosen),
        "driver": devices.driver_release() if chosen.device else None,
        "case": str(oracle.case),
        "noise": state.noise,
        "comparisons": {mode: _figures(c) for mode, c in comparisons.items()},
        "trials": [dataclasses.asdict(t) for t in state.trials],
        "rule_made": {part: base[part] for part in (*SECTIONS, "why")},
    }
    return document


def _figures(found: Comparison) -> dict[str, Any]:
    return {
        "rule_made_ms": round(found.first_ms, 4),
        "tuned_ms": round(found.second_ms, 4),
        "ratio": round(found.ratio, 4),
        "low": round(found.low, 4),
        "high": round(found.high, 4),
        "rounds": found.rounds,
    }


def _record(folder: Path, name: str, document: Mapping[str, Any]) -> list[str]:
    """Write the file and its hash in the manifest; returns what the user has to do then."""
    file = providers.path(folder, name)
    with _signals_held():  # between the two writes the artifact would not load
        package.replace_text(file, providers.to_json(document), folder)
        manifest = manifests.load(folder)
        files = {**manifest.files, f"{providers.FOLDER}/{name}.json": package.hash_file(file)}
        changed = manifest.model_copy(update={"files": dict(sorted(files.items()))})
        package.write_manifest(folder, changed)
        package.write_manifest(folder, page.renewed(folder, changed))  # whatever the page lacks, the artifact is whole
    signatures = sorted(p.name for p in folder.glob(f"{manifests.FILE}.*"))
    return [
        f"{s}: the manifest has changed, so that this is not its signature any more: sign it again" for s in signatures
    ]


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _state_file(folder: Path, name: str) -> Path:
    """Beside the artifact, not in it: an artifact holds nothing that its manifest does not list."""
    folder = folder.absolute()
    if not os.access(folder.parent, os.W_OK) or not os.access(folder / providers.FOLDER, os.W_OK):
        raise UsageError(f"{folder}: tune writes into it and beside it, and may not")
    return folder.parent / f"{folder.name}.tune-{name}.json"


def _forgotten(state: State) -> State:
    state.remove()
    return State(state.path, state.key)


def _key(manifest: manifests.Manifest, chosen: Configuration, base: dict[str, Any], oracle: Oracle) -> dict[str, Any]:
    """Everything that figures of another run must have in common with this one."""
    import onnxruntime as ort

    written_here = (f"{providers.FOLDER}/", page.FILE)  # by tune itself
    hashes = {n: f.sha256 for n, f in manifest.files.items() if not n.startswith(written_here)}
    return {
        "artifact": hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest(),
        "rules": search.digest(base),
        "provider": chosen.provider,
        "device": _device_text(chosen),
        "driver": devices.driver_release() if chosen.device else None,
        "onnxruntime": ort.__version__,
        "case": str(oracle.case),
    }


def _device_text(chosen: Configuration) -> str:
    if chosen.device is not None:
        return chosen.device.name
    assert chosen.provider == CPU
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{devices.processor()}, {cores} cores"
