"""Opening an artifact: everything that is checked before any of its files is used."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from onnxopt.artifact import archive, package, signing
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.manifest import Manifest


@dataclasses.dataclass(frozen=True)
class Opened:
    """An artifact that was checked. folder: where its files lie; for an archive, where it was unpacked to.

    signature: the trusted comment of its signature where a key was asked for.
    """

    folder: Path
    manifest: Manifest
    signature: str | None = None

    @property
    def model(self) -> Path:
        return self.folder / package.MODEL

    @property
    def library(self) -> Path | None:
        """The artifact's library; None where nothing was fused, so that there is none."""
        name = f"{package.LIBRARY_FOLDER}/{package.LIBRARY}"
        return (self.folder / name).absolute() if name in self.manifest.files else None


def open_artifact(path: str | Path, *, public_key: str | Path | None = None) -> Opened:
    """Check an artifact folder, or an archive of `onnxopt pack`: its signature, its manifest, then every file's hash.

    public_key: minisign's, as a path or its base64 line; the artifact must then be signed by it. Default: the
    environment variable ONNXOPT_PUBLIC_KEY; where that is unset too, signatures are not looked at.

    ArtifactError names the file that is missing, changed, or not of the artifact. UsageError where the key is none.
    """
    key = signing.required_key(public_key)
    folder = archive.folder_of(Path(path))
    data = manifests.read(folder)
    comment = signing.check_artifact(folder, data, key) if key else None
    manifest = manifests.parse(data, folder / manifests.FILE)
    package.check_files(folder, manifest.files)
    return Opened(folder, manifest, comment)
