"""Verify what was built, and where a fused function breaks the limit, find it, leave it out, and verify again.

A library whose kernels.json lists only some functions runs only those as kernels, and ORT inlines the rest: so one
model file serves every trial, and a trial costs one session and the cases that failed.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import onnx_ir as ir

from onnxopt.artifact import package
from onnxopt.artifact.manifest import LeftOut
from onnxopt.codegen import kernels_json
from onnxopt.errors import VerificationError
from onnxopt.fusion import outline
from onnxopt.fusion.region import Kernel
from onnxopt.graph import read
from onnxopt.graph import traits as model_traits
from onnxopt.graph import write as saving
from onnxopt.graph.traits import Traits
from onnxopt.verification.reference import Ahead, Check, NotRunnable, Reference
from onnxopt.verification.verify import Report, describe_failure, references, verify_model

Item = TypeVar("Item")
_ATTEMPTS = 4  # leaving functions out may bring another's error to light


class RewriteDisagrees(Exception):
    """Rewrite rules changed what the model computes. families: those that do, each with a check that shows it.

    Never leaves the pipeline, which makes the artifact again without them.
    """

    def __init__(self, families: Mapping[str, Check]) -> None:
        super().__init__(", ".join(families))
        self.families = families


@dataclasses.dataclass
class Build:
    """The parts of an artifact while it is being made. folder: where `write` puts the files.

    portable: the form without operators of com.microsoft, where it was asked for. rewritten: the normalized model
    with only the given families of rewrite rules applied, for finding the one that is wrong; families: those
    that did apply.
    """

    model: ir.Model
    kernels: tuple[Kernel, ...]
    fatbin: bytes | None
    folder: Path
    external_data: bool | None
    portable: ir.Model | None = None
    families: tuple[str, ...] = ()
    rewritten: Callable[[Sequence[str]], ir.Model] | None = None
    left_out: list[LeftOut] = dataclasses.field(default_factory=list)

    @property
    def model_file(self) -> Path:
        return self.folder / package.MODEL

    def write(self) -> None:
        """Write model, library and kernels, in place of what was there."""
        for old in self.folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        others = {package.PORTABLE_MODEL: self.portable} if self.portable is not None else {}
        saving.save(self.model, self.folder, external=self.external_data, others=others)
        if self.kernels:
            self.write_library(self.folder / package.LIBRARY_FOLDER, self.kernels)

    def write_library(self, folder: Path, kernels: Sequence[Kernel]) -> Path:
        return package.write_library(folder, kernels_json.to_json(kernels, self.fatbin), self.fatbin)

    def leave_out(self, culprits: Mapping[str, Check]) -> None:
        """Put the original nodes back for these functions, and write the artifact again.

        The fatbin keeps their entry points; nothing names them any more.
        """
        outline.inline(self.model, set(culprits))
        for kernel in self.kernels:
            if check := culprits.get(kernel.name):
                found = check.difference
                self.left_out.append(
                    LeftOut(
                        name=kernel.name,
                        ops=kernel.ops,
                        reason=describe_failure(check),
                        max_abs=found.max_abs if found else None,
                        excess=found.excess if found else None,
                    )
                )
        self.kernels = tuple(k for k in self.kernels if k.name not in culprits)
        self.fatbin = self.fatbin if self.kernels else None
        self.write()


def verify_and_leave_out(
    build: Build,
    source: read.Source,
    original: Traits,
    shapes: Mapping[str, tuple[int, ...]],
    scratch: Path,
    ahead: Ahead | None,
) -> Report:
    """Verify the build against the source, leaving out the functions that break the limit.

    ahead: what open_ahead gave for the source. Returns a report that passed, or one with status "not_run" where ORT
    cannot run the original here. VerificationError where the interface changed, or outputs differ although no fused
    function is to blame.
    """
    optimized = model_traits.of(build.model)
    if changed := model_traits.interface_difference(original, optimized):
        raise VerificationError(f"{source.path}: optimizing changed the model's interface: {changed}")
    known = model_traits.with_bounds_of(original, optimized)
    try:
        measured = references(source.path, known, folder=scratch, shapes=shapes, model_bytes=source.bytes, ahead=ahead)
    except NotRunnable as error:
        return Report("not_run", reason=str(error))
    for _ in range(_ATTEMPTS):
        # The library is loaded from a copy: the artifact's own must stay unknown to the dynamic loader until it lies
        # where it will be used, because a loaded library keeps the path it was loaded from.
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            library = build.write_library(Path(folder) / "lib", build.kernels) if build.kernels else None
            report = verify_model(measured, build.model_file, library)
        if report.status == "passed":
            _check_portable(build, measured, source)
            return report
        build.leave_out(_culprits(build, measured, report, source, scratch))
    raise VerificationError(
        f"{source.path}: {report.reason}; it still does after leaving out {len(build.left_out)} fusions"
    )


def _culprits(
    build: Build, measured: Sequence[Reference], report: Report, source: read.Source, scratch: Path
) -> dict[str, Check]:
    without = [c for c in report.failures if not c.library]
    if without:  # ORT ran the original nodes there, so no kernel is involved
        if families := _families_to_blame(build, measured, without, scratch):
            raise RewriteDisagrees(families)
        raise VerificationError(
            f"{source.path}: the normalized model differs from the original, fusions are not to blame: "
            f"{describe_failure(without[0])}. Please report it; --no-verify keeps the result unchecked"
        )

    def failure_of(enabled: Sequence[Kernel]) -> Check | None:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            library = build.write_library(Path(folder) / "lib", enabled)
            for reference in measured:
                failed = [c for c in report.failures if c.provider == reference.provider]
                checks = reference.check(build.model_file, library, reference.cases_of(failed)) if failed else []
                if bad := next((c for c in checks if not c.ok), None):
                    return bad
        return None

    found = search(build.kernels, failure_of, lambda kernel: kernel.name)
    if not found:
        raise VerificationError(f"{source.path}: {report.reason}; it does not happen again, so no fusion can be named")
    return found


def _families_to_blame(
    build: Build, measured: Sequence[Reference], failures: Sequence[Check], scratch: Path
) -> dict[str, Check]:
    """The families of rewrite rules that break the limit, found by applying some of them without any fusion."""

    def failure_of(enabled: Sequence[str]) -> Check | None:
        assert build.rewritten is not None
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            saving.save(build.rewritten(enabled), folder, external=build.external_data)
            model = Path(folder) / package.MODEL
            for reference in measured:
                failed = [c for c in failures if c.provider == reference.provider]
                checks = reference.check(model, None, reference.cases_of(failed)) if failed else []
                if bad := next((c for c in checks if not c.ok), None):
                    return bad
        return None

    if build.rewritten is None or failure_of(()) is not None:  # normalization alone is wrong
        return {}
    return search(build.families, failure_of, str)


def _check_portable(build: Build, measured: Sequence[Reference], source: read.Source) -> None:
    if build.portable is None:
        return
    report = verify_model(measured, build.folder / package.PORTABLE_MODEL, None)
    if report.status != "passed":
        raise VerificationError(
            f"{source.path}: the portable form differs from the original: {report.reason}. Please report it; "
            "optimize without --portable"
        )


def search(
    items: Sequence[Item], failure_of: Callable[[Sequence[Item]], Check | None], name: Callable[[Item], str]
) -> dict[str, Check]:
    """Bisect: the items that fail on their own, or the smallest groups that fail only together, by name.

    failure_of(some) runs with only those and returns a failed check or None. Takes about 2 log2(n) runs a culprit.
    """
    bad = failure_of(items) if items else None
    if bad is None:
        return {}
    if len(items) == 1:
        return {name(items[0]): bad}
    middle = len(items) // 2
    found = search(items[:middle], failure_of, name) | search(items[middle:], failure_of, name)
    # Neither half fails alone: rounding adds up over both, and no single one is to blame.
    return found or {name(item): bad for item in items}
