"""Judge: whether an output of another model is right, by the limit or by what speaks for it (evidence.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from onnxopt.runtime import sessions
from onnxopt.runtime.sessions import RunError
from onnxopt.verification.budget import QUICK, Budget
from onnxopt.verification.check import Check
from onnxopt.verification.compare import Array, Difference, compare, flushed, is_float
from onnxopt.verification.evidence import Evidence, questions
from onnxopt.verification.overflow import Overflow
from onnxopt.verification.repeats import Repeats
from onnxopt.verification.rounding import without_rounding
from onnxopt.verification.rounding.exactness import Exactness, Float32
from onnxopt.verification.sampling import cases, edges
from onnxopt.verification.sampling.cases import Case


class Original(without_rounding.Original, Protocol):
    """The original, and the time that there is for what no verdict needs."""

    budget: Budget


class Judge:
    """Compares outputs with the original's. Equal outputs of a case are judged once."""

    def __init__(self, original: Original) -> None:
        self._original = original
        self.evidence = Evidence(original)
        self._overflow = Overflow(original)
        self._repeats = Repeats(original)
        self._plain: dict[Case, Mapping[str, Array]] = {}  # without ONNX Runtime's optimizations
        self._in_float32: Float32 | None = None
        self._float32_tried = False
        self._judged: dict[tuple[Case, str, str], Check] = {}  # by digest of the output
        self._accounts = False  # whether an output above the limit was accounted for
        self._omitted = set[Case]()

    def check(self, label: tuple[str, bool], case: Case, name: str, actual: Array | None) -> Check:
        """One output compared; equal ones of a case are compared once."""
        expected = self._original.outputs[case][name]
        if actual is None:
            return Check(*label, str(case), name, None, error="the output is missing")
        key = case, name, cases.digest({name: actual})
        if key not in self._judged:
            self._judged[key] = self._compare(label, case, name, expected, actual)
        return dataclasses.replace(self._judged[key], provider=label[0], library=label[1])

    def _compare(self, label: tuple[str, bool], case: Case, name: str, expected: Array, actual: Array) -> Check:
        difference = compare(expected, actual, self._original.limit(name))
        if not difference.ok:
            actual = self._repeats.without_changing(case, name, actual)
            difference = compare(expected, actual, self._original.limit(name))
        if case.kind in edges.NONFINITE and not difference.ok:
            difference = compare(expected, self._where_fixed(case, name, actual), self._original.limit(name))
        if case.kind == edges.DENORMAL and not difference.ok:
            difference = self._with_denormals_as_zero(case, name, actual)
        if not difference.ok and case.kind in edges.UP_TO and self._overflows(case):
            return Check(*label, str(case), name, difference, unstable=True)
        if without_rounding.decides(difference, self._original.traits) and (float32 := self._float32()) is not None:
            exactness = float32.judge(case, name, actual)
            if exactness is not None and (exactness.ok or case.kind not in edges.UP_TO):
                return Check(*label, str(case), name, difference, exactness=exactness)
            if exactness is not None:
                return self._by_spread(label, case, name, difference, exactness, actual)
        if not questions(difference, self._original.traits.precision) or (difference.ok and not self._has_time(case)):
            return Check(*label, str(case), name, difference)
        self._accounts |= not difference.ok
        exactness64 = self.evidence.from_float64(case, name, actual)
        if exactness64 is not None and exactness64.ok:
            return Check(*label, str(case), name, difference, exactness=exactness64)
        return self._by_spread(label, case, name, difference, exactness64, actual)

    def _by_spread(
        self,
        label: tuple[str, bool],
        case: Case,
        name: str,
        difference: Difference,
        exactness: Exactness | None,
        actual: Array,
    ) -> Check:
        """The check of an output that nothing else speaks for. exactness: what speaks against it, if anything does."""
        spread = self.evidence.spread(case, name, difference.excess, actual)
        noise, unstable = (None, False) if spread is None else (spread.excess, spread.excess is None)
        return Check(*label, str(case), name, difference, noise, unstable, exactness=exactness)

    def has_time(self, case: Case) -> bool:
        """Whether there is time to run and judge a case, of originals whose outputs have to be accounted for.

        Where they have to, noise of other seeds than the first is left out, as its runs in float64 take no part of the
        time that is predicted.
        """
        budget = self._original.budget
        if case in self._omitted:
            return False
        if self._original.traits.random:  # whose cases draw one after the other
            return True
        is_repeated = not case.kind and not case.data and case.seed not in cases.seeds_of_kinds(self._original.traits)
        if not is_repeated or not self._accounts or budget.run <= QUICK or self.evidence.is_known(case):
            return True
        if budget.takes_float64():
            return True
        self._omitted.add(case)
        budget.leave_out("noise of other seeds")
        return False

    def _has_time(self, case: Case) -> bool:
        """Whether there is time to account for differences within the limit at a case."""
        budget = self._original.budget
        if self.evidence.is_known(case) or budget.takes_float64():
            return True
        budget.leave_out("accounts for differences within the limit")
        return False

    def _overflows(self, case: Case) -> bool:
        return self._original.traits.is_narrow and self._overflow.happens(case)

    def _float32(self) -> Float32 | None:
        """The original without its own rounding; None where it has none, or does not run so."""
        if self._in_float32 is None and not self._float32_tried:
            self._float32_tried = True
            self._in_float32 = without_rounding.of(self._original)
        return self._in_float32

    def _where_fixed(self, case: Case, name: str, actual: Array) -> Array:
        """An output, with the original's elements where the original does not fix whether they are NaN or infinite.

        That is where the original without ONNX Runtime's optimizations has another of these, or floats decide integers.
        """
        expected, plain = self._original.outputs[case][name], self._unoptimized(case).get(name)
        if not is_float(expected) and name.split("[")[0] in self._original.traits.float_decided:
            return expected
        if plain is None or not expected.shape == plain.shape == actual.shape or not is_float(expected):
            return actual
        one, other = (array.astype(np.float64) for array in (expected, plain))
        is_fixed = (np.isnan(one) == np.isnan(other)) & (
            np.where(np.isinf(one), one, 0) == np.where(np.isinf(other), other, 0)
        )
        return np.where(is_fixed, actual, expected)

    def _with_denormals_as_zero(self, case: Case, name: str, actual: Array) -> Difference:
        """The difference at an input of denormals where a result that is one, or the input, may be taken as 0."""
        difference = compare(flushed(self._original.outputs[case][name]), flushed(actual), self._original.limit(name))
        zeros = self._original.outputs.get(dataclasses.replace(case, kind=edges.NOTHING))
        return (
            difference
            if difference.ok or zeros is None
            else compare(zeros[name], flushed(actual), self._original.limit(name))
        )

    def _unoptimized(self, case: Case) -> Mapping[str, Array]:
        if case not in self._plain:
            try:
                self._plain[case] = sessions.run(
                    self._original.open(self._original.model, library=self._original.library, optimize=False),
                    self._original.feeds(case),
                )
            except RunError:
                self._plain[case] = {}
        return self._plain[case]
