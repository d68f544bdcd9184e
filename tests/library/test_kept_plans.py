"""Plans whose kernels cuDNN compiled, in the user's cache: kept for later processes, used where they can be trusted.

A stand-in for libcudnn.so.9 writes down every call (tests/support/fakes/fake_cudnn.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fakes.fake_cudnn import Log, convolution, drive

PLAN = 5


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "onnxopt" / "plans").iterdir())


def drive_with_cache(program: Path, folder: Path, **variables: str) -> Log:
    given = {"FAKE_COMPILED": "0", "XDG_CACHE_HOME": str(folder), "ONNXOPT_CACHE_SIZE": "1MB", **variables}
    return drive(program, folder, convolution(2), [[1, 5, 5, 8], [8, 3, 3, 8]], **given)


def is_built(log: Log) -> bool:
    """Whether the plan was made of a configuration, which compiles it."""
    (plan,) = [d for d in log.of_kind(PLAN) if d.ok]
    return 401 in plan.values


def test_a_kernel_that_was_compiled_is_kept_for_later_processes(program: Path, tmp_path: Path) -> None:
    assert is_built(drive_with_cache(program, tmp_path))
    (file,) = kept(tmp_path)
    assert file.read_bytes().startswith(b"plan of 10") and file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    again = drive_with_cache(program, tmp_path)
    assert not is_built(again) and [line.split()[0] for line in again.starting("execute")] == ["10"]
    (plan,) = again.of_kind(PLAN)
    assert plan.values[405] == ["plan", "of", "10"]


def test_kernels_that_are_ready_are_not_kept(program: Path, tmp_path: Path) -> None:
    drive_with_cache(program, tmp_path, FAKE_COMPILED="")
    assert not (tmp_path / "onnxopt").exists()


def damaged(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"10", b"11"))


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:20])


def writable(file: Path) -> None:
    file.chmod(0o620)


def folder_writable(file: Path) -> None:
    file.parent.chmod(0o777)


def link(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("change", [damaged, cut_short, writable, folder_writable, link, pipe])
def test_plans_that_cannot_be_trusted_are_built(program: Path, tmp_path: Path, change: Callable[[Path], None]) -> None:
    drive_with_cache(program, tmp_path)
    (file,) = kept(tmp_path)
    change(file)
    log = drive_with_cache(program, tmp_path)
    assert is_built(log) and [line.split()[0] for line in log.starting("execute")] == ["10"]
    assert bool(log.starting("warned")) is (change is folder_writable)


def test_a_kept_plan_that_cudnn_refuses_is_built(program: Path, tmp_path: Path) -> None:
    """The plan of engine 10, which another process then cannot finalize."""
    drive_with_cache(program, tmp_path)
    log = drive_with_cache(program, tmp_path, FAKE_REFUSED="0", FAKE_COMPILED="0 1")
    assert [line.split()[0] for line in log.starting("execute")] == ["11"]


def test_a_cache_that_cannot_be_written_is_a_warning(program: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxopt").write_text("no folder")
    log = drive_with_cache(program, tmp_path)
    assert log.starting("execute")
    (warning,) = log.starting("warned")
    assert str(tmp_path / "onnxopt" / "plans") in warning and "XDG_CACHE_HOME" in warning


@pytest.mark.parametrize("size", ["0", "0MB"])
def test_the_cache_can_be_switched_off(program: Path, tmp_path: Path, size: str) -> None:
    drive_with_cache(program, tmp_path, ONNXOPT_CACHE_SIZE=size)
    assert not (tmp_path / "onnxopt").exists()


def test_a_full_cache_forgets_what_was_not_used(program: Path, tmp_path: Path) -> None:
    drive_with_cache(program, tmp_path)
    (file,) = kept(tmp_path)
    for k in range(3):
        other = file.with_name(f"{k:064x}")
        other.write_bytes(bytes(100))
        os.utime(other, (k, k))
    partial = file.with_name(".0123456789abcdef.partial")
    partial.write_bytes(b"")
    os.utime(partial, (0, 0))
    damaged(file)
    drive_with_cache(program, tmp_path, ONNXOPT_CACHE_SIZE="290B")
    assert kept(tmp_path) == sorted([file.with_name(f"{2:064x}"), file])


@pytest.mark.parametrize("size", ["many", "1PB", "-1", "0x10", "inf", "nan", "1e9"])
def test_a_size_that_is_none(program: Path, tmp_path: Path, size: str) -> None:
    (error,) = drive_with_cache(program, tmp_path, ONNXOPT_CACHE_SIZE=size).starting("error")
    assert error == f"ONNXOPT_CACHE_SIZE={size}: not a size; write bytes, or 500MB, or 2GB"
