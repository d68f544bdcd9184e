"""Signatures: minisign's own vectors, the command beside ours where it is installed, and load with a public key."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onnxopt
from onnxopt.artifact import layout, minisign, signing
from onnxopt.errors import ArtifactError, UsageError
from tests.support.artifacts import edit_manifest, make
from tests.support.command import assert_refused, run

MINISIGN = shutil.which("minisign")
needs_minisign = pytest.mark.skipif(MINISIGN is None, reason="the command minisign is not installed")

# Made with minisign 0.11 (Debian): `minisign -G -W`, `minisign -S` and `minisign -S -l` of the text "hello\n", and
# `minisign -G` with the password "secret".
VECTOR_PUBLIC = "RWQOB1lFmY/f4qmgdzWKRdGhMwHJid9vXqgd0J9BEInz3/f0hrmPf+iw"
VECTOR_ENCRYPTED_PUBLIC = "RWQNN0ebRBramysPMVE04K1/e27Hzkl40l3EAgihE3k3BX9ioRyUBv0S"
VECTOR_SECRET = (
    "untrusted comment: minisign encrypted secret key\n"
    "RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAADgdZRZmP3+LoKQiPVgKdp+Q7afp4"
    "Xi8zudlbcB21zNHKpZTh8aKUZKmgdzWKRdGhMwHJid9vXqgd0J9BEInz3/f0hrmPf+iwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAA=\n"
)
VECTOR_ENCRYPTED = (
    "untrusted comment: minisign encrypted secret key\n"
    "RWRTY0IyYzNELjsoVe64uaUXr3HPG0VNa86j3pTAH4nTRDffp9MAAAACAAAAAAAAAEAAAAAAhJ78/xdfiJ2DsTi+6MiGkwIFSGl0"
    "LdOnvWeo8GozXWWjUOIV1Ln9MKXNWql7FHuC1052UzNx+yyFCZdDuBAGg0vKmhy/1HKHjbNutniVrKzXGAgq6C+TR+ctZNKrA6A5"
    "cBqPfwT2f6s=\n"
)
VECTOR_HASHED = (
    "untrusted comment: signature from minisign secret key\n"
    "RUQOB1lFmY/f4vt9CeXEvHLHeCp4+pV4Iz92Qul3l2907HtxSTetiV/J5js2gf9aqgMrSWAdQk1sCzolJSNlSz2a7Cb6gKEibAk=\n"
    "trusted comment: timestamp:1795274627\tfile:f.txt\thashed\n"
    "n105TJggJzWOFmCCz5xFnpsb/VHlVVyzRPCLjSf86i4A+PsNNjMXSSjoHm4fQj5/90yAvvLokxgpiInDqwv1CQ==\n"
)
VECTOR_LEGACY = (
    "untrusted comment: signature from minisign secret key\n"
    "RWQOB1lFmY/f4pPG4TJMaaEdNHmc5CJKnvgvxQi0OZ/eU1gLxdflDSyyc376de753cNJ1SdzJ3SzDpq8C8u2K/k0+6U9Ffvaygs=\n"
    "trusted comment: timestamp:1795274627\tfile:f.txt\n"
    "lz7Nzx8oP8ljcP+esSllACxqZijUZMw/Iav60uZgXiUJREmXTbXkooS3HoKTv4GPgnpWI3e7SuEVT8v5keCCCw==\n"
)


@pytest.fixture(scope="module")
def key() -> minisign.SecretKey:
    return minisign.generate_key()


@pytest.fixture
def signed(artifact: Path, key: minisign.SecretKey, library: Path) -> Path:
    signing.sign(make(artifact), key)
    return artifact


def public_file(folder: Path, key: minisign.SecretKey) -> Path:
    path = folder / "key.pub"
    path.write_text(key.public.to_text())
    return path


# --- vectors ---------------------------------------------------------------------------------------------------------


def test_minisigns_own_signatures(tmp_path: Path) -> None:
    key = minisign.read_public_key(VECTOR_PUBLIC)
    for text in (VECTOR_HASHED, VECTOR_LEGACY):
        assert minisign.check(b"hello\n", text.encode(), key, tmp_path / "f.minisig").startswith("timestamp:")
        with pytest.raises(ArtifactError, match="does not fit"):
            minisign.check(b"hellp\n", text.encode(), key, tmp_path / "f.minisig")


def test_minisigns_own_secret_keys(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(VECTOR_SECRET)
    assert minisign.read_secret_key(path).public == minisign.read_public_key(VECTOR_PUBLIC)


@pytest.mark.exhaustive
def test_minisigns_own_password(tmp_path: Path) -> None:
    """Takes a GiB and seconds."""
    path = tmp_path / "key"
    path.write_text(VECTOR_ENCRYPTED)
    assert minisign.needs_password(path)
    assert minisign.read_secret_key(path, "secret").public == minisign.read_public_key(VECTOR_ENCRYPTED_PUBLIC)


@pytest.fixture
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys with little work behind their password; minisign's own take a GiB and seconds."""
    monkeypatch.setattr(minisign, "_OPS_LIMIT", 1 << 16)
    monkeypatch.setattr(minisign, "_MEMORY_LIMIT", 1 << 24)


@pytest.mark.usefixtures("quick_passwords")
def test_passwords(tmp_path: Path, key: minisign.SecretKey) -> None:
    path = tmp_path / "key"
    path.write_text(key.to_text("secret"))
    assert minisign.read_secret_key(path, "secret") == key
    for wrong in ("Secret", ""):
        with pytest.raises(UsageError, match="wrong password"):
            minisign.read_secret_key(path, wrong)
    with pytest.raises(UsageError, match="protected by a password"):
        minisign.read_secret_key(path)


@needs_minisign
def test_minisign_accepts_what_we_sign(signed: Path, key: minisign.SecretKey, tmp_path: Path) -> None:
    command = [MINISIGN, "-Vm", signed / "manifest.json", "-p", public_file(tmp_path, key)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    with (signed / "manifest.json").open("ab") as file:
        file.write(b" ")
    assert subprocess.run(command, capture_output=True).returncode != 0


@needs_minisign
def test_we_accept_what_minisign_signs(artifact: Path, key: minisign.SecretKey, tmp_path: Path) -> None:
    make(artifact)
    (tmp_path / "key").write_text(key.to_text())
    for legacy in ([], ["-l"]):
        command = [MINISIGN, "-S", *legacy, "-m", artifact / "manifest.json", "-s", tmp_path / "key", "-t", "released"]
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert result.returncode == 0, result.stderr
        onnxopt.load(artifact, public_key=public_file(tmp_path, key))


# --- load ------------------------------------------------------------------------------------------------------------


def test_load_checks_the_signature(signed: Path, key: minisign.SecretKey, tmp_path: Path) -> None:
    line = key.public.to_text().splitlines()[1]
    onnxopt.load(signed, public_key=line)
    onnxopt.load(signed, public_key=public_file(tmp_path, key))
    onnxopt.load(signed)  # nobody asked


def test_the_environment_asks_for_a_signature(
    signed: Path, key: minisign.SecretKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(signing.PUBLIC_KEY_VARIABLE, key.public.to_text().splitlines()[1])
    onnxopt.load(signed)
    (signed / layout.SIGNATURE).unlink()
    with pytest.raises(ArtifactError, match="is not signed"):
        onnxopt.load(signed)
    with pytest.raises(ArtifactError, match="is not signed"):
        onnxopt.verify(signed, signed)


def test_another_key(signed: Path, key: minisign.SecretKey) -> None:
    other = minisign.generate_key()
    with pytest.raises(ArtifactError, match=f"signed by key {key.public.name}, not by .* {other.public.name}"):
        onnxopt.load(signed, public_key=other.public.to_text().splitlines()[1])
    own, others = (base64.b64decode(k.public.text) for k in (key, other))
    impostor = base64.b64encode(own[:10] + others[10:]).decode()  # the same id
    with pytest.raises(ArtifactError, match="does not fit"):
        onnxopt.load(signed, public_key=impostor)


def test_an_artifact_that_was_edited_with_skill(signed: Path, key: minisign.SecretKey) -> None:
    """The digests can be made to fit again; the signature cannot."""
    line = key.public.to_text().splitlines()[1]
    edit_manifest(signed, notes=["all is well"])
    onnxopt.load(signed)
    with pytest.raises(ArtifactError, match=r"manifest\.json\.minisig: the signature does not fit manifest\.json"):
        onnxopt.load(signed, public_key=line)


def test_every_bit_of_a_signature_that_matters(key: minisign.SecretKey, tmp_path: Path) -> None:
    text = minisign.sign(b"data", key, "released on Saturday").encode()
    after_first_line = text.index(b"\n") + 1  # the untrusted comment is what its name says
    where = tmp_path / "manifest.json.minisig"
    for bit in range(after_first_line * 8, len(text) * 8 - 8):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ArtifactError, match=r"manifest\.json\.minisig"):
            minisign.check(b"data", bytes(changed), key.public, where)
    assert minisign.check(b"data", text, key.public, where) == "released on Saturday"


# --- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "RWQ", "not a key", "untrusted comment: x\nRWQ=\n", "é" * 42])
def test_what_is_no_public_key(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="minisign public key"):
        minisign.read_public_key(text or "?")
    (tmp_path / "key.pub").write_text(text)
    with pytest.raises(UsageError, match="minisign public key"):
        minisign.read_public_key(tmp_path / "key.pub")


def test_what_is_no_secret_key(tmp_path: Path, key: minisign.SecretKey) -> None:
    path = tmp_path / "key"
    with pytest.raises(UsageError, match="no such file"):
        minisign.read_secret_key(path)
    good = key.to_text()
    raw = bytearray(base64.b64decode(good.splitlines()[1]))
    for at in (0, 2, 4, 60, 140):  # algorithm, KDF, checksum algorithm, key, checksum
        bad = bytearray(raw)
        bad[at] ^= 1
        path.write_text(f"untrusted comment: x\n{base64.b64encode(bad).decode()}\n")
        with pytest.raises(UsageError, match=r"not a minisign secret key|damaged"):
            minisign.read_secret_key(path)
    for text in ("", good[:40], good.replace("untrusted", "trusted"), key.public.to_text()):
        path.write_text(text)
        with pytest.raises(UsageError, match="not a minisign secret key"):
            minisign.read_secret_key(path)


def test_a_key_file_that_wants_all_the_memory(tmp_path: Path, key: minisign.SecretKey) -> None:
    raw = bytearray(base64.b64decode(VECTOR_ENCRYPTED.splitlines()[1]))
    raw[46:54] = (1 << 62).to_bytes(8, "little")
    (tmp_path / "key").write_text(f"untrusted comment: x\n{base64.b64encode(raw).decode()}\n")
    with pytest.raises(UsageError, match="key: invalid memlimit"):
        minisign.read_secret_key(tmp_path / "key", "secret")


def test_without_the_package_the_message_says_what_to_install(
    key: minisign.SecretKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = minisign.sign(b"data", key, "released on Saturday").encode()
    public = key.public
    for missing in ("minisign", "cryptography"):  # the second is what the first imports
        with monkeypatch.context() as patch:
            for name in [n for n in sys.modules if n.split(".")[0] in ("minisign", "cryptography")]:
                patch.delitem(sys.modules, name)
            patch.setitem(sys.modules, missing, None)
            with pytest.raises(UsageError, match="pip install"):
                minisign.check(b"data", text, public, tmp_path / "manifest.json.minisig")
            with pytest.raises(UsageError, match="pip install"):
                minisign.generate_key()


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("library")
def test_the_commands(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    made = run("keygen", tmp_path / "key", "--no-password")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert (tmp_path / "key.pub").read_text().splitlines()[1] in made.stdout

    assert_refused(run("verify-signature", artifact, "--key", tmp_path / "key.pub"), "is not signed")
    signed = run("sign", artifact, "--key", tmp_path / "key", "--comment", "release 7")
    assert signed.exit_code == 0, signed.output
    checked = run("verify-signature", artifact, "--key", tmp_path / "key.pub")
    assert checked.exit_code == 0, checked.output
    assert "trusted comment: release 7" in checked.stdout
    earlier = run("verify-signature", artifact, "--public-key", tmp_path / "key.pub")  # as it was spelled before
    assert earlier.stdout == checked.stdout
    assert "--public-key" not in run("verify-signature", "--help").stdout

    assert_refused(run("sign", artifact, "--key", tmp_path / "key"), "signed already", "--force")
    assert run("sign", artifact, "--key", tmp_path / "key", "--force", "--comment", "release 8").exit_code == 0
    assert "release 8" in run("verify-signature", artifact, "--key", tmp_path / "key.pub").stdout
    assert not list(artifact.glob(".*"))


@pytest.mark.usefixtures("library")
def test_bad_input_to_the_commands(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONNXOPT_KEY_PASSWORD", raising=False)
    make(artifact)
    assert run("keygen", tmp_path / "key", "--no-password").exit_code == 0
    assert_refused(run("keygen", tmp_path / "key", "--no-password"), "exists already")
    assert_refused(run("keygen", tmp_path / "other"), "ONNXOPT_KEY_PASSWORD")
    assert_refused(run("sign", artifact, "--key", tmp_path / "nothing"), "no such file")
    assert_refused(run("sign", artifact, "--key", tmp_path / "key.pub"), "not a minisign secret key")
    assert_refused(run("sign", artifact, "--key", tmp_path / "key", "--comment", "two\nlines"), "one line")
    assert_refused(run("sign", tmp_path, "--key", tmp_path / "key"), "not an artifact")
    assert_refused(run("verify-signature", artifact), "--key")
    assert_refused(run("verify-signature", artifact, "--public-key", "nonsense"), "minisign public key")
    (artifact / "model.onnx").write_bytes(b"x")
    assert_refused(run("sign", artifact, "--key", tmp_path / "key"), "model.onnx")
    found = sorted(p.name for p in artifact.iterdir())
    assert found == ["lib", "manifest.json", "model.onnx", "providers", "report.html"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["artifact", "key", "key.pub"]


@pytest.mark.usefixtures("quick_passwords")
def test_a_password_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXOPT_KEY_PASSWORD", "open sesame")
    assert run("keygen", tmp_path / "key").exit_code == 0
    assert minisign.needs_password(tmp_path / "key")
    key = minisign.read_secret_key(tmp_path / "key", "open sesame")
    assert key.public == minisign.read_public_key(tmp_path / "key.pub")
