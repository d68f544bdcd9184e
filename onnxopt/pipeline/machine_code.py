"""Machine code of kernels, which compilers make while the rest of the artifact is made and verified."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from onnxopt.background import in_background
from onnxopt.children import Children
from onnxopt.codegen.nvrtc import Compiled, Progress

Compile = Callable[[Progress, Children], Compiled]


class MachineCode:
    """The fatbin of a CUDA source, begun in the background. Leaving the block ends the compilers.

    source: CUDA of the fatbin. compile: makes it; None for kernels without code for GPUs. It runs on a thread of its
    own, its compilers in the children that it is given.
    """

    def __init__(self, source: str, compile: Compile | None) -> None:
        self.source, self.exists = source, compile is not None
        self._children, self._steps = Children(beside=True), queue.SimpleQueue[tuple[int, int] | None]()
        self._made: Future[Compiled] | None = None
        if compile is not None:
            self._made = in_background(lambda: compile(lambda *step: self._steps.put(step), self._children))
            self._made.add_done_callback(lambda _: self._steps.put(None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._children.kill()

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns at once."""
        return self._made is None or self._made.done()

    def wait(self, progress: Progress) -> Compiled | None:
        """What was compiled; None without code. progress: called with the steps that are done, on this thread.

        Raises what compiling raised.
        """
        if self._made is None:
            return None
        if not self._made.done():
            while (step := self._steps.get()) is not None:
                progress(*step)
        return self._made.result()
