"""Reference: the original model's outputs for the cases that it accepts, and how another model's outputs compare."""

from __future__ import annotations

import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt import children
from onnxopt.errors import NotVerifiedError, OnnxoptError
from onnxopt.graph import signature
from onnxopt.graph.signature import Sizes
from onnxopt.graph.traits import Traits
from onnxopt.runtime import isolated, sessions
from onnxopt.runtime.sessions import RunError, RunTimeout, SessionSetup
from onnxopt.verification.budget import QUICK, Budget
from onnxopt.verification.check import Check, Skipped
from onnxopt.verification.compare import Array, Limit
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.early_reference import Begun, EarlyRun, Ran, config_of
from onnxopt.verification.executed import Profile
from onnxopt.verification.judging import Judge
from onnxopt.verification.sampling import cases, edges, samples
from onnxopt.verification.sampling.cases import SEEDS, Case
from onnxopt.verification.sampling.edge_cases import EdgeCases
from onnxopt.verification.sampling.inputs import Inputs
from onnxopt.verification.sampling.seeding import seeded
from onnxopt.verification.sampling.user_data import UserData
from onnxopt.verification.sharpness import Weak, weak_outputs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_MAX_BYTES = 256 << 20  # reference outputs kept for one provider
_SEARCH_SECONDS = 10.0  # for a model that accepts none of the usual shapes
_MEASURED, _MEASURED_AGAIN = 2, 3.0  # more runs of a case that was quick, and seconds up to which there is one


class NotRunnable(OnnxoptError):
    """ONNX Runtime cannot run the original model on this machine; the message is its reason."""


class Refused(NotRunnable):
    """ONNX Runtime opens the original nowhere: it is no valid model. The message is ONNX Runtime's."""


class TooSlow(NotRunnable):
    """One run of the original takes longer than it may; the message says where."""


class Reference:
    """The original's outputs on one provider, at the cases it accepts.

    Raises NotRunnable where it accepts none. folder: for temporary copies (of models that draw random numbers,
    with seeds fixed). early: a session of the same model on the same provider that was begun earlier, with its first
    case.
    """

    def __init__(
        self,
        original: ModelFile,
        provider: str,
        coverage: Coverage,
        *,
        folder: Path,
        early: EarlyRun | None = None,
    ):
        self.model, self.library, self.traits = original.path, original.library, original.traits
        self.provider, self.folder = provider, folder
        self.skipped: list[Skipped] = []
        self.notes = [
            f"{provider}: without ONNX Runtime's optimizer {name}, which can end the process that opens this model"
            for name in self.traits.trapping_optimizers
        ]
        self.outputs: dict[Case, dict[str, Array]] = {}
        self._early: dict[Case, Ran] = {}  # by a run that was begun early
        self._inputs = Inputs(self.traits, coverage.data)
        self._edge_cases = coverage.edge_cases
        self._seconds: dict[Case, tuple[float, float]] = {}  # of drawing a case and of its run
        self.budget = Budget(0.0, 0.0)  # until a plain run is measured
        self.judge = Judge(self)
        self._trial = isolated.Trial(self.model, provider=provider, library=self.library) if self.traits.traps else None
        try:
            if self._trial is not None:
                self._trial.open()
            begun = None if early is None else early.take()
            begun = begun or Begun(self.open(self.model, library=self.library), {}, 0.0)
            _unsupported_kinds(self.traits)
            if coverage.data:
                self._collect_data(begun.session, coverage.data)
            else:
                self._collect(begun, coverage)
        except RunTimeout as error:
            raise TooSlow(f"{provider}: {error}") from error
        except RunError as error:
            raise (NotRunnable if sessions.is_for_others(str(error)) else Refused)(str(error)) from error
        finally:
            if self._trial is not None:
                self._trial.close()
        if not self.outputs:
            reason = self.skipped[-1].reason if self.skipped else "no shapes to try"
            raise NotRunnable(f"{provider} accepted none of the inputs tried; the last time: {reason}")
        if not any(self.outputs.values()):
            raise NotRunnable("it gives no output that could be compared")
        if not any(array.size for outputs in self.outputs.values() for array in outputs.values()):
            self.notes.append(f"{provider}: every output was empty, so only dtypes and shapes were compared")
        if not self.budget.is_measured:
            self.budget = self._measured(list(self.outputs)[-1], None)

    def check(
        self,
        model: Path,
        library: Path | None,
        cases: Iterable[Case] | None = None,
        profile: Profile | None = None,
        ran: Callable[[], None] = lambda: None,
    ) -> list[Check]:
        """Run another model at these cases (default: all) and compare; a model that does not run is a failed check.

        profile: notes the kernels that these runs execute. ran: called after each case.
        """
        label = (self.provider, library is not None)
        try:
            session = self.open(model, library=library, profile=profile)
        except RunError as error:
            return [Check(*label, "session", "", None, error=str(error))]
        if profile is not None:
            profile.begin(session)
        refuses = functools.partial(self._graph_refuses, model, is_alone=library is None)
        checks = self._check_runs(session, label, set(self.outputs if cases is None else cases), profile, ran, refuses)
        if profile is not None:
            profile.end()
        return checks

    def _check_runs(
        self,
        session: InferenceSession,
        label: tuple[str, bool],
        wanted: set[Case],
        profile: Profile | None,
        ran: Callable[[], None],
        refuses: Callable[[Case, RunError], bool],
    ) -> list[Check]:
        checks: list[Check] = []
        for case, actual in self._run_all(session, wanted):
            if profile is not None:
                profile.ran()
            if case not in wanted:
                continue
            if isinstance(actual, RunError):
                if (case.kind != edges.EMPTY or not refuses(case, actual)) and not self._is_invalid(case):
                    checks.append(Check(*label, str(case), "", None, error=str(actual)))
                continue
            compared = self.compare_outputs(label, case, actual)
            if all(check.ok for check in compared) or not self._is_invalid(case):
                checks += compared
            ran()
        return checks

    def _is_invalid(self, case: Case) -> bool:
        """Whether the CPU refuses a great size that another provider runs the original at, which is said.

        Gather on CUDA gives zeros for positions that a table lacks, as those after its last row.
        """
        if self.provider == sessions.CPU or case.kind not in edges.GREAT:
            return False
        try:
            sessions.run(sessions.open_session(self.model, provider=sessions.CPU), self.feeds(case))
        except RunError as error:
            if sessions.is_for_others(str(error)) or "alloc" in str(error):  # no kernel, or no memory, for it there
                return False
            note = f"{self.provider}: the original runs at {case}, which it refuses on the CPU: {error}"
            self.notes += [note] if note not in self.notes else []
            return True
        return False

    def _graph_refuses(self, model: Path, case: Case, error: RunError, *, is_alone: bool) -> bool:
        """Whether the graph itself refuses a dim of 0, which is said and costs no rule: nobody is answered wrongly.

        is_alone: whether the model ran without kernels, which are at fault where they alone refuse.
        """
        if not is_alone:
            try:
                sessions.run(self.open(model), self.feeds(case))
                return False
            except RunError as of_graph:
                error = of_graph
        sizes = signature.describe(dict(case.sizes))
        note = f"{self.provider}: the optimized model refuses {sizes}, which the original takes: {error}"
        if note not in self.notes:
            self.notes.append(note)
        return True

    def compare_outputs(self, label: tuple[str, bool], case: Case, actual: Mapping[str, Array]) -> list[Check]:
        """Compare another model's outputs of a case. label: the provider, and whether the library took part."""
        return [self.judge.check(label, case, name, actual.get(name)) for name in self.outputs[case]]

    def left_out(self) -> tuple[str, ...]:
        """What was left out so far because there is no time for it, for the report."""
        note = self.budget.note()
        return (f"{self.provider}: {note}",) if note else ()

    def outputs_of(
        self, model: Path, library: Path | None, *, optimize: bool = True
    ) -> Iterator[tuple[Case, dict[str, Array] | RunError]]:
        """Another model's outputs of every case. RunError where ONNX Runtime does not open it."""
        return self._run_all(self.open(model, library=library, optimize=optimize))

    def weak(self, checks: Sequence[Check]) -> tuple[Weak, ...]:
        """The outputs of these checks, of this provider, that decide nothing."""
        limits = {name: self.limit(name) for outputs in self.outputs.values() for name in outputs}
        telling = {str(c): outputs for c, outputs in self.outputs.items() if c.kind not in edges.UNTELLING}
        checks = [check for check in checks if check.case in telling]
        return weak_outputs(self.provider, telling.values(), checks, limits, self.traits.input_decided)

    def cases_of(self, checks: Iterable[Check]) -> list[Case]:
        """The cases these checks belong to; the first case stands for a session that could not be created."""
        names = {c.case for c in checks}
        return [c for c in self.outputs if str(c) in names] or list(self.outputs)[:1]

    def _run_all(
        self, session: InferenceSession, wanted: Collection[Case] | None = None
    ) -> Iterator[tuple[Case, dict[str, Array] | RunError]]:
        """Outputs of the wanted cases (default: all), in order; of all where random numbers come in that order."""
        for case in self.outputs:
            if wanted is not None and case not in wanted and not self.traits.random:
                continue
            if not self.judge.has_time(case):
                continue
            try:
                yield case, sessions.run(session, self.feeds(case))
            except RunTimeout as error:
                raise NotVerifiedError(
                    f"{self.provider}, {case}: the original runs, and of its other form {error}"
                ) from error
            except RunError as error:
                yield case, error

    def limit(self, name: str) -> Limit:
        decided = name.split("[")[0] in self.traits.float_decided
        return Limit.of(self.traits.precision, float_decides=decided)

    def _collect_data(self, session: InferenceSession, data: Sequence[UserData]) -> None:
        """Run the user's inputs. NotRunnable names the first that the original refuses."""
        for item in data:
            case = Case(tuple(item.sizes.items()), SEEDS[0], item.name)
            if not self._try(session, case, self.outputs) and case not in self.outputs:
                raise NotRunnable(f"{self.provider} refuses the inputs of {item.name}: {self.skipped[-1].reason}")

    def _collect(self, begun: Begun, coverage: Coverage) -> None:
        pinned, session, seeds = coverage.pinned, begun.session, cases.seeds_of_kinds(self.traits)
        started = time.monotonic()  # an early run took longer beside other work than it takes
        empty: dict[Case, dict[str, Array]] = {}
        self._early = dict(begun.ran)
        for seed, sizes in itertools.product(SEEDS, cases.usual(self.traits, pinned)):
            if seed not in seeds and self._edge_cases and self.outputs:
                self._collect_edges(session, pinned)
            held = sum(a.nbytes for case in self.outputs.values() for a in case.values())
            spent = time.monotonic() - started
            if self.outputs and (held > _MAX_BYTES or (not self._is_quick() and spent > coverage.seconds)):
                break
            if not self.outputs and spent > _SEARCH_SECONDS:
                break
            case = Case(tuple(sizes.items()), seed)
            if seed not in seeds and not any(Case(case.sizes, first) in self.outputs for first in seeds):
                continue
            self._try(session, case, empty)
        if not self.outputs and coverage.search:
            self._search(session, pinned, empty)
        if self.outputs and self._edge_cases:
            self._collect_edges(session, pinned)
        self.outputs = self.outputs or empty
        if self.traits.random and self.outputs:  # refused runs drew numbers too: run once more without them
            again = self._run_all(self.open(self.model, library=self.library))
            self.outputs = {case: out for case, out in again if not isinstance(out, RunError)}

    def _collect_edges(self, session: InferenceSession, pinned: Sizes) -> None:
        """Run cases of other kinds than noise, once, at the last sizes that were accepted."""
        self._edge_cases = False
        too_slow: list[Case] = []

        def run(case: Case) -> dict[str, Array] | None:
            if too_slow or cases.why_not(self.traits, case):
                return None
            try:
                return sessions.run(session, self.feeds(case))
            except RunTimeout as error:
                too_slow.append(case)
                self.skipped.append(Skipped(self.provider, str(case), str(error)))
            except RunError:
                pass
            return None

        self.budget = self._measured(list(self.outputs)[-1], session)
        if self.provider != sessions.CPU and edges.ends_when_empty(self.traits):
            self.notes.append(f"{self.provider}: sizes of 0 are not tried, at which com.microsoft can end the process")
        for seed in cases.seeds_of_kinds(self.traits):
            earlier = [case for case in self.outputs if case.seed == seed]
            if earlier:
                written = sum(array.nbytes for array in self.outputs[earlier[-1]].values())
                on_gpu = self.provider != sessions.CPU
                tried = EdgeCases(self.traits, pinned, on_gpu, run, self.budget, written, seed)
                self.outputs.update(tried.accepted(dict(earlier[-1].sizes), earlier))

    def _measured(self, case: Case, session: InferenceSession | None) -> Budget:
        """What a plain run takes: the fastest of two, and of more where that takes no time."""
        draw, seconds = self._seconds.get(case, (0.0, 0.0))
        again = 0 if session is None or seconds > _MEASURED_AGAIN else _MEASURED if seconds < QUICK else 1
        feeds = self.feeds(case)
        for _ in range(again):
            with children.none_beside():
                before = time.monotonic()
                sessions.run(session, feeds)  # type: ignore[arg-type]
                seconds = min(seconds, time.monotonic() - before)
        return Budget(seconds, draw)

    def _search(self, session: InferenceSession, pinned: Sizes, empty: dict[Case, dict[str, Array]]) -> None:
        """Look for any shape that the model accepts, then try more cases of that size; keep only the last refusal."""
        listed, started = len(self.skipped), time.monotonic()
        batch, _ = signature.roles(self.traits.inputs)
        inputs = self.traits.inputs
        for sizes in cases.unique(samples.fitted(inputs, sizes, pinned) for sizes in samples.fallback_sizes(inputs)):
            if time.monotonic() - started > _SEARCH_SECONDS:
                break
            items, seeds = tuple(sizes.items()), cases.seeds_of_kinds(self.traits)
            if any(self._try(session, Case(items, seed), empty) for seed in seeds):
                larger = {**sizes, **dict.fromkeys(batch, 3), **pinned}
                for case_sizes, seed in itertools.product(cases.unique([sizes, larger]), SEEDS):
                    case = Case(tuple(case_sizes.items()), seed)
                    if case not in self.outputs:
                        self._try(session, case, empty)
                break
        del self.skipped[listed:-1]

    def _try(self, session: InferenceSession, case: Case, empty: dict[Case, dict[str, Array]]) -> bool:
        if reason := cases.why_not(self.traits, case):
            self.skipped.append(Skipped(self.provider, str(case), reason))
            return False
        try:
            before = time.monotonic()
            feeds, drawn = self.feeds(case), time.monotonic() - before
            if self._trial is not None:
                self._trial.run(feeds)
            early = self._early.pop(case, None)
            is_same = early is not None and early.inputs == self._inputs.digest(case)
            before = time.monotonic()
            outputs = early.outputs if early is not None and is_same else sessions.run(session, feeds)
        except RunError as error:
            self.skipped.append(Skipped(self.provider, str(case), str(error)))
            if isinstance(error, RunTimeout) and not self.outputs:  # each other case might take as long
                raise TooSlow(f"{self.provider}, {case}: {error}") from error
            return False
        self._seconds[case] = drawn, early.seconds if early is not None and is_same else time.monotonic() - before
        nothing = not any(a.size for a in outputs.values())
        (empty if nothing else self.outputs)[case] = outputs
        return not nothing

    def _is_quick(self) -> bool:
        """Whether all usual cases are run, however busy the machine is."""
        return min((run for _, run in self._seconds.values()), default=1.0) < QUICK

    def feeds(self, case: Case) -> dict[str, Any]:
        """The inputs of a case, by name: every time those that its outputs belong to."""
        return self._inputs.of(case)

    def open(
        self,
        model: Path,
        *,
        library: Path | None = None,
        optimize: bool = True,
        integer_kernels: bool = True,
        reuse_memory: bool = True,
        profile: Profile | None = None,
    ) -> InferenceSession:
        """A session of a form of the original. integer_kernels: whether ONNX Runtime may make such of codes.

        The rest as for `sessions.open_session`.
        """
        config = config_of(self.traits) | ({} if integer_kernels else dict([sessions.WITHOUT_INTEGER_KERNELS]))
        setup = SessionSetup(config, reuse_memory, None if profile is None else profile.prefix)
        opened = functools.partial(sessions.open_session, provider=self.provider, library=library, optimize=optimize)
        if not self.traits.random:
            return opened(model, setup=setup)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            copy = seeded(model, Path(folder) / "seeded.onnx")
            return opened(copy, setup=setup._replace(data_folder=model.parent))


def _unsupported_kinds(traits: Traits) -> None:
    for tensor in traits.inputs:
        if tensor.kind not in ("tensor", "sequence"):
            article = "an" if tensor.kind[0] in "aeiou" else "a"
            raise NotRunnable(f"input {tensor.name} is {article} {tensor.kind}, which verify cannot draw")
