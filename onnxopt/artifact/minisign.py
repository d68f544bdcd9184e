"""Keys and detached signatures in minisign's format: the command minisign checks what is signed here, and vice versa.

py-minisign has the format and the cryptography (through the package cryptography); it covers all that minisign writes:
signatures of the data's BLAKE2b-512 digest and of the data itself ("legacy"), trusted comments, and secret keys with a
password (scrypt). What is here is what py-minisign does not check: the size of a file, whether a key without a password
is damaged, and that a signature has one spelling.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxopt import files
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.paths import StrPath

if TYPE_CHECKING:
    import minisign

_LARGEST = 16384  # bytes of a key or signature file; minisign's comments have at most 8192
# What libsodium calls "sensitive", which minisign uses: 1 GiB of memory, a few seconds.
_OPS_LIMIT, _MEMORY_LIMIT = 1 << 25, 1 << 30
_NO_CHECKSUM = bytes(32)  # minisign writes it into keys without a password


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """A public key of minisign. text: its base64 line."""

    text: str

    @property
    def name(self) -> str:
        """The key id as minisign prints it."""
        return _name(base64.b64decode(self.text)[2:10])

    def to_text(self) -> str:
        """The text of a .pub file; its second line is the key in base64."""
        return f"untrusted comment: minisign public key {self.name}\n{self.text}\n"


@dataclasses.dataclass(frozen=True)
class SecretKey:
    """A secret key of minisign. key: py-minisign's, without a password."""

    key: minisign.SecretKey = dataclasses.field(repr=False)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.key.get_public_key().to_base64().decode())

    def to_text(self, password: str | None = None) -> str:
        """A key file; encrypted where a password is given (scrypt, 1 GiB of memory)."""
        key = copy.deepcopy(self.key)
        if password is not None:
            key.encrypt(password, opslimit=_OPS_LIMIT, memlimit=_MEMORY_LIMIT)
        key.untrusted_comment = None
        return f"{bytes(key).decode()}\n"


def generate_key() -> SecretKey:
    """A new key from the operating system's random numbers."""
    return SecretKey(_library().KeyPair.generate().secret_key)


# --- reading keys ----------------------------------------------------------------------------------------------------


def read_public_key(source: StrPath) -> PublicKey:
    """A public key: the path of a .pub file, or its base64 line itself. UsageError where it is neither."""
    text, library = str(source), _library()
    is_path = len(text) < 256 and "\0" not in text and Path(text).exists()
    try:
        if is_path:
            key = library.PublicKey.from_bytes(_read_small_file(Path(text)))
        else:
            key = library.PublicKey.from_base64(text.strip())
    except (library.Error, ValueError):
        problem = "not a minisign public key" if is_path else "no such file, and not a minisign public key"
        raise UsageError(f"{source}: {problem} (56 characters that begin with RW)") from None
    return PublicKey(key.to_base64().decode())


def read_secret_key(path: StrPath, password: str | None = None) -> SecretKey:
    """The secret key of a minisign key file. UsageError where it is none, or the password is missing or wrong."""
    path, library = Path(path), _library()
    key = _parsed_secret_key(path)
    if key.is_encrypted():
        if password is None:
            raise UsageError(f"{path}: is protected by a password, and no password was given")
        try:
            key.remove_password(password)
        except (library.Error, ValueError, MemoryError) as error:
            raise UsageError(f"{path}: {error}, or the file is damaged") from None
    _check_undamaged(path, key)
    return SecretKey(key)


def needs_password(path: Path) -> bool:
    """Whether a key file is encrypted. UsageError where it is no key file."""
    return bool(_parsed_secret_key(path).is_encrypted())


def _parsed_secret_key(path: Path) -> minisign.SecretKey:
    library, data = _library(), _read_small_file(path)
    try:
        return library.SecretKey.from_bytes(data)
    except (library.Error, ValueError):
        raise UsageError(f"{path}: not a minisign secret key") from None


def _check_undamaged(path: Path, key: minisign.SecretKey) -> None:
    """UsageError where a key does not fit its checksum, or its two halves do not fit each other."""
    library, raw = _library(), base64.b64decode(key.to_base64())
    key_and_id, checksum = raw[54:126], raw[126:]
    fits = checksum in (_NO_CHECKSUM, hashlib.blake2b(b"Ed" + key_and_id, digest_size=32).digest())
    try:
        key.get_public_key().verify(b"", key.sign(b""))
    except (library.Error, ValueError):
        fits = False
    if not fits:
        raise UsageError(f"{path}: the file is damaged")


# --- signing and checking --------------------------------------------------------------------------------------------


def sign(data: bytes, key: SecretKey, comment: str) -> str:
    """The text of a signature of the data's digest. comment: the trusted comment, one line that the signature covers.

    UsageError where the comment has characters other than printable ASCII and tabs, which minisign refuses.
    """
    name = key.public.name
    try:
        signature = key.key.sign(
            data, untrusted_comment=f"signature from minisign secret key {name}", trusted_comment=comment
        )
    except _library().Error as error:
        raise UsageError(f"the trusted comment must be one line of printable ASCII: {error}") from None
    return f"{bytes(signature).decode()}\n"


def check(data: bytes, signature: bytes, key: PublicKey, where: Path) -> str:
    """The trusted comment of a signature of `data` by `key`. where: the signature's path, for messages.

    ArtifactError where it is another key's, was not made for these bytes, or was changed.
    """
    library = _library()
    try:
        parsed = library.Signature.from_bytes(signature[:_LARGEST])
    except (library.Error, ValueError):
        raise ArtifactError(f"{where}: not a minisign signature, or damaged") from None
    written = bytes(parsed).splitlines()
    if signature.removesuffix(b"\n").split(b"\n")[1:] != written[1:]:  # bits that base64 leaves over, other line ends
        raise ArtifactError(f"{where}: not a minisign signature, or damaged")
    by = _name(base64.b64decode(written[1])[2:10])
    if by != key.name:
        raise ArtifactError(f"{where}: is signed by key {by}, not by the key asked for, {key.name}")
    try:
        library.PublicKey.from_base64(key.text).verify(data, parsed)
    except (library.Error, ValueError):
        raise ArtifactError(
            f"{where}: the signature does not fit {where.name.removesuffix('.minisig')}: one was changed"
        ) from None
    return str(parsed.trusted_comment)


def _name(key_id: bytes) -> str:
    return f"{int.from_bytes(key_id, 'little'):016X}"


def _library() -> Any:
    try:
        import minisign
    except ImportError:
        raise UsageError("signatures need the package py-minisign: pip install 'onnxopt[sign]'") from None
    return minisign


def _read_small_file(path: Path) -> bytes:
    """The content of a key file. UsageError where it cannot be read; a longer file is cut, so that it is no key."""
    try:
        return files.read_bytes(path, _LARGEST)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
