"""Signatures of artifacts: manifest.json holds the SHA-256 of every other file, so its signature covers them all.

The format is minisign's (artifact/minisign.py): `minisign -Vm manifest.json` checks what is signed here.

Whatever opens an artifact, for any command, reads its head and passes it to `check_head` first.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from pathlib import Path

from onnxopt import files
from onnxopt.artifact import contents, layout, minisign
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.minisign import PublicKey, SecretKey
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.paths import StrPath

PUBLIC_KEY_VARIABLE = "ONNXOPT_PUBLIC_KEY"


class SignatureError(ArtifactError):
    """An artifact is not signed by the key that was asked for."""


@dataclasses.dataclass(frozen=True)
class Head:
    """What every opening of an artifact reads first. path: of the folder or archive, for messages.

    manifest, signature: the bytes of manifest.json and manifest.json.minisig; None where there is no signature.
    """

    path: Path
    manifest: bytes
    signature: bytes | None

    def parsed(self) -> Manifest:
        """The manifest. ArtifactError where it is damaged or of another version."""
        return manifests.parse(self.manifest, self.path / layout.MANIFEST)

    @property
    def sha256(self) -> str:
        """One digest of both."""
        signature = b"" if self.signature is None else self.signature
        return hashlib.sha256(self.manifest + signature).hexdigest()


def head_of_folder(folder: Path) -> Head:
    """The head of an artifact folder. ArtifactError where it has no manifest, or a file cannot be read."""
    manifest, path = manifests.read(folder), folder / layout.SIGNATURE
    try:
        return Head(folder, manifest, files.read_bytes(path, follow=False))
    except FileNotFoundError:
        return Head(folder, manifest, None)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror or error}") from None


def check_head(head: Head, public_key: StrPath | None = None) -> str | None:
    """Check an artifact's signature by `public_key`, by default the environment's key.

    Returns the trusted comment; None where neither key is set, so that no signature is asked for. SignatureError where
    the artifact is unsigned, signed by another key, or its signature does not fit; UsageError where the key is no key.
    """
    key = required_key(public_key)
    if key is None:
        return None
    if head.signature is None:
        raise SignatureError(f"{head.path}: is not signed (no {layout.SIGNATURE}), and a public key was given")
    try:
        return minisign.check(head.manifest, head.signature, key, head.path / layout.SIGNATURE)
    except ArtifactError as error:
        raise SignatureError(str(error)) from None


def required_key(public_key: StrPath | None) -> PublicKey | None:
    """The key that artifacts must be signed with: `public_key`, else the environment's, else None.

    public_key: the path of a .pub file, or its base64 line. UsageError where it is neither.
    """
    source = public_key or os.environ.get(PUBLIC_KEY_VARIABLE)
    return minisign.read_public_key(source) if source else None


def sign(artifact: StrPath, key: SecretKey, *, trusted_comment: str | None = None, replace: bool = False) -> Path:
    """Sign an artifact folder after checking every hash; returns the signature's path.

    trusted_comment: one line that the signature covers, default time and file name. replace: also where the artifact is
    signed already. ArtifactError where the artifact is damaged; UsageError where it is signed and `replace` is unset,
    or the signature cannot be written.
    """
    folder = Path(artifact)
    data = manifests.read(folder)
    contents.check_files(folder, manifests.parse(data, folder / layout.MANIFEST).files)
    path = folder / layout.SIGNATURE
    if os.path.lexists(path) and not replace:
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
