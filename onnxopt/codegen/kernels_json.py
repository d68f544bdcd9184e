"""kernels.json: the kernels that the custom-op library registers, each with its program and entry points.

The library reads the file from its own folder and validates it by the same rules (custom_ops/kernel_file/).
docs/artifact.md describes the file.
The file carries a digest of itself and one of the fatbin: the library refuses a file that was changed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from onnxopt.codegen import sealed_json
from onnxopt.fusion.region import Kernel

SCHEMA = 3  # the library reads its own schema only; schema 2 was the same without the digest
FATBIN = "kernels.fatbin"


def to_json(kernels: Sequence[Kernel], fatbin: bytes | None) -> str:
    """The text of kernels.json. fatbin: the compiled images of the kernels, None for CPU kernels only."""
    described = None
    if fatbin is not None:
        described = {"file": FATBIN, "sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin)}
    return sealed_json.seal({"schema": SCHEMA, "fatbin": described, "kernels": [_kernel(k) for k in kernels]})


def _kernel(kernel: Kernel) -> dict[str, object]:
    return {
        "name": kernel.name,
        "kind": kernel.kind.name,
        **kernel.program.to_json(),
        "cpu": kernel.cpu,
        "variants": [dataclasses.asdict(variant) for variant in kernel.variants],
    }
