"""The headers of cuda_kernels/ that a source includes, directly or through other headers."""

from __future__ import annotations

import re

from onnxopt import paths

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def headers(source: str) -> dict[str, str]:
    """Name, as #include gives it, -> text of every header that the source needs, in the order of the names.

    A name that is no file of cuda_kernels/ is left out: the compiler's error says where it is included.
    """
    root, texts = paths.cuda_kernels(), dict[str, str]()
    names = _INCLUDE.findall(source)
    while names:
        name = names.pop()
        if name not in texts and (root / name).is_file():
            texts[name] = (root / name).read_text("utf-8")
            names += _INCLUDE.findall(texts[name])
    return dict(sorted(texts.items()))
