"""Keys and detached signatures in minisign's format: the command minisign checks what is signed here, and vice versa.

Ed25519 (RFC 8032) over the BLAKE2b-512 digest of the data, as minisign has it since 0.10; signatures over the data
itself ("legacy") are checked too. A second signature covers the trusted comment. Key files may have a password.

Formats: https://jedisct1.github.io/minisign (base64 lines below "untrusted comment" lines).
    public key   "Ed", key id (8), Ed25519 key (32)
    secret key   "Ed", KDF ("Sc" scrypt, or zeros), "B2", salt (32), opslimit (8), memlimit (8), then 104 bytes, XORed
                 with the KDF's output where there is a password: key id (8), seed and public key (64), BLAKE2b-256
    signature    "ED" (of the digest) or "Ed" (of the file), key id (8), signature (64); trusted comment; signature of
                 both (64)
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import secrets
from pathlib import Path
from typing import Any

from onnxopt.errors import ArtifactError, UsageError

_COMMENT, _TRUSTED = "untrusted comment: ", "trusted comment: "
_NO_KDF, _SCRYPT = b"\0\0", b"Sc"
# What libsodium calls "sensitive", which minisign uses: 1 GiB of memory, a few seconds.
_OPS_LIMIT, _MEMORY_LIMIT = 1 << 25, 1 << 30
_LARGEST = 4096  # bytes of a key or signature file
_LARGEST_MEMORY = (1 << 31) - 2  # bytes; what OpenSSL's scrypt takes, and twice what minisign's key files ask for


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """A public key of minisign. key_id: 8 bytes. key: 32 bytes, Ed25519."""

    key_id: bytes
    key: bytes

    @property
    def name(self) -> str:
        """The key id as minisign prints it."""
        return f"{int.from_bytes(self.key_id, 'little'):016X}"

    def to_text(self) -> str:
        """The text of a .pub file; its second line is the key in base64."""
        return f"{_COMMENT}minisign public key {self.name}\n{_base64(b'Ed' + self.key_id + self.key)}\n"


@dataclasses.dataclass(frozen=True)
class SecretKey:
    """A secret key of minisign. key_id: 8 bytes. seed: the 32 bytes that an Ed25519 key is derived from."""

    key_id: bytes
    seed: bytes = dataclasses.field(repr=False)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self.key_id, _private(self.seed).public_key().public_bytes_raw())

    def to_text(self, password: str | None = None) -> str:
        """A key file; encrypted where a password is given (scrypt, 1 GiB of memory)."""
        key = self.seed + self.public.key
        plain = self.key_id + key + hashlib.blake2b(b"Ed" + self.key_id + key, digest_size=32).digest()
        if password is None:
            kdf, salt, limits = _NO_KDF, bytes(32), bytes(16)
        else:
            kdf, salt = _SCRYPT, secrets.token_bytes(32)
            limits = _OPS_LIMIT.to_bytes(8, "little") + _MEMORY_LIMIT.to_bytes(8, "little")
            plain = _xor(plain, _stretch(password, salt, _OPS_LIMIT, _MEMORY_LIMIT))
        return f"{_COMMENT}minisign {'' if password is None else 'encrypted '}secret key\n" + (
            f"{_base64(b'Ed' + kdf + b'B2' + salt + limits + plain)}\n"
        )


def generate_key() -> SecretKey:
    """A new key from the operating system's random numbers."""
    return SecretKey(secrets.token_bytes(8), secrets.token_bytes(32))


# --- reading keys ----------------------------------------------------------------------------------------------------


def read_public_key(source: str | Path) -> PublicKey:
    """A public key: the path of a .pub file, or its base64 line itself. UsageError where it is neither."""
    text = str(source)
    if len(text) < 256 and Path(text).is_file():
        text = _lines(read_small_file(Path(text), UsageError), 2, f"{source}: not a minisign public key", UsageError)[1]
    raw = _decode(text, 42)
    if raw is None or raw[:2] != b"Ed":
        raise UsageError(f"{source}: no such file, and not a minisign public key (56 characters that begin with RW)")
    return PublicKey(raw[2:10], raw[10:])


def read_secret_key(path: str | Path, password: str | None = None) -> SecretKey:
    """The secret key of a minisign key file. UsageError where it is none, or the password is missing or wrong."""
    path, problem = Path(path), f"{path}: not a minisign secret key"
    raw = _decode(_lines(read_small_file(path, UsageError), 2, problem, UsageError)[1], 158)
    if raw is None or raw[:2] != b"Ed" or raw[4:6] != b"B2" or raw[2:4] not in (_NO_KDF, _SCRYPT):
        raise UsageError(problem)
    salt, limits, plain = raw[6:38], raw[38:54], raw[54:]
    if raw[2:4] == _SCRYPT:
        if password is None:
            raise UsageError(f"{path}: is protected by a password, and no password was given")
        operations, memory = (int.from_bytes(limits[k : k + 8], "little") for k in (0, 8))
        if memory > _LARGEST_MEMORY:
            raise UsageError(f"{path}: asks for {memory:,} bytes of memory, minisign's key files for {_MEMORY_LIMIT:,}")
        plain = _xor(plain, _stretch(password, salt, operations, memory))
    key_id, key, checksum = plain[:8], plain[8:72], plain[72:]
    # minisign leaves the checksum of a key without a password empty
    unchecked = raw[2:4] == _NO_KDF and checksum == bytes(32)
    if not unchecked and hashlib.blake2b(b"Ed" + key_id + key, digest_size=32).digest() != checksum:
        raise UsageError(f"{path}: wrong password, or the file is damaged")
    return SecretKey(key_id, key[:32])


def needs_password(path: Path) -> bool:
    """Whether a key file is encrypted; False also where it is no key file."""
    lines = read_small_file(path, UsageError).splitlines()
    raw = _decode(lines[1], 158) if len(lines) > 1 else None
    return raw is not None and raw[2:4] == _SCRYPT


def _stretch(password: str, salt: bytes, operations: int, memory: int) -> bytes:
    """libsodium's crypto_pwhash_scryptsalsa208sha256: scrypt with N, r and p from its two limits."""
    r, operations = 8, max(operations, 32768)
    memory_bound = operations < memory // 32
    most = operations // (r * 4) if memory_bound else memory // (r * 128)
    log2_n = next((k for k in range(1, 63) if 1 << k > most // 2), 63)
    p = 1 if memory_bound else min(operations // 4 >> log2_n, 0x3FFFFFFF) // r
    try:
        return hashlib.scrypt(
            password.encode(), salt=salt, n=1 << log2_n, r=r, p=max(p, 1), maxmem=_LARGEST_MEMORY, dklen=104
        )
    except (ValueError, MemoryError) as error:
        raise UsageError(f"the key's password cannot be checked: {error}") from None


# --- signing and checking --------------------------------------------------------------------------------------------


def sign(data: bytes, key: SecretKey, comment: str) -> str:
    """The text of a signature file. comment: the trusted comment, one line that the signature covers."""
    if "\n" in comment or "\r" in comment:
        raise UsageError("the trusted comment must be one line")
    private = _private(key.seed)
    signature = private.sign(_digest(data))
    over_both = private.sign(signature + comment.encode())
    return (
        f"{_COMMENT}signature from minisign secret key {key.public.name}\n"
        f"{_base64(b'ED' + key.key_id + signature)}\n{_TRUSTED}{comment}\n{_base64(over_both)}\n"
    )


def check(data: bytes, signature: str, key: PublicKey, where: Path) -> str:
    """The trusted comment of a signature of `data` by `key`. where: the signature's path, for messages.

    ArtifactError where it is another key's, was not made for these bytes, or was changed.
    """
    problem = f"{where}: not a minisign signature, or damaged"
    lines = _lines(signature, 4, problem, ArtifactError)
    raw, over_both = _decode(lines[1], 74), _decode(lines[3], 64)
    if raw is None or over_both is None or raw[:2] not in (b"ED", b"Ed") or not lines[2].startswith(_TRUSTED):
        raise ArtifactError(problem)
    if raw[2:10] != key.key_id:
        by = PublicKey(raw[2:10], b"").name
        raise ArtifactError(f"{where}: is signed by key {by}, not by the key asked for, {key.name}")
    comment = lines[2].removeprefix(_TRUSTED)
    message = _digest(data) if raw[:2] == b"ED" else data
    if not _is_signed(key, raw[10:], message):
        raise ArtifactError(
            f"{where}: the signature does not fit {where.name.removesuffix('.minisig')}: one was changed"
        )
    if not _is_signed(key, over_both, raw[10:] + comment.encode()):
        raise ArtifactError(f"{where}: the trusted comment was changed")
    return comment


def _is_signed(key: PublicKey, signature: bytes, message: bytes) -> bool:
    ed25519 = _ed25519()  # first, as it says what to install
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key.key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private(seed: bytes) -> Any:
    return _ed25519().Ed25519PrivateKey.from_private_bytes(seed)


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError("signatures need the package cryptography: pip install 'onnxopt[sign]'") from None
    return ed25519


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str, size: int) -> bytes | None:
    """The `size` bytes that a base64 line holds, None where it holds anything else."""
    try:
        data = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    # Two texts may stand for the same bytes, in the bits that the padding leaves over: only one is taken.
    return data if len(data) == size and _base64(data) == text.strip() else None


def read_small_file(path: Path, kind: type[Exception]) -> str:
    """The text of a key or signature file; "" where it is too long or not UTF-8. Raises `kind` for an OSError."""
    try:
        data = path.read_bytes()[: _LARGEST + 1]
        return data.decode() if len(data) <= _LARGEST else ""
    except FileNotFoundError:
        raise kind(f"{path}: no such file") from None
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        return ""


def _lines(text: str, count: int, problem: str, kind: type[Exception]) -> list[str]:
    lines = text.removesuffix("\n").split("\n")
    if len(lines) != count or not lines[0].startswith(_COMMENT):
        raise kind(problem)
    return lines
