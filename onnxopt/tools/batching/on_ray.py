"""Jobs on the machines of a Ray cluster: optimizing where there is memory, measuring where there are GPUs.

Every machine has the same onnxopt and reaches models and outputs under the same paths. Where Ray loses a worker or a
machine, it starts the step again elsewhere.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from onnxopt.errors import UsageError, describe
from onnxopt.tools.batching import work
from onnxopt.tools.batching.jobs import Job
from onnxopt.tools.batching.work import ModelOutcome
from onnxopt.tools.batching.worker import Worker

_GPUS = "CUDA_VISIBLE_DEVICES"  # which Ray sets for each step
_RETRIES = 3  # of a step whose worker or machine is lost


def run(jobs: Sequence[Job], address: str, finish: Callable[[Job, ModelOutcome], None]) -> None:
    """Run the jobs on the cluster at `address` ("auto", "HOST:PORT", "local"), and call `finish` as each ends.

    UsageError where Ray is not installed, the cluster cannot be reached, or no machine of it has what a job needs.
    """
    ray = _imported()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except Exception as error:  # Ray raises a dozen unrelated classes
        raise UsageError(f"--ray {address}: cannot be reached: {describe(error)}") from error
    try:
        _check_needs(ray, jobs)
        step = ray.remote(_step)
        pending = {_submit(step, job, None): (job, True) for job in jobs}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            job, first = pending.pop(done)
            try:
                outcome = ray.get(done)
            except ray.exceptions.RayError as error:
                outcome = work.failed(job, f"Ray gave the job up: {describe(error)}")
            if first and outcome.ok and job.measures:
                pending[_submit(step, job, outcome)] = (job, False)
            else:
                finish(job, outcome)
    finally:
        ray.shutdown()


def _imported() -> Any:
    try:
        import ray
    except ImportError:
        raise UsageError("--ray takes Ray, which is not installed: pip install 'onnxopt[ray]'") from None
    return ray


def _submit(step: Any, job: Job, outcome: ModelOutcome | None) -> Any:
    """Begin a step of a job on the cluster."""
    needs = {"num_cpus": job.needs.cpus, "memory": job.needs.memory}
    if outcome is not None:
        needs["num_gpus"] = job.needs.gpus
    return step.options(**needs, max_retries=_RETRIES, name=job.name).remote(job, outcome)


def _step(job: Job, outcome: ModelOutcome | None) -> ModelOutcome:
    """On a machine of the cluster. An output that is there already was made by a worker that was lost."""
    if outcome is None and job.output.exists():
        shutil.rmtree(job.output)
    return _worker(os.environ.get(_GPUS)).ask(job, outcome)


@functools.cache
def _worker(gpus: str | None) -> Worker:
    """The process of this process of Ray for steps that see these GPUs; they end together."""
    return Worker()


def _check_needs(ray: Any, jobs: Sequence[Job]) -> None:
    """UsageError for a job that would wait for ever: no machine has as much as it needs."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for job in jobs:
        wanted = {"CPU": job.needs.cpus, "memory": job.needs.memory or 0}
        if job.measures:
            wanted["GPU"] = job.needs.gpus
        if not any(all(has.get(kind, 0) >= amount for kind, amount in wanted.items()) for has in machines):
            text = ", ".join(f"{amount:g} {kind}" for kind, amount in wanted.items() if amount)
            raise UsageError(f"{job.name}: no machine of the cluster has {text}; lower what the job needs")
