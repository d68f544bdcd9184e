"""Mutants of the device code in cuda_kernels/: comparisons that move an edge, and indices off by one.

Whether a mutant can be found is decided by a second emulation, at many more sizes than one has by default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

from onnxopt import paths
from onnxopt.graph.signature import Sizes, Tensor, symbols
from onnxopt.verification.emulation import gcc, one_kernel
from onnxopt.verification.sampling import samples

_EDITS = {
    "an edge moved by one": (re.compile(r"(?<=[\w)\]]) < (?=[\w(])"), " <= "),
    "an index off by one": (re.compile(r"(?<=[\w)\]]) ([+-]) 1(?![\w.])"), r" \1 2"),
}
_NO_CODE = re.compile(r"^\s*(//|#|template|static_assert|struct|using|constexpr)")
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_SIZES = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 128, 130, 257, 260, 513)


@dataclasses.dataclass(frozen=True)
class HeaderMutant:
    """A header with one fault. header: its path in cuda_kernels/. text: of the changed header."""

    of: str
    place: str
    header: str
    text: str

    @contextlib.contextmanager
    def included(self, folder: Path) -> Iterator[None]:
        """What is compiled while the block runs includes this header for the right one."""
        path = folder / self.header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.text)
        try:
            with mock.patch.object(gcc, "FLAGS", (f"-I{folder}", *gcc.FLAGS)):
                yield
        finally:
            path.unlink()


def of_text(text: str) -> Iterator[HeaderMutant]:
    """The mutants of all headers that a CUDA text includes."""
    for header in _included(text):
        code = (paths.cuda_kernels() / header).read_text()
        lines = code.splitlines(keepends=True)
        for number, line in enumerate(lines):
            if _NO_CODE.match(line):
                continue
            for of, (pattern, replaced) in _EDITS.items():
                for k, match in enumerate(pattern.finditer(line.split("//")[0])):
                    changed = line[: match.start()] + match.expand(replaced) + line[match.end() :]
                    whole = "".join([*lines[:number], changed, *lines[number + 1 :]])
                    yield HeaderMutant(of, f"{header}:{number + 1}, {k}", header, whole)


def _included(text: str) -> list[str]:
    """Paths of the headers of device code that a text includes, and of those that these include."""
    found: dict[str, None] = {}
    waiting = [text]
    while waiting:
        for header in _INCLUDE.findall(waiting.pop()):
            path = paths.cuda_kernels() / header
            if header not in found and path.is_file():
                found[header] = None
                waiting.append(path.read_text())
    return [header for header in found if header.endswith(".cuh") and not header.startswith("device/")]


@contextlib.contextmanager
def many_sizes() -> Iterator[None]:
    """An emulation has many more sizes while the block runs."""

    def sizes(inputs: Sequence[Tensor]) -> Iterator[Sizes]:
        names = symbols(inputs)
        for number, size in enumerate(_SIZES if names else (1, 2, 3)):
            yield (
                {n: size if k else 1 + number % 5 for k, n in enumerate(names)}
                if len(names) > 1
                else dict.fromkeys(names, size)
            )
            yield {n: _SIZES[(number * (k + 3)) % len(_SIZES)] for k, n in enumerate(names)}

    with mock.patch.object(samples, "usual_sizes", sizes), mock.patch.object(one_kernel, "_CASES", 2 * len(_SIZES)):
        yield
