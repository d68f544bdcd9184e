"""What rewriting makes of the normalized model, without the families of rewrite rules that are wrong for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from onnxopt import versions
from onnxopt.artifact.manifest import LeftOut
from onnxopt.errors import OnnxoptError, describe
from onnxopt.graph import normalize, rewrite
from onnxopt.graph.passes.codes import products_of_codes
from onnxopt.graph.passes.codes.products_of_codes import ProductsOfCodesPass
from onnxopt.graph.passes.contrib.restore import restore_attention
from onnxopt.graph.passes.transposed_weights import TransposeWeightsPass
from onnxopt.graph.rewrite.table import ALIGNED_CHANNELS, FLOAT32_KERNELS, GATED_WEIGHTS
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.signature import Sizes
from onnxopt.kinds.gemm.widened import FIRST_ARCH
from onnxopt.pipeline.build import RewriteFails
from onnxopt.verification.bisect import bisect_in_order

_PRODUCTS_OF_CODES = "products_of_codes"  # is left out as a family of rewrite rules is, behind which it runs
_GPU_FAMILIES = frozenset({ALIGNED_CHANNELS, GATED_WEIGHTS, FLOAT32_KERNELS, _PRODUCTS_OF_CODES})
_FATAL = (OnnxoptError, OSError, MemoryError)  # errors that leaving rules out does not end


class Forms(NamedTuple):
    """portable: without operators of com.microsoft, if asked for.

    families: of rules that were not left out, in the order in which they run. with_families(names): the normalized
    model with only these applied. notes: for the user.
    """

    model: ir.Model
    portable: ir.Model | None
    rewritten: rewrite.Rewritten
    families: tuple[str, ...]
    with_families: Callable[[Sequence[str]], ir.Model]
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Rewriter:
    """Rewrites copies of the normalized model. scratch: for joined weights; it has to outlive what is made.

    usual: sizes that most runs have. archs: what kernels are compiled for. counts: the models are counted and never
    run, so large weights are transposed only if they are read.
    """

    normalized: ir.Model
    scratch: Path
    usual: Sizes
    archs: Sequence[str]
    counts: bool = False

    def forms(self, leave_out: Collection[str], portable: bool) -> Forms:
        """The forms without some families. RewriteFails where others raise an error."""
        barred = {*leave_out, *(() if self.archs else _GPU_FAMILIES)}
        families = tuple(n for n in (*rewrite.FAMILIES, _PRODUCTS_OF_CODES) if n not in barred)
        try:
            model, done = self._rewritten(families)
            standard = model.clone() if portable else None  # with transposed weights, which both forms share
            restore_attention(model, recognises="attention" in families)
            notes = products_of_codes.notes(model) if self._multiply_codes(model, families) else ()
        except _FATAL:
            raise
        except Exception:
            failing = bisect_in_order(families, self._error_of) if self._error_of(()) is None else {}
            if not failing:
                raise
            raise RewriteFails({name: _failed(name, error) for name, error in failing.items()}) from None
        if standard is not None:
            rewrite.to_portable(standard)
            standard.metadata_props[normalize.MARK] = versions.onnxopt()
        return Forms(model, standard, done, families, self.with_families, notes)

    def with_families(self, names: Sequence[str]) -> ir.Model:
        """The normalized model with only these families applied."""
        model, _ = self._rewritten(names)
        restore_attention(model, recognises="attention" in names)
        self._multiply_codes(model, names)
        return model

    def _error_of(self, names: Sequence[str]) -> str | None:
        """What these families raise; None where they raise nothing."""
        try:
            self.with_families(names)
        except _FATAL:
            raise
        except Exception as error:  # noqa: BLE001 - of rules and of any library that they call
            return describe(error)
        return None

    def _rewritten(self, names: Collection[str]) -> tuple[ir.Model, rewrite.Rewritten]:
        copy = self.normalized.clone()
        left_out, gpu = set(rewrite.FAMILIES) - set(names), bool(self.archs)
        done = rewrite.rewrite(copy, self.scratch, leave_out=left_out, usual=self.usual, gpu=gpu)
        # After constant folding, which would transpose the weights back.
        TransposeWeightsPass(gpu=gpu, keep=None if self.counts else Joiner(self.scratch).constant)(copy)
        return copy, done

    def _multiply_codes(self, model: ir.Model, names: Collection[str]) -> bool:
        """Apply ProductsOfCodesPass, if it is among the names. Whether it changed something."""
        eight_bits = any(int(arch.removeprefix("sm_")) >= FIRST_ARCH for arch in self.archs)
        return _PRODUCTS_OF_CODES in names and ProductsOfCodesPass(eight_bits=eight_bits)(model).modified


def _failed(family: str, error: str) -> LeftOut:
    return LeftOut(name=f"rewrite:{family}", ops=(), reason=f"its rules failed: {error}", max_abs=None, excess=None)
