"""pack and unpack: the same bytes each time, and nothing but the artifact comes out."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import onnxopt
from onnxopt.artifact import archive, layout, minisign, signing
from onnxopt.artifact.folder import hash_file
from onnxopt.errors import ArtifactError
from onnxopt.runtime import sessions
from tests.support.artifacts import make, with_digest
from tests.support.command import assert_refused, run
from tests.support.small_models import NOTHING_TO_FUSE

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("archive")
    return archive.pack(make(folder / "artifact", archs=("sm_90",)), folder / "chain.zip")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_there_and_back(packed: Path, tmp_path: Path) -> None:
    unpacked = archive.unpack(packed, tmp_path / "out")
    assert contents(unpacked) == contents(packed.parent / "artifact")
    onnxopt.load(unpacked)
    assert unpacked.stat().st_mode & 0o055 == 0o055  # as the umask says, not private


def test_the_same_artifact_gives_the_same_bytes(packed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(packed.parent / "artifact", tmp_path / "elsewhere")
    for path in copy.rglob("*"):
        os.utime(path, (1e9, 1e9))
        path.chmod(0o700)
    (copy / "NOTES.txt").write_text("not of the artifact")
    assert archive.pack(copy, tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    assert archive.pack(archive.unpack(packed, tmp_path / "out"), tmp_path / "third.zip").read_bytes() == (
        packed.read_bytes()
    )


def test_any_unzip_reads_it(packed: Path) -> None:
    with zipfile.ZipFile(packed) as file:
        assert file.testzip() is None
        names = file.namelist()
        assert names[0] == "manifest.json"
        assert names[1:] == sorted(names[1:])
        assert {entry.compress_type for entry in file.infolist()} == {zipfile.ZIP_STORED}


def test_the_signature_goes_along(artifact: Path, tmp_path: Path) -> None:
    key = minisign.generate_key()
    signing.sign(make(artifact), key)
    packed = archive.pack(artifact, tmp_path / "a.zip")
    line = key.public.to_text().splitlines()[1]
    onnxopt.load(packed, public_key=line)
    assert contents(archive.unpack(packed, tmp_path / "out")) == contents(artifact)
    (artifact / layout.SIGNATURE).unlink()
    with pytest.raises(ArtifactError, match="is not signed"):  # the signed copy in the cache is another
        onnxopt.load(archive.pack(artifact, tmp_path / "b.zip"), public_key=line)


def test_load_opens_an_archive(packed: Path, cache: Path) -> None:
    feeds = {"x": np.ones((2, 8), np.float32), "bias": np.ones(8, np.float32), "weight": np.ones((8, 8), np.float32)}
    folder = packed.parent / "artifact"
    expected = onnxopt.load(folder, providers=[sessions.CPU]).run(None, feeds)
    for _ in range(2):  # the second finds it in the cache
        found = onnxopt.load(packed, providers=[sessions.CPU]).run(None, feeds)
        np.testing.assert_array_equal(found[0], expected[0])
    kept = list((cache / "onnxopt" / "artifacts").iterdir())
    assert len(kept) == 1
    assert contents(kept[0]) == contents(folder)


@pytest.mark.parametrize("name", ["model.onnx", "manifest.json", "lib/kernels.json", "providers/cpu.json"])
def test_an_unpacked_folder_that_was_changed_is_unpacked_again(packed: Path, cache: Path, name: str) -> None:
    onnxopt.load(packed)
    (kept,) = (cache / "onnxopt" / "artifacts").iterdir()
    for change in ("bit", "gone", "link", "fifo"):
        path = kept / name
        content = path.read_bytes()
        path.unlink()
        if change == "bit":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        elif change == "link":
            path.symlink_to(packed.parent / "artifact" / name)
        elif change == "fifo":
            os.mkfifo(path)
        onnxopt.load(packed)
        assert contents(kept) == contents(packed.parent / "artifact")
    assert os.listdir(kept.parent) == [kept.name]


def test_another_artifact_in_the_place_of_an_unpacked_one(packed: Path, cache: Path, tmp_path: Path) -> None:
    onnxopt.load(packed)
    (kept,) = (cache / "onnxopt" / "artifacts").iterdir()
    shutil.rmtree(kept)
    make(kept, NOTHING_TO_FUSE)
    kept.chmod(0o700)
    assert [i.name for i in onnxopt.load(packed).get_inputs()] == ["x", "bias", "weight"]
    assert contents(kept) == contents(packed.parent / "artifact")


def test_an_unpacked_folder_that_others_can_write_to_is_unpacked_again(packed: Path, cache: Path) -> None:
    onnxopt.load(packed)
    (kept,) = (cache / "onnxopt" / "artifacts").iterdir()
    kept.chmod(0o777)
    (kept / "planted").touch()
    onnxopt.load(packed)
    assert kept.stat().st_mode & 0o777 == 0o700
    assert contents(kept) == contents(packed.parent / "artifact")


@pytest.mark.parametrize("kind", ["full", "writable"])
def test_a_cache_of_archives_that_cannot_be_used(
    packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = cache / "onnxopt" / "artifacts"
    folder.mkdir(parents=True, mode=0o700)
    if kind == "writable":
        folder.chmod(0o777)
    else:
        write_bytes = Path.write_bytes

        def full(self: Path, data: bytes) -> int:
            if self.is_relative_to(folder):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write_bytes(self, data)

        monkeypatch.setattr(Path, "write_bytes", full)
    expected = f"{folder}.*No space left on device" if kind == "full" else f"can write to it: chmod go-w {folder}"
    with pytest.warns(RuntimeWarning, match=expected):
        onnxopt.load(packed)
    assert not list(folder.iterdir())


def test_unpacked_archives_that_were_not_used_longest_go_first(
    packed: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache / "onnxopt" / "artifacts"
    other = archive.pack(make(tmp_path / "other", NOTHING_TO_FUSE), tmp_path / "other.zip")
    onnxopt.load(packed)
    (first,) = folder.iterdir()
    monkeypatch.setenv("ONNXOPT_CACHE_SIZE", "10k")
    onnxopt.load(other)  # larger than the limit, and in use
    (second,) = folder.iterdir()
    assert first != second


def test_an_archive_of_an_artifact_that_is_damaged(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    content = (artifact / "model.onnx").read_bytes()
    for bad in (content[:-1], content[:-1] + b"?", None):
        if bad is None:
            (artifact / "model.onnx").unlink()
        else:
            (artifact / "model.onnx").write_bytes(bad)
        with pytest.raises(ArtifactError, match=r"model\.onnx"):
            archive.pack(artifact, tmp_path / "a.zip")
    assert [p.name for p in tmp_path.iterdir()] == ["artifact"]


# --- hostile archives ------------------------------------------------------------------------------------------------


def rewrite(packed: Path, output: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The archive with its entries (name to content) changed, written by zipfile."""
    with zipfile.ZipFile(packed) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    change(entries)
    with zipfile.ZipFile(output, "w") as file:
        for name, content in entries.items():
            file.writestr(zipfile.ZipInfo(name), content)
    return output


def refused(path: Path, tmp_path: Path, match: str) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ArtifactError, match=match):
        archive.unpack(path, tmp_path / "out")
    with pytest.raises(ArtifactError, match=match):
        onnxopt.load(path)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["../evil", "/evil", "lib/../../evil", "lib/evil.so", "lib\\evil", "lib/", "C:/evil"])
def test_entries_that_are_not_the_artifacts(packed: Path, tmp_path: Path, name: str) -> None:
    path = rewrite(packed, tmp_path / "a.zip", lambda entries: entries.update({name: b"x"}))
    refused(path, tmp_path, "which the manifest does not list")


@pytest.mark.parametrize("name", ["../evil", "/evil", "lib/../../evil"])
def test_a_manifest_that_lists_files_outside(packed: Path, tmp_path: Path, name: str) -> None:
    def change(entries: dict[str, bytes]) -> None:
        import json

        entries[name] = b"x"
        document = json.loads(entries["manifest.json"])
        document["files"][name] = {"sha256": hashlib.sha256(b"x").hexdigest(), "bytes": 1}
        document.pop("sha256")
        entries["manifest.json"] = with_digest(document)

    refused(rewrite(packed, tmp_path / "a.zip", change), tmp_path, "names a file outside the folder")


@pytest.mark.parametrize("name", ["model.onnx", "lib/kernels.json", "lib/libonnxopt_ops.so", "providers/cpu.json"])
def test_entries_that_were_changed(packed: Path, tmp_path: Path, name: str) -> None:
    for number, (content, match) in enumerate(
        ((lambda c: c[:-1] + bytes([c[-1] ^ 1]), "is not the file"), (lambda c: c + b"x", "the manifest says"))
    ):
        path = tmp_path / f"{number}.zip"
        rewrite(packed, path, lambda entries, content=content: entries.update({name: content(entries[name])}))
        refused(path, tmp_path, f"{name}: .*{match}")
    path = rewrite(packed, tmp_path / "gone.zip", lambda entries: entries.pop(name))
    refused(path, tmp_path, f"{name}: is missing")


def test_a_manifest_that_was_changed(packed: Path, tmp_path: Path) -> None:
    def change(entries: dict[str, bytes]) -> None:
        entries["manifest.json"] = entries["manifest.json"].replace(b"chain.onnx", b"chaim.onnx")

    refused(rewrite(packed, tmp_path / "a.zip", change), tmp_path, r"manifest\.json: damaged or edited")
    path = rewrite(packed, tmp_path / "b.zip", lambda entries: entries.pop("manifest.json"))
    refused(path, tmp_path, "it holds no manifest.json")


def test_links_compression_and_duplicates(packed: Path, tmp_path: Path) -> None:
    def write(name: str, add: Callable[[zipfile.ZipFile], None]) -> Path:
        path = tmp_path / name
        with zipfile.ZipFile(packed) as source, zipfile.ZipFile(path, "w") as file:
            for entry in source.namelist():
                if entry != "model.onnx":
                    file.writestr(zipfile.ZipInfo(entry), source.read(entry))
            add(file)
        return path

    model = (packed.parent / "artifact" / "model.onnx").read_bytes()
    link = zipfile.ZipInfo("model.onnx")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    refused(write("link.zip", lambda f: f.writestr(link, model)), tmp_path, r"model\.onnx: is a link")
    deflated = write("deflated.zip", lambda f: f.writestr("model.onnx", b"\0" * len(model), zipfile.ZIP_DEFLATED))
    refused(deflated, tmp_path, r"model\.onnx: is compressed")

    def twice(file: zipfile.ZipFile) -> None:
        file.writestr("model.onnx", model)
        file.writestr("model.onnx", model)

    with pytest.warns(UserWarning, match="Duplicate name"):
        path = write("twice.zip", twice)
    refused(path, tmp_path, "holds 'model.onnx' twice")


def test_a_manifest_that_would_fill_the_memory(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr("manifest.json", b" " * (10 << 20), zipfile.ZIP_DEFLATED)
    (tmp_path / "bomb.zip").write_bytes(packed.getvalue())
    refused(tmp_path / "bomb.zip", tmp_path, r"manifest\.json: is compressed")


def test_no_single_bit_goes_unnoticed(packed: Path, tmp_path: Path) -> None:
    """Flip bits all over the archive: it is refused, or what comes out is the artifact (a bit that says nothing)."""
    content = bytearray(packed.read_bytes())
    expected = contents(packed.parent / "artifact")
    path = tmp_path / "a.zip"
    size = len(content)
    directory = content.rindex(b"PK\x05\x06") - 900
    for at in [*range(0, 400, 7), *range(0, size, size // 60), *range(directory, size, 11)]:
        content[at] ^= 1 << at % 8
        path.write_bytes(content)
        content[at] ^= 1 << at % 8
        with contextlib.suppress(ArtifactError):
            archive.unpack(path, tmp_path / "out")
            assert contents(tmp_path / "out") == expected
            shutil.rmtree(tmp_path / "out")
        assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize("keep", [0, 10, 1000, -1, -100])
def test_truncated(packed: Path, tmp_path: Path, keep: int) -> None:
    (tmp_path / "a.zip").write_bytes(packed.read_bytes()[:keep])
    refused(tmp_path / "a.zip", tmp_path, r"a\.zip")


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_footprints")
def test_the_commands(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    made = run("pack", artifact, "-o", tmp_path / "a.zip")
    assert made.exit_code == 0, made.output
    assert run("pack", artifact, tmp_path / "b.zip").exit_code == 0  # as it was spelled before
    assert (tmp_path / "b.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()
    assert hash_file(tmp_path / "a.zip").sha256 in made.stdout
    assert run("unpack", tmp_path / "a.zip", "-o", tmp_path / "out").exit_code == 0
    assert contents(tmp_path / "out") == contents(artifact)
    assert run("verify", tmp_path / "a.zip", artifact).exit_code == 0
    assert "Add, Tanh, Mul, Sub" in run("explain", tmp_path / "a.zip").stdout
    assert run("bench", tmp_path / "a.zip", "--seconds", "0.05").exit_code == 0
    assert_refused(run("bench", tmp_path / "a.zip", "--seconds", "0"), "seconds must be a number above 0")


def test_bad_input_to_the_commands(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    (tmp_path / "there").write_text("x")
    assert_refused(run("pack", artifact, tmp_path / "there"), "exists already")
    assert_refused(run("pack", artifact), "give either FILE or --output")
    assert_refused(
        run("unpack", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "c"), "give either FOLDER or --output"
    )
    assert_refused(run("pack", tmp_path / "nowhere", tmp_path / "a.zip"), "no such artifact folder")
    assert_refused(run("pack", tmp_path, tmp_path / "a.zip"), "not an artifact")
    assert_refused(run("unpack", tmp_path / "nowhere.zip", tmp_path / "out"), "no such file")
    assert_refused(run("unpack", tmp_path / "there", tmp_path / "out"), "not an artifact")
    assert_refused(run("unpack", artifact, tmp_path / "out"), "is a folder")
    assert_refused(run("unpack", tmp_path / "there", artifact), "exists already")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["artifact", "there"]


def test_a_cache_that_cannot_be_written(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match=f"{tmp_path / 'file'}/onnxopt/artifacts: Not a directory"):
        session = onnxopt.load(packed)
    assert [i.name for i in session.get_inputs()] == ["x", "bias", "weight"]
