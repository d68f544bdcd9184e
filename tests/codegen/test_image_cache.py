"""The cache of compiled images: what is not what was written is compiled again; who else can write is not trusted."""

from __future__ import annotations

import errno
import multiprocessing
import os
import stat
import time
import warnings
from pathlib import Path

import pytest

from onnxopt import caches
from onnxopt.codegen import image_cache
from onnxopt.errors import UsageError

KEY = "5" * 64
NAME, OTHER = f"{KEY}.cubin", f"{'6' * 64}.cubin"
CONTENT = bytes(range(256)) * 4


def write(folder: Path, name: str = NAME, content: bytes = CONTENT) -> Path:
    with image_cache.opened(folder) as cache:
        cache.write(name, content)
    return folder / name


def read(folder: Path, name: str = NAME) -> bytes | None:
    with image_cache.opened(folder) as cache:
        return cache.read(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


def test_what_was_written_is_read(folder: Path) -> None:
    assert read(folder) is None
    path = write(folder)
    assert read(folder) == CONTENT
    assert read(folder, OTHER) is None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write(folder, content=b"")
    assert read(folder) == b""
    assert os.listdir(folder) == [NAME]


def test_every_byte_and_every_length_counts(folder: Path) -> None:
    path = write(folder)
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        assert read(folder) is None, at
        path.write_bytes(whole[:at])
        assert read(folder) is None, at
    path.write_bytes(whole + b"\0")
    assert read(folder) is None
    path.write_bytes(whole)
    assert read(folder) == CONTENT


def test_the_file_of_another_key_is_none(folder: Path) -> None:
    write(folder, OTHER).replace(folder / NAME)
    assert read(folder) is None
    write(folder, f"{KEY}.ptx").replace(folder / NAME)  # and of another kind
    assert read(folder) is None


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "device", "writable", "foreign"])
def test_files_that_are_not_trusted(folder: Path, tmp_path: Path, kind: str) -> None:
    path = write(folder)
    if kind == "link":
        path.replace(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "fifo":
        path.unlink()
        os.mkfifo(path)
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "device":
        path.unlink()
        path.symlink_to("/dev/zero")
    elif kind == "writable":
        path.chmod(0o620)
    elif os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        pytest.skip("only root can give a file away")
    assert read(folder) is None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to(folder: Path, mode: int) -> None:
    write(folder)
    folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match=f"can write to it: chmod go-w {folder}$") as seen:
        assert read(folder) is None
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one warning is enough
        write(folder, OTHER)
    assert os.listdir(folder) == [NAME]
    folder.chmod(0o755)
    assert read(folder) == CONTENT


def test_a_folder_of_somebody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.warns(RuntimeWarning, match=f"{folder}: it belongs to user {owner}, not to this user"):
        assert read(folder) is None


def test_a_full_disk_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write(folder, OTHER)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.warns(RuntimeWarning, match=f"{folder}: No space left on device: make room"):
            write(folder)
    assert os.listdir(folder) == [OTHER]


# --- size ------------------------------------------------------------------------------------------------------------


def names(count: int) -> list[str]:
    return [f"{k:064x}.cubin" for k in range(count)]


def test_what_was_not_used_longest_goes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, name in enumerate(reversed(names(8))):
        path = write(folder, name, bytes(1000))
        os.utime(path, (time.time() - 1000 - age,) * 2)
    user_file = folder / "notes.txt"
    user_file.write_bytes(bytes(100_000))
    os.utime(user_file, (0, 0))
    assert read(folder, names(1)[0]) is not None  # the oldest is used again
    monkeypatch.setenv(caches.SIZE_VARIABLE, "5K")
    write(folder, NAME, b"new")
    left = {p.name for p in folder.iterdir()}
    assert left == {"notes.txt", NAME, names(1)[0], *names(8)[5:]}


def test_a_cache_of_size_0_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.SIZE_VARIABLE, "0")
    write(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("text", "size"), [("", 2e9), ("17", 17), ("5k", 5000), ("1.5 MB", 1.5e6), ("2GB", 2e9), ("1T", 1e12)]
)
def test_sizes(text: str, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.SIZE_VARIABLE, text)
    assert caches.size_limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "2GiBi", "1e9", "K"])
def test_what_is_no_size(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.SIZE_VARIABLE, text)
    with pytest.raises(UsageError, match=f"{caches.SIZE_VARIABLE}={text}: not a size"):
        write(folder)


def test_what_a_killed_process_left_goes_after_a_while(folder: Path) -> None:
    write(folder)
    old, young = (folder / f".{k * 16}{caches.PARTIAL}" for k in "ab")
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    write(folder, OTHER)
    assert {p.name for p in folder.iterdir()} == {NAME, OTHER, young.name}


def _hammer(folder: str, seed: int, failures: multiprocessing.SimpleQueue[str]) -> None:
    for k in range(60):
        name = names(12)[(k * 7 + seed) % 12]
        content = name.encode() * 50
        with image_cache.opened(Path(folder)) as cache:
            found = cache.read(name)
            if found not in (None, content):
                failures.put(f"{name}: {found!r}")
            cache.write(name, content)


def test_processes_that_write_read_and_evict_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.SIZE_VARIABLE, "20K")
    context = multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    workers = [context.Process(target=_hammer, args=(str(folder), seed, failures)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0, 0]
    assert failures.empty()
    assert 0 < sum(p.stat().st_size for p in folder.iterdir()) <= 20_000
    assert not list(folder.glob(f"*{caches.PARTIAL}"))
