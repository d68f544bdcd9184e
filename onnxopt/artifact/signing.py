"""Signatures of artifacts: manifest.json holds the SHA-256 of every other file, so its signature covers them all.

The format is minisign's (artifact/minisign.py): `minisign -Vm manifest.json` checks what is signed here.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from onnxopt.artifact import layout, minisign
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import check_files
from onnxopt.artifact.minisign import PublicKey, SecretKey
from onnxopt.errors import ArtifactError, UsageError

PUBLIC_KEY_VARIABLE = "ONNXOPT_PUBLIC_KEY"


def sign(artifact: str | Path, key: SecretKey, *, trusted_comment: str | None = None, replace: bool = False) -> Path:
    """Sign an artifact folder after checking every hash; returns the signature's path.

    trusted_comment: one line that the signature covers, default time and file name. replace: also where the artifact is
    signed already. ArtifactError where the artifact is damaged; UsageError where it is signed and `replace` is unset,
    or the signature cannot be written.
    """
    folder = Path(artifact)
    data = manifests.read(folder)
    check_files(folder, manifests.parse(data, folder / layout.MANIFEST).files)
    path = folder / layout.SIGNATURE
    if path.is_file() and not replace:
        raise UsageError(f"{folder}: is signed already; --force replaces the signature")
    comment = trusted_comment or f"timestamp:{int(time.time())}\tfile:{layout.MANIFEST}\thashed"
    part = folder / f".{layout.SIGNATURE}.partial"
    try:
        part.write_text(minisign.sign(data, key, comment), "utf-8")
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    return path


def check_signature(folder: Path, manifest: bytes, key: PublicKey) -> str:
    """The trusted comment of an artifact's signature by `key`. manifest: the bytes of its manifest.json.

    ArtifactError where the artifact is unsigned, signed by another key, or its signature does not fit.
    """
    path = folder / layout.SIGNATURE
    if not path.is_file():
        raise ArtifactError(f"{folder}: is not signed (no {layout.SIGNATURE}), and a public key was given")
    return minisign.check(manifest, minisign.read_small_file(path, ArtifactError), key, path)


def required_key(public_key: str | Path | None) -> PublicKey | None:
    """The key that artifacts must be signed with: `public_key`, else the environment's, else None.

    public_key: the path of a .pub file, or its base64 line. UsageError where it is neither.
    """
    source = public_key or os.environ.get(PUBLIC_KEY_VARIABLE)
    return minisign.read_public_key(source) if source else None
