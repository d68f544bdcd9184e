"""Find the fused functions that make a model differ from the original, so that only those are left out.

A library whose kernels.json lists only some functions runs only those as kernels, and ORT inlines the rest: so one
model file serves every trial, and a trial costs one session and the cases that failed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from onnxopt import kernels_json, package
from onnxopt.reference import Check, Reference
from onnxopt.regions import Kernel


def culprits(
    references: Sequence[Reference],
    failures: Sequence[Check],
    model: Path,
    kernels: Sequence[Kernel],
    fatbin: bytes | None,
    scratch: Path,
) -> dict[str, Check]:
    """The kernels that break the limit, by name, each with a check that shows it.

    failures: failed checks with the library, of `references`. Empty where no set of kernels is to blame: the model
    without any kernel fails too.
    """

    def failure_of(enabled: Sequence[Kernel]) -> Check | None:
        if not enabled:
            return None
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            library = package.write_library(Path(folder) / "lib", kernels_json.to_json(tuple(enabled), fatbin), fatbin)
            for reference in references:
                failed = [f for f in failures if f.provider == reference.provider]
                checks = reference.check(model, library, reference.cases_of(failed)) if failed else []
                if bad := next((c for c in checks if not c.ok), None):
                    return bad
        return None

    return search(list(kernels), failure_of)


def search(kernels: Sequence[Kernel], failure_of: Callable[[Sequence[Kernel]], Check | None]) -> dict[str, Check]:
    """Bisect: the kernels that fail on their own, or the smallest halves that fail only together.

    failure_of(some) runs with only those kernels and returns a failed check or None. Takes about 2 log2(n) runs a
    culprit.
    """
    bad = failure_of(kernels)
    if bad is None:
        return {}
    if len(kernels) == 1:
        return {kernels[0].name: bad}
    middle = len(kernels) // 2
    found = search(kernels[:middle], failure_of) | search(kernels[middle:], failure_of)
    # Neither half fails alone: rounding adds up over both, and no single kernel is to blame.
    return found or {kernel.name: bad for kernel in kernels}
