"""kernels.json: the kernels that the custom-op library registers, each with its program and entry points.

The library reads the file from its own folder and validates it by the same rules (custom_ops/kernel_file/).
docs/artifact.md describes the file.
The file carries a digest of itself and one of the fatbin: the library refuses a file that was changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from onnxopt import versions
from onnxopt.codegen import sealed_json
from onnxopt.fusion.region import Kernel
from onnxopt.graph import fused_domain

SCHEMA = 4  # the library reads its own schema only
FATBIN = "kernels.fatbin"


def to_json(kernels: Sequence[Kernel], fatbin: bytes | None, domain: str | None = None) -> str:
    """The text of kernels.json. fatbin: the compiled images of the kernels, None for CPU kernels only.

    domain: of the model's calls of the kernels, default fused_domain.BARE.
    """
    named = {} if domain is None else {"domain": domain}
    return sealed_json.seal({**named, **_document(kernels, fatbin)})


def domain_of(kernels: Sequence[Kernel], source: str, archs: Sequence[str]) -> str:
    """The domain of an artifact with these kernels, from a digest of all that kernels.json says of them.

    source, archs: what their machine code is made of, and for. Other headers or other compilers may make other code of
    it, so their versions count, too.
    """
    made_from = [_document(kernels, None), source, list(archs), versions.code(), versions.compilers()]
    return fused_domain.of(hashlib.sha256(json.dumps(made_from).encode()).hexdigest())


def with_fatbin(text: str, fatbin: bytes) -> str:
    """The text of a kernels.json for another fatbin of the same kernels, in the same domain. ValueError as `unseal`."""
    return sealed_json.seal({**sealed_json.unseal(text), "fatbin": _described(fatbin)})


def merged(digests: Sequence[str]) -> str:
    """The text of a kernels.json without kernels that names folders beside it, each with those of one more model."""
    return sealed_json.seal({**_document((), None), "folders": list(digests)})


def digest_of(text: str) -> str:
    """The digest in the domain of a kernels.json that has one."""
    domain: str = sealed_json.unseal(text)["domain"]
    return domain.removeprefix(f"{fused_domain.BARE}.")


def _document(kernels: Sequence[Kernel], fatbin: bytes | None) -> dict[str, object]:
    described = None if fatbin is None else _described(fatbin)
    return {"schema": SCHEMA, "fatbin": described, "kernels": [_kernel(k) for k in kernels]}


def _described(fatbin: bytes) -> dict[str, object]:
    return {"file": FATBIN, "sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin)}


def _kernel(kernel: Kernel) -> dict[str, object]:
    return {
        "name": kernel.name,
        "kind": kernel.kind.name,
        **kernel.program.to_json(),
        "cpu": kernel.cpu,
        **({"usual": [[list(dims) for dims in shapes] for shapes in kernel.usual]} if kernel.usual else {}),
        "variants": [variant.to_json() for variant in kernel.variants],
    }
