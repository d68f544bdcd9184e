"""Opening an artifact: everything that is checked before any of its files is used.

Every function here and every command goes through `signing.check_head`: no manifest is believed before its signature
was checked, where a key is asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from onnxopt.artifact import archive, contents, layout, signing
from onnxopt.artifact.contents import HeldFolder
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.signing import Head
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.paths import StrPath


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


def open_artifact(path: StrPath, *, public_key: StrPath | None = None) -> Opened:
    """Check an artifact folder, or an archive of `onnxopt pack`: its signature, its manifest, then every file's hash.

    public_key: minisign's, as a path or its base64 line; the artifact must then be signed by it. Default: the
    environment variable ONNXOPT_PUBLIC_KEY; where that is unset too, no signature is checked.

    ArtifactError names the file that is missing, changed, or not of the artifact. UsageError where the key is no key.
    """
    with opened(path, public_key=public_key) as (artifact, _):
        return artifact


@contextlib.contextmanager
def opened(path: StrPath, *, public_key: StrPath | None = None) -> Iterator[tuple[Opened, HeldFolder]]:
    """The same, and the folder whose files were hashed, which stays the same folder until the block ends."""
    head = _head(Path(path))
    comment = signing.check_head(head, public_key)
    manifest = head.parsed()
    with contextlib.ExitStack() as stack:
        if head.path.is_dir():
            held_folder = stack.enter_context(contents.held(head.path))
            held_folder.check(manifest.files)
        else:
            held_folder = _held_unpacked(head, manifest, stack)
        if layout.MODEL not in manifest.files:
            raise ArtifactError(
                f"{path}: is what an optimized folder keeps of one model, for `onnxopt explain` and people; its model "
                "lies in the folder, and `onnxopt optimize` of the original model makes an artifact"
            )
        yield Opened(held_folder.shown, manifest, comment), held_folder


def _held_unpacked(head: Head, manifest: Manifest, stack: contextlib.ExitStack) -> HeldFolder:
    """The folder that an archive was unpacked to, checked; unpacked again where a file of it was changed since."""
    held_folder = stack.enter_context(contents.held(archive.unpacked(head)))
    try:
        held_folder.check(manifest.files)
    except ArtifactError:
        held_folder = stack.enter_context(contents.held(archive.unpacked(head, again=True)))
        held_folder.check(manifest.files)
    return held_folder


def read_manifest(path: StrPath) -> Manifest:
    """The manifest of an artifact folder or archive, whose other files are not looked at.

    ArtifactError where it is damaged, or not signed as ONNXOPT_PUBLIC_KEY asks.
    """
    head = _head(Path(path))
    signing.check_head(head)
    return head.parsed()


def verify_signature(artifact: StrPath, *, public_key: StrPath | None = None) -> Signature:
    """Check an artifact folder, or an archive of `onnxopt pack`: its signature, then every file's hash.

    public_key: minisign's, as a path or its base64 line; default: the environment variable ONNXOPT_PUBLIC_KEY.
    ArtifactError where the artifact is unsigned, signed by another key, or changed since; UsageError without a key.
    """
    key = signing.required_key(public_key)
    if key is None:
        raise UsageError(f"no public key: give --key, or set {signing.PUBLIC_KEY_VARIABLE}")
    artifact_opened = open_artifact(artifact, public_key=public_key)
    return Signature(key.name, artifact_opened.trusted_comment or "", len(artifact_opened.manifest.files))


def _head(path: Path) -> Head:
    return archive.head_of(path) if path.exists() and not path.is_dir() else signing.head_of_folder(path)
