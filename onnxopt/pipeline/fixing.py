"""What fixing dynamic dims would bring: the launches of the model with these dims as constants, counted and not run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from onnxopt.artifact.manifest import Fixing, LeftOut
from onnxopt.errors import OnnxoptError
from onnxopt.graph import fixed_dims, normalize, signature
from onnxopt.graph.shapes.checked_sizes import checked_sizes
from onnxopt.graph.signature import Sizes, Tensor
from onnxopt.pipeline.build import RewriteFails
from onnxopt.pipeline.forms import Rewriter
from onnxopt.pipeline.fused import Fuser

_MAX_SHARE = 0.9  # of the launches that remain, so that a user hears of it
_MIN_SAVED = 4
_ALIKE = 1.02  # launches with a dynamic batch, beside those with a fixed one
_MAX_NODES = 1_000  # of models that are counted at all: a count takes as long as rewriting and fusing


def gain(
    launches: int, rewriter: Rewriter, fuser: Fuser, inputs: tuple[Tensor, ...], wrong: Mapping[str, LeftOut]
) -> Fixing | None:
    """The dims that would save many launches; None where no dims would.

    launches: of the artifact. rewriter, fuser: that made it. inputs: of the model. wrong: families that are left out.
    """
    checked = checked_sizes(rewriter.normalized.graph)
    sizes = {name: size for name, size in fuser.typical.items() if name not in checked}
    if not sizes or not fuser.archs or sum(1 for _ in rewriter.normalized.graph) > _MAX_NODES:
        return None

    def count(fixed: Collection[str]) -> int | None:
        return _launches({name: sizes[name] for name in fixed}, rewriter, fuser, wrong)

    fewest = count(sizes)
    if fewest is None or fewest > _MAX_SHARE * launches or launches - fewest < _MIN_SAVED:
        return None
    others = tuple(name for name in sizes if name not in signature.roles(inputs)[0])  # batch sizes vary most
    with_batch = count(others) if 0 < len(others) < len(sizes) else None
    if with_batch is not None and with_batch <= _ALIKE * fewest:
        return Fixing(dims=others, launches_before=launches, launches_after=with_batch)
    return Fixing(dims=tuple(sizes), launches_before=launches, launches_after=fewest)


def _launches(sizes: Sizes, rewriter: Rewriter, fuser: Fuser, wrong: Mapping[str, LeftOut]) -> int | None:
    """The launches with these dims fixed; None where the model does not take the sizes."""
    model = rewriter.normalized.clone()
    fixed_dims.fix(model, sizes)
    usual = {name: size for name, size in rewriter.usual.items() if name not in sizes}
    try:
        normalized = normalize.normalize(model).model
        fixed = dataclasses.replace(rewriter, normalized=normalized, usual=usual, counts=True)
        return dataclasses.replace(fuser, usual=usual).launches(fixed.forms(wrong, portable=False).model)
    except (OnnxoptError, RewriteFails):
        return None
