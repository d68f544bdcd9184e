"""Sealed JSON: a file that carries a digest of itself, so that the library sees every change of it before it reads on.

The first line is `{"sha256": "<hex>",` with the SHA-256 of all bytes behind that line; the whole is one JSON object.
The library reads and writes the same form (custom_ops/support/sealed_json.h).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGEST = "sha256"
_BEFORE, _AFTER = '{"sha256": "', '",\n'
_DIGITS = 64


def seal(document: Mapping[str, Any]) -> str:
    """The text of a sealed file. document: at least one field; the digest of an earlier text is replaced."""
    fields = {key: value for key, value in document.items() if key != DIGEST}
    body = json.dumps(fields, indent=1)[2:] + "\n"  # behind the brace and its line
    return f"{_BEFORE}{_digest(body)}{_AFTER}{body}"


def unseal(text: str) -> dict[str, Any]:
    """The document of a sealed file, without the digest. ValueError saying what is wrong where it was changed."""
    begin, end = len(_BEFORE), len(_BEFORE) + _DIGITS
    body = text[end + len(_AFTER) :]
    if not text.startswith(_BEFORE) or text[end : end + len(_AFTER)] != _AFTER:
        raise ValueError("its first line is no sha256 of the others")
    if _digest(body) != text[begin:end]:
        raise ValueError("it was changed after it was written: its sha256 differs")
    document: dict[str, Any] = json.loads(text)
    del document[DIGEST]
    return document


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
