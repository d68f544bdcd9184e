"""kernels.json: what the custom-op library registers, with each kernel's program and entry points.

The library finds it beside itself and validates it against the same rules (custom_ops/); docs/artifact.md describes it.
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
    """The text of kernels.json for kernels whose compiled images are in `fatbin` (None: CPU kernels only)."""
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
