"""Models in channels last, as the search for regions gets them."""

from __future__ import annotations

import pathlib
import tempfile

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import IdentityEliminationPass

from onnxopt.graph import normalize, rewrite
from onnxopt.graph.passes.no_op_rules import no_op_rules


def laid_out(model: onnx.ModelProto) -> ir.Model:
    """The model in the form that regions are searched in, without Transposes beside others that undo them."""
    normalized = normalize.normalize(ir.from_proto(model)).model
    with tempfile.TemporaryDirectory() as folder:
        rewrite.rewrite(normalized, pathlib.Path(folder))
    no_op_rules()(normalized)
    IdentityEliminationPass()(normalized)
    return normalized
