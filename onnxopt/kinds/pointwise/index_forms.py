"""Index forms as CUDA text: the sums ((i / div) mod mod) * stride of accesses and conditions, spelled out.

Numbers that are known are constants: a division by one is a few instructions. Numbers with symbolic dims are read from
the kernel's parameters, where the host writes every term at its place in kernels.json. A symbolic extent that several
terms share is read in one place, and quotients are made of one another, so that the compiler sees what is equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from onnxopt.kinds.pointwise.access_modes import columns
from onnxopt.program.extents import ONE, Extent, product
from onnxopt.program.indexing import Access, Indexing, Term

NONE = ["static constexpr bool kSpelled = false;"]
_DECOMPOSED = "static constexpr bool kSpelled = true;"

# The array of Term of form number k in the parameters.
Place = Callable[[int], str]


def of_kernel(index: Indexing) -> list[str]:
    """The members of a pointwise kernel's struct that tell where its elements lie."""
    accesses = len(index.accesses)
    forms = _Forms(
        index,
        product(index.shapes[0]),
        lambda k: f"params.input[{k}].term" if k < accesses else f"params.condition[{k - accesses}].term",
    )
    steps = ", ".join(str(_static_step(a.terms)) for a in index.accesses)
    return [
        _DECOMPOSED,
        f"static constexpr int known_step[] = {{{steps}}};",
        *forms.function("at", "Index", forms.sums(index.forms)),
        *forms.function("across", "Index", forms.sums_of_rows(index.accesses)),
        *forms.function("stretch", "Stretch<Index>", forms.stretches(index.accesses)),
    ]


def of_rows(index: Indexing, count: Extent) -> list[str]:
    """The struct Forms of a rowwise kernel, for a domain of `count` elements."""
    forms = _Forms(index, count, lambda k: f"params.input[{k}].term")
    body = [_DECOMPOSED, *forms.function("at", "Index", forms.sums(index.forms))]
    return ["struct Forms {", *(f"  {line}" for line in body), "};"]


def _static_step(terms: Sequence[Term]) -> int:
    """The step from one element of a run or cell to the next where it is 0 or 1, else -1."""
    if not terms or terms[0].div != ONE:
        return 0
    return 1 if terms[0].stride == ONE else -1


class _Forms:
    """The text of one kernel's forms over a domain of `count` elements."""

    def __init__(self, index: Indexing, count: Extent, place: Place):
        self._count = count
        self._divisors: dict[Extent, str] = {}
        self._strides: dict[Extent, str] = {}
        self._divs: dict[Extent, None] = {}
        for k, form in enumerate(index.forms):
            for t, term in enumerate(form):
                self._divs.setdefault(term.div)
                for name, extent in (("mod", term.mod), ("div", term.div)):
                    if extent.symbols:
                        self._divisors.setdefault(extent, f"{place(k)}[{t}].{name}")
                if term.stride.symbols:
                    self._strides.setdefault(term.stride, f"{place(k)}[{t}].stride")

    def function(self, name: str, result: str, texts: Iterable[tuple[int, str]]) -> list[str]:
        """A device function of a form's number, the parameters and an index. texts: numbers, and what is returned."""
        body = [f"  if constexpr (kForm == {k}) return {text};" for k, text in texts]
        if not body:
            return []
        params = " params" if any("params." in line for line in body) else ""
        return [
            "template <int kForm, typename P, typename Index>",
            f"__device__ static {result} {name}(const P&{params}, Index i) {{",
            *body,
            "  return {};",
            "}",
        ]

    def sums(self, forms: Sequence[Sequence[Term]]) -> Iterator[tuple[int, str]]:
        """Every form of the index i, by its number."""
        for k, form in enumerate(forms):
            yield k, self._sum(form, self._count)

    def sums_of_rows(self, accesses: Sequence[Access]) -> Iterator[tuple[int, str]]:
        """Of each access that a tile may read along columns, the same for an index i below the number of its rows.

        Where the number of columns is not known, they may be one column, and the tile lie along others.
        """
        for k, access in enumerate(accesses):
            column = columns(access.terms)
            if column is not None and column.mod.symbols:
                yield k, self._sum(access.terms, self._count)
            elif column is not None:
                yield k, self._sum(access.terms[: access.terms.index(column)], column.div)

    def stretches(self, accesses: Sequence[Access]) -> Iterator[tuple[int, str]]:
        """Of each access the Stretch at index i."""
        for k, access in enumerate(accesses):
            if access.terms:
                inner = access.terms[0]
                is_run = inner.div == ONE
                period = inner.mod if is_run else inner.div
                step = self._number(inner.stride) if is_run else "0"
                length = f"{self._divisors[period]}.divisor" if period.symbols else f"{period.factor}"
                yield k, f"{{Index({length}) - {self._remainder('i', period)}, Index({step})}}"

    def _sum(self, form: Sequence[Term], count: Extent) -> str:
        """A form of an unsigned index i below `count`."""
        text = "".join(self._term(term, count) for term in form)
        # A sum that begins with a minus would negate i before the division.
        return f"Index(0){text}" if not form or text.startswith(" -") else text.removeprefix(" + ")

    def _term(self, term: Term, count: Extent) -> str:
        """One term, with its sign."""
        quotient = self._quotient(term.div)
        digit = quotient if term.div * term.mod == count else self._digit(quotient, term)
        number = term.stride.number
        if number is None:
            return f" + {digit} * {self._number(term.stride)}"
        return f" {'-' if number < 0 else '+'} {digit}" + (f" * {abs(number)}" if abs(number) != 1 else "")

    def _quotient(self, div: Extent) -> str:
        """The index divided by `div`: by another quotient of the kernel, where that is known to be equal."""
        if not div.symbols:
            return "i" if div == ONE else f"i / {div.factor}"
        others = ((d, div.over(d)) for d in (ONE, Extent(div.factor), *self._divs) if d != div)
        parts = [(d, rest) for d, rest in others if rest is not None and (not rest.symbols or rest in self._divisors)]
        inner, rest = max(parts, key=lambda p: (len(p[0].symbols), p[0].factor))
        quotient = self._quotient(inner)
        return f"quotient({quotient}, {self._divisors[rest]})" if rest.symbols else f"{quotient} / {rest.factor}"

    def _digit(self, quotient: str, term: Term) -> str:
        """The digit of a term, from the index divided by its div: without a division of its own where that is known."""
        remainder, end = self._remainder(quotient, term.mod), term.div * term.mod
        if not term.mod.symbols or end not in self._divs:
            return remainder
        outer, mod = self._quotient(end), self._divisors[term.mod]
        return remainder if outer == f"quotient({quotient}, {mod})" else f"({quotient} - {outer} * {mod}.divisor)"

    def _remainder(self, text: str, mod: Extent) -> str:
        return f"remainder({text}, {self._divisors[mod]})" if mod.symbols else f"{text} % {mod.factor}"

    def _number(self, stride: Extent) -> str:
        if not stride.symbols:
            return f"{stride.factor}"
        return f"{self._divisors[stride]}.divisor" if stride in self._divisors else self._strides[stride]
