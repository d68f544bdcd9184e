"""kernels.json: the kernels that the custom-op library registers, each with its program and entry points.

The library reads the file from its own folder and validates it by the same rules (custom_ops/kernel_file/).
docs/artifact.md describes the file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from onnxopt.fusion.region import Kernel

SCHEMA = 2
FATBIN = "kernels.fatbin"


def to_json(kernels: Sequence[Kernel], fatbin: bytes | None) -> str:
    """The text of kernels.json. fatbin: the compiled images of the kernels, None for CPU kernels only."""
    described = None
    if fatbin is not None:
        described = {"file": FATBIN, "sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin)}
    document = {"schema": SCHEMA, "fatbin": described, "kernels": [_kernel(k) for k in kernels]}
    return json.dumps(document, indent=1) + "\n"


def _kernel(kernel: Kernel) -> dict[str, object]:
    return {
        "name": kernel.name,
        "kind": kernel.kind.name,
        **kernel.program.to_json(),
        "cpu": kernel.cpu,
        "variants": [dataclasses.asdict(variant) for variant in kernel.variants],
    }
