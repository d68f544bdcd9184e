"""The original as the installed ONNX Runtime reads it, where that is older than the original's opset."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from onnxopt.errors import NotVerifiedError
from onnxopt.graph import read, write
from onnxopt.graph.passes.opset import why_not_lower
from onnxopt.runtime import releases


def readable(source: read.Source, folder: Path) -> read.Source:
    """The source, or a copy in `folder` with an older number of its opset or IR version, which means the same.

    folder: is made where it is needed, and has to outlive the result. NotVerifiedError where an operator or a dtype of
    the model came later than what the installed ONNX Runtime reads.
    """
    import onnxruntime as ort

    newest = releases.reads(ort.__version__)
    if newest is None or (too_new := releases.too_new(source.model, ort.__version__)) is None:
        return source
    ir_version, opset = newest
    version, model = source.model.opset_imports.get("", 0), source.model.clone()
    if version > opset:
        if reason := why_not_lower(model, version, opset):
            raise NotVerifiedError(
                f"{source}: {too_new}: {reason}. Nothing can be compared here; install that release, or optimize it "
                "unchecked with --no-verify"
            )
        for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
            imports[""] = opset
    model.ir_version = min(model.ir_version, ir_version)
    folder.mkdir(exist_ok=True)
    write.save(model, folder)
    return dataclasses.replace(read.load(folder / write.MODEL_FILE), title=str(source))
