"""A table of the outcomes of many models, for a terminal or a log."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnxopt import text_table
from onnxopt.pipeline.options import Options
from onnxopt.printable import one_line
from onnxopt.tools.batching.jobs import Job
from onnxopt.tools.batching.state import Action
from onnxopt.tools.batching.work import ModelOutcome

_TITLES = ("model", "nodes", "launches", "calls", "kernels", "verify")
_MEASURED = ("ms", "tuned options")
_ACTIONS = {"new": "to do", "again": "to do again", "done": "done before", "refused": "in the way: not of this batch"}


def text(outcomes: Sequence[ModelOutcome]) -> str:
    """The table, then a line for each error in full, then a count."""
    measured = any(outcome.measured for outcome in outcomes)
    titles = (*_TITLES, *(_MEASURED if measured else ()), "seconds", "")
    rows = []
    for outcome in outcomes:
        fused, times = _fusions(outcome), _measured(outcome) if measured else ()
        rows.append((outcome.name, *fused, *times, f"{outcome.seconds:.1f}", _status(outcome)))
    lines = text_table.lines(titles, rows, left=("model", "verify", ""))
    failed = [outcome for outcome in outcomes if not outcome.ok]
    lines += [one_line(f"{outcome.name}: {outcome.error}") for outcome in failed]
    return "\n".join([*lines, f"{len(outcomes) - len(failed)} of {len(outcomes)} done"])


def plan_text(planned: Sequence[tuple[Job, Action]]) -> str:
    """What a batch would do: a line for each model, with the options that differ from the defaults."""
    titles = ("model", "from", "", "options")
    rows = [(job.name, str(job.source), _ACTIONS[action], _options(job)) for job, action in planned]
    todo = sum(action in ("new", "again") for _, action in planned)
    return "\n".join([*text_table.lines(titles, rows, left=titles), f"{todo} of {len(planned)} to do"])


def _options(job: Job) -> str:
    usual, chosen = (dataclasses.asdict(options) for options in (Options(), job.options))
    changed = {name: value for name, value in chosen.items() if value != usual[name] and value not in ([], {})}
    changed |= {"tune": job.tune} if job.tune is not None else {}
    changed |= {"bench": True} if job.bench else {}
    return ", ".join(f"{name}={value}" for name, value in changed.items())


def _fusions(outcome: ModelOutcome) -> tuple[str, ...]:
    counts = outcome.summary
    if counts is None:
        return ("",) * (len(_TITLES) - 1)
    nodes = f"{counts.nodes_before} -> {counts.nodes_after}"
    launches = f"{counts.launches_before} -> {counts.launches_after}"
    return nodes, launches, str(counts.calls), str(counts.kernels), counts.verify


def _measured(outcome: ModelOutcome) -> tuple[str, str]:
    measured = outcome.measured
    if measured is None:
        return "", ""
    times = "" if measured.before_ms is None else f"{measured.before_ms:.3f} -> {measured.after_ms:.3f}"
    return times, "" if measured.options is None else str(measured.options)


def _status(outcome: ModelOutcome) -> str:
    counts = outcome.summary
    if counts is not None and counts.kept:
        return f"{counts.kept} of {counts.models + counts.kept} models not optimized"
    if not outcome.ok:
        return "failed"
    return "done before" if outcome.resumed else "done"
