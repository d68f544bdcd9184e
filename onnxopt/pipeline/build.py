"""An artifact while it is being made: written, verified, and written again without fusions that break the limit.

A library whose kernels.json lists only some functions runs only those as kernels, and ONNX Runtime inlines the others:
so one model file serves every trial, and a trial costs one session and the cases that failed. The CPU runs no machine
code of GPUs, so a trial there need not wait until that is compiled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from onnxopt.artifact import layout
from onnxopt.artifact.folder import temporary_files, write_library
from onnxopt.artifact.manifest import LeftOut
from onnxopt.codegen import generate, kernels_json
from onnxopt.errors import NotVerifiedError, VerificationError
from onnxopt.fusion import outline
from onnxopt.fusion.region import Kernel
from onnxopt.graph import fused_domain, read, write
from onnxopt.graph import traits as model_traits
from onnxopt.graph.traits import Traits
from onnxopt.pipeline.machine_code import MachineCode
from onnxopt.runtime import sessions
from onnxopt.verification.bisect import bisect, bisect_in_order
from onnxopt.verification.check import Check
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.early_reference import EarlyRun
from onnxopt.verification.emulation.emulate import EmulatedKernel, Emulation, emulate
from onnxopt.verification.reference import NotRunnable, Reference, Refused
from onnxopt.verification.refusals import original_runs
from onnxopt.verification.sampling.user_data import UserData
from onnxopt.verification.verify import VerificationReport, describe_failure, references, verify_model, with_emulation

_ADVICE = "Give inputs that the model takes with --shape or --data; --no-verify keeps the result unchecked"
_ATTEMPTS = 4  # leaving functions out may uncover another function's error


class RewriteFails(Exception):
    """Some families of rewrite rules changed what the model computes, or raised an error.

    families: by name, each with its record for the manifest. The pipeline catches it and makes the artifact again
    without them.
    """

    def __init__(self, families: Mapping[str, LeftOut]) -> None:
        super().__init__(", ".join(families))
        self.families = families


class NormalizedDiffers(VerificationError):
    """The normalized model differs from the original, without any fusion and without rewrite rules."""


def _record_of(name: str, ops: tuple[str, ...], check: Check) -> LeftOut:
    """The record of a fused function, or of "rewrite:" and a family of rules, that a failed check shows to be wrong."""
    difference = check.difference
    return LeftOut(
        name=name,
        ops=ops,
        reason=describe_failure(check),
        max_abs=difference.max_abs if difference else None,
        excess=difference.excess if difference else None,
    )


@dataclasses.dataclass
class Build:
    """The parts of an artifact that is being made. folder: where `write` puts the files.

    code: of the kernels, for the architectures `archs`. families: of rewrite rules that were not left out.
    rewritten(families): the normalized model with only these applied, to find the wrong ones. portable: the form
    without operators of com.microsoft, where it was asked for. left_out: added to by `leave_out`. domain: of the
    functions, as written. fatbin: None until it is compiled.
    """

    model: ir.Model
    kernels: tuple[Kernel, ...]
    code: MachineCode
    archs: Sequence[str]
    folder: Path
    external_data: bool | None
    families: tuple[str, ...]
    rewritten: Callable[[Sequence[str]], ir.Model]
    portable: ir.Model | None = None
    left_out: list[LeftOut] = dataclasses.field(default_factory=list)
    domain: str = dataclasses.field(default=fused_domain.BARE, init=False)
    fatbin: bytes | None = None

    @property
    def model_file(self) -> Path:
        return self.folder / layout.MODEL

    @property
    def has_code(self) -> bool:
        """Whether the kernels have machine code for GPUs, also while it is being compiled."""
        return self.code.exists and bool(self.kernels)

    def write(self) -> None:
        """Write the model and what belongs to it into the folder, which is emptied first; `complete` adds the library.

        The fused functions move to the domain of the kernels.
        """
        for old in self.folder.iterdir():
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        archs = self.archs if self.has_code else ()
        self.domain = kernels_json.domain_of(self.kernels, self.code.source if self.has_code else "", archs)
        outline.move(self.model, self.domain)
        others = {layout.PORTABLE_MODEL: self.portable} if self.portable is not None else {}
        write.save(self.model, self.folder, external=self.external_data, others=others)
        if self.has_code:
            (self.folder / layout.SOURCE).write_text(self.code.source, "utf-8")

    def complete(self) -> None:
        """Write the library into the folder, with the fatbin if there is one."""
        if self.kernels:
            self.write_library(self.folder / layout.LIBRARY_FOLDER, self.kernels)

    def write_library(self, folder: Path, kernels: Sequence[Kernel]) -> Path:
        return write_library(folder, kernels_json.to_json(kernels, self.fatbin, self.domain), self.fatbin)

    @contextlib.contextmanager
    def loadable_library(self, scratch: Path) -> Iterator[Path | None]:
        """A copy of the library that may be loaded while the block runs; None without kernels.

        The artifact's own must stay unknown to the dynamic loader until it lies where it will be used, because a loaded
        library keeps the path it was loaded from.
        """
        with temporary_files(), tempfile.TemporaryDirectory(dir=scratch) as folder:
            yield self.write_library(Path(folder) / layout.LIBRARY_FOLDER, self.kernels) if self.kernels else None

    def leave_out(self, culprits: Mapping[str, Check]) -> None:
        """Put the original nodes back for these functions, and write the artifact again.

        The fatbin has their entry points all the same; nothing names them any more.
        """
        outline.inline(self.model, set(culprits))
        for kernel in self.kernels:
            if check := culprits.get(kernel.name):
                self.left_out.append(_record_of(kernel.name, kernel.ops, check))
        self.kernels = tuple(k for k in self.kernels if k.name not in culprits)
        self.write()


class Baseline(NamedTuple):
    """The model that an artifact is verified against, and what it runs on.

    shapes, data: the user's. early: the session of `source` that `open_early` began.
    """

    source: read.Source
    traits: Traits
    shapes: Mapping[str, tuple[int, ...]]
    data: Sequence[UserData]
    early: EarlyRun | None

    def references(self, traits: Traits, folder: Path, *, edge_cases: bool = False) -> list[Reference]:
        """Its outputs on each provider; see `references`. traits: its own, with what an equivalent model shows."""
        file = ModelFile(self.source.path, traits, self.source.bytes)
        coverage = Coverage(file.pinned(self.shapes), self.data, edge_cases=edge_cases)
        return references(file, coverage, folder=folder, early=self.early)


def verify_and_leave_out(
    build: Build,
    baseline: Baseline,
    scratch: Path,
    *,
    emulated: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> VerificationReport:
    """Verify the build against the source, leaving out the functions that break the limit.

    emulated: run the CUDA kernels on the CPU too. progress: see `verify_model`. Returns a report that passed.
    ModelError where ONNX Runtime refuses the original itself. NotVerifiedError where it does not run the original here.
    RewriteFails where rewrite rules are at fault. VerificationError where the interface changed, or outputs differ and
    neither fusions nor rewrite rules are at fault.
    """
    source, optimized = baseline.source, model_traits.of(build.model)
    if changed := model_traits.interface_difference(baseline.traits, optimized):
        raise VerificationError(f"{source}: optimizing changed the model's interface: {changed}")
    traits = model_traits.completed(baseline.traits, optimized)
    with original_runs(source, "cannot be verified", _ADVICE, "--no-verify optimizes it unchecked"), temporary_files():
        try:
            originals = baseline.references(traits, scratch, edge_cases=True)
        except Refused as error:
            if not source.converted:
                raise
            raise VerificationError(
                f"{source}: ONNX Runtime opens the original, but not the model that onnxopt converted it to: {error}. "
                "This is a defect of onnxopt, please report it; --keep-float NAME of a node that the message names may "
                "avoid it, and without --precision the model is optimized in its own precision"
            ) from error
        except NotRunnable as error:
            if not source.converted or not sessions.is_for_others(str(error)):
                raise
            raise NotVerifiedError(
                f"{source}: cannot be verified: {error}. ONNX Runtime has this operator for such floats on GPUs alone; "
                "verify on a machine with one; --no-verify keeps the result unchecked"
            ) from error
    for _ in range(_ATTEMPTS):
        with build.loadable_library(scratch) as library:
            report = verify_model(
                originals, build.model_file, library, {k.name: k.cpu for k in build.kernels}, progress
            )
            emulation = _emulate(build, library, scratch) if emulated and report.agrees else None
        if emulation is not None:
            report = with_emulation(report, emulation)
            if emulation.faults:
                build.leave_out(emulation.faults)
                continue
        if report.agrees:
            _check_portable(build, originals, source)
            return report
        with temporary_files():
            culprits = _kernels_at_fault(build, originals, report, source, scratch)
        build.leave_out(culprits)
    raise VerificationError(
        f"{source}: verification still fails after leaving out {len(build.left_out)} fusions: {report.reason}"
    )


def _emulate(build: Build, library: Path | None, scratch: Path) -> Emulation:
    kernels = [
        EmulatedKernel(
            k.name, k.kind.name, tuple(v.symbol for v in k.variants), generate.own_text(k),
            {site.node: site.shapes for site in k.sites},
        )
        for k in build.kernels
    ]  # fmt: skip
    return emulate(build.model_file, library, kernels, scratch)


def _kernels_at_fault(
    build: Build, originals: Sequence[Reference], report: VerificationReport, source: read.Source, scratch: Path
) -> dict[str, Check]:
    """The fused functions that break the limit, by name. Raises as `verify_and_leave_out` where none does."""
    without_library = [c for c in report.failures if not c.library]
    if without_library:  # ONNX Runtime ran the original nodes there, so no kernel is involved
        if families := _families_at_fault(build, originals, without_library, scratch):
            raise RewriteFails({name: _record_of(f"rewrite:{name}", (), check) for name, check in families.items()})
        raise NormalizedDiffers(
            f"{source}: the normalized model differs from the original, without any fusion: "
            f"{describe_failure(without_library[0])}. Please report it; --no-verify keeps the result unchecked"
        )

    def failure_of(enabled: Sequence[Kernel]) -> Check | None:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            library = build.write_library(Path(folder) / layout.LIBRARY_FOLDER, enabled)
            return _first_failure(originals, report.failures, build.model_file, library)

    culprits = bisect(build.kernels, failure_of, lambda kernel: kernel.name)
    if not culprits:
        raise VerificationError(f"{source}: {report.reason}; it does not happen again, so no fusion can be named")
    return culprits


def _families_at_fault(
    build: Build, originals: Sequence[Reference], failures: Sequence[Check], scratch: Path
) -> dict[str, Check]:
    """The families of rewrite rules that break the limit, found by applying one after the other without any fusion."""

    def failure_of(enabled: Sequence[str]) -> Check | None:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            write.save(build.rewritten(enabled), folder, external=build.external_data)
            return _first_failure(originals, failures, Path(folder) / layout.MODEL, None)

    if failure_of(()) is not None:  # normalization alone is wrong
        return {}
    return bisect_in_order(build.families, failure_of)


def _first_failure(
    originals: Sequence[Reference], failures: Sequence[Check], model: Path, library: Path | None
) -> Check | None:
    """The first check that a model fails, of the cases of earlier failures; None where it passes all of them."""
    for original in originals:
        earlier = [c for c in failures if c.provider == original.provider]
        checks = original.check(model, library, original.cases_of(earlier)) if earlier else []
        if failure := next((c for c in checks if not c.ok), None):
            return failure
    return None


def _check_portable(build: Build, originals: Sequence[Reference], source: read.Source) -> None:
    if build.portable is None:
        return
    report = verify_model(originals, build.folder / layout.PORTABLE_MODEL, None)
    if not report.agrees:
        raise VerificationError(
            f"{source}: the portable form differs from the original: {report.reason}. Please report it; "
            "optimize without --portable"
        )
