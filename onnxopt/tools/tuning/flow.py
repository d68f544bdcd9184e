"""The whole of tune, top to bottom: rule-made file in, measured file out."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxopt.artifact import layout
from onnxopt.artifact.folder import temporary_folder
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.minisign import SecretKey
from onnxopt.artifact.open import Opened, open_artifact
from onnxopt.errors import ModelError, UsageError
from onnxopt.graph import read
from onnxopt.paths import StrPath
from onnxopt.runtime import devices, gpus, sessions, time_limit
from onnxopt.runtime.configuration import Configuration, configuration_for
from onnxopt.runtime.providers import facts as model_facts
from onnxopt.runtime.sessions import CPU, CUDA, RunError
from onnxopt.tools.tuning import kernels as measured_kernels
from onnxopt.tools.tuning import recording, search
from onnxopt.tools.tuning.kernels import MeasuredKernels
from onnxopt.tools.tuning.knobs import knobs
from onnxopt.tools.tuning.oracle import Oracle
from onnxopt.tools.tuning.result import OptionChange, TuneResult
from onnxopt.tools.tuning.rounds import MAX_SECONDS, Comparison
from onnxopt.tools.tuning.search import SECTIONS, Progress, Search, Target
from onnxopt.tools.tuning.state import State

_CONFIRM_SHARE = 0.15  # of the budget, kept for the last comparison
_KERNELS_SHARE = 0.35  # at most, for the library to measure its kernels
_COMPARISON_SHARE = 0.08


def tune(
    artifact: StrPath,
    *,
    budget: float = 300.0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    provider: str | None = None,
    restart: bool = False,
    sign: SecretKey | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> TuneResult:
    """Find the fastest options for an artifact on this machine and write them into its providers/.

    budget: seconds this call may take, about. shapes: sizes to run at, as bench takes them. provider: ONNX Runtime's
    name, default CUDA where a device is usable. restart: discard the trials of an unfinished run. sign: sign the
    artifact with this key afterwards; without it, a signature of the artifact is removed, as it would no longer fit.
    timeout: seconds that one run of the plain graph may take, as for `optimize`.
    progress(done, total, text): called after each trial, and when a phase begins; total is 0 where it is unknown.

    On a GPU the library first measures algorithms for its matrix products and launch shapes for its kernels; the faster
    ones are written beside it, for this GPU. A configuration is kept only if its outputs agree with the plain graph's,
    if it is faster than the rule-made one in a last comparison, and, where it is faster with a CUDA graph, if it is not
    slower without one. ctrl-C keeps the results so far; a run that was killed continues from its last trial.

    Raises ArtifactError, ModelError, UsageError; VerificationError where the artifact's own outputs are wrong, and
    NotVerifiedError where the plain graph does not run in time.
    """
    started = time.monotonic()
    time_limit.check(timeout)
    opened = _opened(artifact, budget)
    sessions.check_providers([provider] if provider else [])
    chosen = configuration_for(opened.folder, provider)
    name, base = _rule_based(chosen)
    path = _state_file(opened.folder, name)
    advance = progress or (lambda _done, _total, _text: None)
    with temporary_folder() as scratch:
        advance(0, 0, "running the plain graph")
        with time_limit.runs_end_within(time_limit.limit_of(timeout, opened.manifest.source.bytes)):
            oracle = Oracle(opened.folder / layout.MODEL, chosen.provider, shapes or {}, scratch)
        notes: list[str] = []
        state = _state(path, _key(opened.manifest, chosen, base, oracle), restart, notes)
        kernels = _kernels(opened, chosen, state, scratch)
        target = _target(opened, kernels, chosen, base, oracle, notes)
        tuning = _Tuning(opened, chosen, base, oracle, state, kernels, target, budget, started, advance, notes)
        status, complete, comparisons, best, searching = tuning.run()
        changes = _changes(base, best, searching)
        measured, beside = (kernels.record(), kernels.texts(best)) if kernels else ({}, {})
        document = recording.document(base, best, changes, comparisons, measured, state, str(oracle.case), chosen)
        notes += recording.record(opened.folder, name, document, beside, sign)
    if complete and status != "interrupted":
        state.remove()
        if kernels:
            kernels.forget()
    return TuneResult(
        file=f"{layout.PROVIDERS}/{name}.json",
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
        kernels=measured,
        notes=tuple(notes),
    )


def _opened(artifact: StrPath, budget: float) -> Opened:
    opened = open_artifact(artifact)
    if not Path(artifact).is_dir():
        raise UsageError(f"{artifact}: tune writes into an artifact folder; unpack it first")
    if budget <= 0:
        raise UsageError(f"a budget of {budget:g} s leaves no time to measure anything")
    return opened


@dataclasses.dataclass
class _Tuning:
    """One run of tune between reading the artifact and writing it. notes: added to."""

    opened: Opened
    chosen: Configuration
    base: dict[str, Any]
    oracle: Oracle
    state: State
    kernels: MeasuredKernels | None
    target: Target
    budget: float
    started: float
    advance: Progress
    notes: list[str]

    def run(self) -> tuple[str, bool, dict[str, Comparison], dict[str, Any], Search]:
        """Status, whether everything was tried, the last comparisons, the configuration to keep, and the search."""
        deadline = self.started + (1 - _CONFIRM_SHARE) * self.budget
        facts = model_facts.of(read.load(self.opened.folder / layout.MODEL).model)
        tried = knobs(facts, self.chosen.provider, kinds=self._kinds())
        seconds = min(MAX_SECONDS, _COMPARISON_SHARE * self.budget)
        searching = Search(self.target, self.oracle, self.state, self.base, tried, deadline, self.advance, seconds)
        status, complete, comparisons = "interrupted", False, dict[str, Comparison]()
        with contextlib.suppress(KeyboardInterrupt):
            measured = self._measure_kernels()
            searching.add_first(self.kernels.knobs() if self.kernels else [])
            complete = searching.run() and measured
            self.advance(0, 0, "comparing with the rule-made file")
            comparisons = _comparisons(self.target, self.oracle, self.base, searching.best, seconds)
            faster = _is_confirmed(comparisons, self.state.noise or 0.0, self.base, searching.best)
            status = "faster" if faster else "unchanged"
        if status == "unchanged" and searching.chosen:
            self.notes.append(
                "options faster when tried were not faster than the rule-made file at the end: nothing was changed"
            )
        return status, complete, comparisons, searching.best if status != "unchanged" else self.base, searching

    def _kinds(self) -> set[str]:
        """Of the kernels that the library has for the provider."""
        on_cpu, kernels = self.chosen.provider == CPU, self.opened.manifest.kernels
        return {kernel.kind for kernel in kernels if kernel.cpu or not on_cpu}

    def _measure_kernels(self) -> bool:
        """Have the library measure its kernels; returns whether it measured all of them."""
        if self.kernels is None or self.state.kernels_measured:
            return True
        self.advance(0, 0, "measuring algorithms of products and launch shapes of kernels")
        run = {"model": self.opened.model, "data": self.base, "folder": self.opened.folder}
        problem = self.kernels.measure(run, self.oracle.feeds, _KERNELS_SHARE * self.budget)
        self.notes.append(problem or self.kernels.summary())
        if problem is not None:
            return False
        self.state.kernels_measured = True
        self.state.write()
        return True


def _rule_based(chosen: Configuration) -> tuple[str, dict[str, Any]]:
    """The file to write, and the configuration that rules made, also where tune has changed it since."""
    base = copy.deepcopy(chosen.data)
    tuned = base.pop("tuned", None)
    base[measured_kernels.SECTION] = dict(measured_kernels.RULES)
    if tuned is not None:
        base |= copy.deepcopy({k: v for k, v in tuned["rule_made"].items() if k != measured_kernels.SECTION})
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


def _state(path: Path, key: dict[str, Any], restart: bool, notes: list[str]) -> State:
    state = State(path, key)
    if restart or state.stale:
        for measured in path.parent.glob(f"{path.stem}.*.json"):
            measured.unlink()
    if restart:
        state.remove()
        return State(path, key)
    if state.stale:
        notes.append(f"{path}: belongs to another model, machine or release, and was not used")
    return state


def _kernels(opened: Opened, chosen: Configuration, state: State, scratch: Path) -> MeasuredKernels | None:
    """What the library can measure: nothing on the CPU, and where there is no library."""
    if opened.library is None or chosen.provider != CUDA or chosen.device is None:
        return None
    return MeasuredKernels(opened.library, chosen.device.name, state.path, scratch)


def _target(
    opened: Opened,
    kernels: MeasuredKernels | None,
    chosen: Configuration,
    base: dict[str, Any],
    oracle: Oracle,
    notes: list[str],
) -> Target:
    """What to time: with a CUDA graph where the model has one. Also checks what the rule-made file computes."""
    plain = Target(opened.folder, opened.model, opened.library, chosen.provider, graph=False, kernels=kernels)
    target = None
    if chosen.provider == CUDA and chosen.blocking == ():
        graph = dataclasses.replace(plain, graph=True)
        try:
            oracle.trust(search.verdict_on(graph, oracle, base))
            target = graph
        except RunError as error:
            notes.append(f"timed without a CUDA graph, which ONNX Runtime refuses: {error}")
    elif chosen.blocking:
        node, reason = chosen.blocking[0]
        notes.append(f"timed without a CUDA graph, which {node} prevents: {reason}")
    if target is None:
        try:
            oracle.trust(search.verdict_on(plain, oracle, base))
        except RunError as error:
            raise ModelError(f"{opened.folder}: does not run with {chosen.path.name}: {error}") from error
    if oracle.allowed > 1.0:
        notes.append(
            f"the rule-made options already differ from exact float32: {oracle.allowed:.3g} times the limit is allowed"
        )
    return target or plain


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


def _changes(base: dict[str, Any], best: dict[str, Any], searching: Search) -> tuple[OptionChange, ...]:
    gains: dict[str, float] = {}
    for knob, trial in searching.chosen:  # one option may have been changed in several steps
        gains[knob.option] = round(gains.get(knob.option, 1.0) * (trial.ratio or 1.0), 4)
    return tuple(
        OptionChange(option, base[section].get(option), best[section].get(option), gains.get(option))
        for section in SECTIONS
        for option in sorted({*base[section], *best[section]})
        if base[section].get(option) != best[section].get(option)
    )


def _state_file(folder: Path, name: str) -> Path:
    """The path of tune's state: beside the artifact, as an artifact holds no file that its manifest does not list."""
    folder = folder.absolute()
    if not os.access(folder.parent, os.W_OK) or not os.access(folder / layout.PROVIDERS, os.W_OK):
        raise UsageError(f"{folder}: tune writes into this folder and beside it, and has no permission to")
    return folder.parent / f"{folder.name}.tune-{name}.json"


def _key(manifest: Manifest, chosen: Configuration, base: dict[str, Any], oracle: Oracle) -> dict[str, Any]:
    """Everything that figures of another run must have in common with this one."""
    import onnxruntime as ort

    written_here = (f"{layout.PROVIDERS}/", layout.REPORT, *measured_kernels.FILES)  # by tune itself
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
    return chosen.device.name if chosen.device is not None else devices.cores()
