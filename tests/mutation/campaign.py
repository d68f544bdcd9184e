"""Optimize a model, and ask its verification what it says of mutants: of wrong kernels, with one fault each.

`optimize` verifies as always. Then every mutant is checked against the same runs of the original, as `optimize` checks
an artifact. Of a mutant that passes, other inputs (`Fresh`) say whether it could have been found.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import onnx

from onnxopt.codegen import generate
from onnxopt.fusion.region import Kernel
from onnxopt.pipeline import build as building
from onnxopt.pipeline import flow, making
from onnxopt.pipeline.build import Build
from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import RunError
from onnxopt.verification import verify as verification
from onnxopt.verification.emulation import shape_text
from onnxopt.verification.emulation.emulate import EmulatedKernel, emulate
from onnxopt.verification.reference import Check, Reference
from onnxopt.verification.verify import VerificationReport
from tests.mutation import headers, mutants, programs
from tests.mutation.fresh import Fresh
from tests.mutation.headers import HeaderMutant
from tests.mutation.mutants import Mutant
from tests.mutation.programs import ProgramMutant
from tests.support import fusing

FOUND, MISSED, BELOW = "found", "missed", "below the limit"
WHERE = ("function", "program", "graph", "text", "header")  # what is wrong
EMULATED = ("text", "header")  # of which the emulation of CUDA kernels tells
GRAPH = "between kernels"  # instead of a kind


@dataclasses.dataclass(frozen=True)
class Result:
    """What verification says of one mutant. where: of WHERE. outcome: FOUND, MISSED, or BELOW, where it moves no output
    above the limit at any input that was tried. told: the case that tells it, or what it gives wrong."""

    where: str
    of: str
    kind: str
    kernel: str
    place: str
    outcome: str
    told: str = ""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which mutants to try: at most so many of each class for a kind, of these classes (all: none named), in these
    places. times: the limit from which on a fault counts as above it."""

    at_most: int = 1 << 30
    only: Sequence[str] = ()
    where: Sequence[str] = WHERE[:-2]
    times: float = 1.0


def run(model: Path, folder: Path, plan: Plan) -> list[Result]:
    """Optimize a model into `folder` and try mutants of the artifact."""
    results: list[Result] = []
    of_original: list[Reference] = []
    verify, references = building.verify_and_leave_out, verification.references

    def kept(*given: Any, **named: Any) -> list[Reference]:
        of_original[:] = references(*given, **named)
        return of_original

    def verified(build: Build, *given: Any, **named: Any) -> VerificationReport:
        with mock.patch.object(building, "references", kept):
            report = verify(build, *given, **named)
        results.extend(_Campaign(build, of_original[0], folder.with_name("mutants"), plan.times).results(plan))
        return report

    with mock.patch.object(making, "verify_and_leave_out", verified):
        flow.optimize(model, folder, archs=["sm_90"])
    return results


AnyMutant = Mutant | ProgramMutant | HeaderMutant


@dataclasses.dataclass(frozen=True)
class _Of:
    """What a mutant is one of. kernel: the name of its function, "" of none."""

    where: str
    of: str
    kind: str


class _Campaign:
    """The mutants of one artifact. reference: the original's runs, which verification has made."""

    def __init__(self, build: Build, reference: Reference, scratch: Path, times: float):
        self._build, self._reference, self._scratch, self._times = build, reference, scratch, times
        self._proto = onnx.load(build.model_file, load_external_data=False)
        self._fresh: Fresh | None = None
        self._written = 0
        scratch.mkdir()

    def results(self, plan: Plan) -> Iterator[Result]:
        chosen: dict[_Of, list[tuple[str, AnyMutant]]] = collections.defaultdict(list)
        for where in plan.where:
            for kind, kernel, mutant in self._mutants(where):
                if not plan.only or mutant.of in plan.only:
                    chosen[_Of(where, mutant.of, kind)].append((kernel, mutant))
        for of, some in chosen.items():
            left = plan.at_most
            for kernel, mutant in sorted(some, key=lambda pair: zlib.crc32(f"{pair[0]} {pair[1].place}".encode())):
                result = self._result(of, kernel, mutant) if left else None
                if result is not None:
                    yield result
                    left -= 1

    def _mutants(self, where: str) -> Iterator[tuple[str, str, AnyMutant]]:
        """Kind, function and mutant."""
        functions = {f.name: f for f in self._proto.functions}
        if where == "graph":
            for mutant in mutants.of_graph(self._proto.graph):
                yield GRAPH, "", mutant
            return
        for kernel in self._build.kernels:
            if where == "function":
                shapes = [shape_text.parse(text) for text in kernel.sites[0].shapes]
                found: Iterator[AnyMutant] = mutants.of_function(functions[kernel.name], shapes)
            elif where == "header":
                found = headers.of_text(generate.own_text(kernel))
            elif where == "program" and not self._runs_right(kernel):
                continue
            else:
                found = programs.of_meaning(kernel.program)
            for each in found:
                yield kernel.kind.name, kernel.name, each

    def _result(self, of: _Of, kernel: str, mutant: AnyMutant) -> Result | None:
        """None where nothing could be like this mutant: ONNX Runtime or the library refuses it."""
        if of.where in EMULATED:
            outcome = self._emulated(kernel, mutant)
        elif isinstance(mutant, ProgramMutant):
            outcome = self._checked_program(kernel, mutant)
        else:
            assert isinstance(mutant, Mutant)
            with self._model(kernel, mutant) as model:
                outcome = self._checked(model)
        return None if outcome is None else Result(of.where, of.of, of.kind, kernel, mutant.place, *outcome)

    def _checked_program(self, kernel: str, mutant: ProgramMutant) -> tuple[str, str] | None:
        return self._checked(self._build.model_file, self._library(kernel, mutant), self._library(kernel, None))

    def _checked(self, model: Path, library: Path | None = None, right: Path | None = None) -> tuple[str, str] | None:
        """The outcome and what tells it. None where the model does not open."""
        try:
            session = self._reference.open(model, library=library)
        except RunError:
            return None
        label = (self._reference.provider, library is not None)
        for case in self._reference.outputs:  # as Reference.check does, up to the first that fails
            try:
                outputs = sessions.run(session, self._reference.feeds(case))
            except RunError as error:
                return FOUND, f"{case}: {error}"
            checks = self._reference.compare_outputs(label, case, outputs)
            if failed := next((c for c in checks if not c.ok), None):
                return FOUND, _told(failed)
        if self._fresh is None:
            self._fresh = Fresh(self._reference, self._build.model_file, self._times)
        above = self._fresh.above(model, library, right)
        return (MISSED if above else BELOW), above

    def _emulated(self, name: str, mutant: AnyMutant) -> tuple[str, str] | None:
        """The same of the CUDA text. None where the emulation does not run it."""
        if isinstance(mutant, HeaderMutant):
            text = generate.own_text(self._kernel(name))
            with mutant.included(self._scratch / "include"):
                told = self._emulation(name, text)
                if told == "":
                    with headers.many_sizes():
                        above = self._emulation(name, text)
                    return (MISSED if above else BELOW), above or ""
            return None if told is None else (FOUND, told)
        assert isinstance(mutant, ProgramMutant)
        changed = dataclasses.replace(self._kernel(name), program=mutant.meaning)
        told = self._emulation(name, generate.own_text(changed))
        if told == "" and not fusing.has_cpu_kernels(self._kernel(name).kind):
            with headers.many_sizes():
                above = self._emulation(name, generate.own_text(changed))
            return (MISSED if above else BELOW), above or ""
        if told == "":  # then the CPU kernel of this program decides
            outcome = self._checked_program(name, mutant)
            return outcome and (BELOW if outcome[0] == BELOW else MISSED, outcome[1])
        return None if told is None else (FOUND, told)

    def _emulation(self, name: str, text: str) -> str | None:
        """What an emulation says of a kernel's text, "" where it passes; None where it does not run it."""
        kernel = self._kernel(name)
        wrong = EmulatedKernel(
            name, kernel.kind.name, tuple(v.symbol for v in kernel.variants), text,
            {site.node: site.shapes for site in kernel.sites},
        )  # fmt: skip
        emulation = emulate(self._build.model_file, self._library(name, None), [wrong], self._scratch)
        if name in emulation.faults:
            return _told(emulation.faults[name])
        return "" if emulation.checks else None

    @contextlib.contextmanager
    def _model(self, kernel: str, mutant: Mutant) -> Iterator[Path]:
        """A model file with one function changed, or its graph. Beside the artifact's, whose weights it shares."""
        changed = onnx.ModelProto()
        changed.CopyFrom(self._proto)
        mutant.apply(next((f for f in changed.functions if f.name == kernel), changed.graph))
        path = self._build.folder / "mutant.onnx"
        onnx.save(changed, path)
        yield path
        path.unlink()

    def _kernel(self, name: str) -> Kernel:
        return next(k for k in self._build.kernels if k.name == name)

    def _library(self, name: str, mutant: ProgramMutant | None) -> Path:
        """A library with this kernel, of another program, and no other; the CPU kernel runs where its kind has one."""
        kernel = self._kernel(name)
        program = kernel.program if mutant is None else mutant.meaning
        self._written += 1
        folder = self._scratch / str(self._written)
        alone = dataclasses.replace(kernel, program=program, cpu=fusing.has_cpu_kernels(kernel.kind))
        return self._build.write_library(folder, [alone])

    def _runs_right(self, kernel: Kernel) -> bool:
        """Whether there is a CPU kernel, which `optimize` may not have chosen, and it passes unchanged."""
        if not fusing.has_cpu_kernels(kernel.kind):
            return False
        checks = self._reference.check(self._build.model_file, self._library(kernel.name, None))
        return all(c.ok for c in checks)


def _told(check: Check) -> str:
    return f"{check.case}: {check.error or (check.difference.reason if check.difference else '')}"
