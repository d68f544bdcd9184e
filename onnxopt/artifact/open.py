"""Opening an artifact: everything that is checked before any of its files is used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from onnxopt.artifact import archive, layout, signing
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import check_files
from onnxopt.artifact.manifest import Manifest
from onnxopt.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Opened:
    """An artifact that was checked. folder: where its files lie; for an archive, where it was unpacked to.

    trusted_comment: of its signature, where a key was asked for.
    """

    folder: Path
    manifest: Manifest
    trusted_comment: str | None = None

    @property
    def model(self) -> Path:
        return self.folder / layout.MODEL

    @property
    def library(self) -> Path | None:
        """The artifact's library; None where nothing was fused, so that there is none."""
        return (self.folder / layout.LIBRARY_PATH).absolute() if layout.LIBRARY_PATH in self.manifest.files else None


@dataclasses.dataclass(frozen=True)
class Signature:
    """A signature that was checked. key_id: of the key, as minisign prints it. files: how many files it covers."""

    key_id: str
    trusted_comment: str
    files: int


def open_artifact(path: str | Path, *, public_key: str | Path | None = None) -> Opened:
    """Check an artifact folder, or an archive of `onnxopt pack`: its signature, its manifest, then every file's hash.

    public_key: minisign's, as a path or its base64 line; the artifact must then be signed by it. Default: the
    environment variable ONNXOPT_PUBLIC_KEY; where that is unset too, no signature is checked.

    ArtifactError names the file that is missing, changed, or not of the artifact. UsageError where the key is no key.
    """
    key = signing.required_key(public_key)
    folder = archive.folder_of(Path(path))
    data = manifests.read(folder)
    comment = signing.check_signature(folder, data, key) if key else None
    manifest = manifests.parse(data, folder / layout.MANIFEST)
    check_files(folder, manifest.files)
    return Opened(folder, manifest, comment)


def verify_signature(artifact: str | Path, *, public_key: str | Path | None = None) -> Signature:
    """Check an artifact folder, or an archive of `onnxopt pack`: its signature, then every file's hash.

    public_key: minisign's, as a path or its base64 line; default: the environment variable ONNXOPT_PUBLIC_KEY.
    ArtifactError where the artifact is unsigned, signed by another key, or changed since; UsageError without a key.
    """
    key = signing.required_key(public_key)
    if key is None:
        raise UsageError(f"no public key: give --public-key, or set {signing.PUBLIC_KEY_VARIABLE}")
    opened = open_artifact(artifact, public_key=public_key)
    return Signature(key.name, opened.trusted_comment or "", len(opened.manifest.files))
