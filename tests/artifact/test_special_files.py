"""FIFOs, devices, sockets and links are refused at once wherever a file is read: in artifacts, as models, as keys."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import onnx
import pytest

import onnxopt
from onnxopt.artifact import archive, manifest, minisign, signing
from onnxopt.errors import ArtifactError
from tests.support.artifacts import edit_manifest, make, with_weights
from tests.support.command import assert_refused, forked, run

pytestmark = pytest.mark.usefixtures("library")
KINDS = ["fifo", "socket", "device", "link inside", "link outside"]


def put(path: Path, kind: str) -> None:
    """Replace a file by something else; a link leads to the same content."""
    if kind.startswith("link"):
        aside = path.with_name(f"{path.name}.aside") if kind == "link inside" else path.parents[2] / "aside"
        path.replace(aside) if path.exists() else aside.write_bytes(b"")
        path.symlink_to(aside)
        return
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as end:
            os.chdir(path.parent)  # the path of a socket is short
            end.bind(path.name)
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero
        except PermissionError:
            pytest.skip("only root makes devices")


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "manifest.json", "manifest.json.minisig", "lib/x"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_an_artifact(kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = minisign.generate_key()
    if name == "lib/x":  # which the manifest does not list
        make(tmp_path / "a" / "artifact")
    else:
        (tmp_path / "a").mkdir()
        with_weights(tmp_path / "a" / "artifact")
    artifact = tmp_path / "a" / "artifact"
    signing.sign(artifact, key)
    put(artifact / name, kind)
    with pytest.raises(ArtifactError, match=f"{name}: "):
        onnxopt.load(artifact, public_key=key.public.text)
    assert_refused(run("pack", artifact, tmp_path / "packed.zip"), name) if name != "lib/x" else None


@pytest.mark.parametrize("target", ["inside", "outside"])
def test_a_folder_that_is_a_link(target: str, artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    for name in ("lib", "providers"):
        aside = (artifact if target == "inside" else tmp_path) / f"{name}.aside"
        (artifact / name).rename(aside)
        (artifact / name).symlink_to(aside)
        with pytest.raises(ArtifactError, match=f"artifact/{name}"):
            onnxopt.load(artifact)
        (artifact / name).unlink()
        aside.rename(artifact / name)
    onnxopt.load(artifact)
    (artifact / "lib" / "more").symlink_to(tmp_path)
    with pytest.raises(ArtifactError, match="lib/more: is not of this artifact"):
        onnxopt.load(artifact)


def test_the_artifact_itself_may_be_a_link(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    (tmp_path / "current").symlink_to(artifact)
    onnxopt.load(tmp_path / "current")


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_an_archive(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "a.zip", kind)
    for read in (lambda path: archive.unpack(path, tmp_path / "out"), onnxopt.load, onnxopt.explain):
        with pytest.raises(ArtifactError, match=r"a\.zip: .*not a regular file"):
            read(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["optimize", "inspect", "verify"])
def test_a_model(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    for path in (tmp_path / "model.onnx", Path("/dev/zero")):
        arguments = {"optimize": ["-o", tmp_path / "out"], "inspect": [], "verify": [path]}[name]
        code, text = forked(name, path, *arguments)
        assert (code, text.count("\n")) == (2, 1), text
        assert "not a regular file" in text and str(path) in text
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_external_data(tmp_path: Path) -> None:
    value = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4096]) for n in "xy"]
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [4096], bytes(4 * 4096), raw=True)
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:], [weight])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.data")
    (tmp_path / "w.data").unlink()
    os.mkfifo(tmp_path / "w.data")
    code, text = forked("inspect", tmp_path / "m.onnx")
    assert (code, text.count("\n")) == (2, 1)
    assert "'w.data' is not a regular file" in text


def test_keys_and_measurements(artifact: Path, tmp_path: Path) -> None:
    make(artifact)
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        for arguments in (
            ("sign", artifact, "--key", path),
            ("verify-signature", artifact, "--public-key", path),
            ("report", artifact, "--bench", path),
        ):
            code, text = forked(*arguments)
            assert (code, text.count("\n")) == (2, 1), text
            assert f"{path}: cannot be read: it is a" in text


@pytest.mark.usefixtures("without_footprints")
def test_the_original_that_an_artifact_names(artifact: Path, tmp_path: Path) -> None:
    """bench compares the original's hash: a manifest may name any path."""
    make(artifact)
    os.mkfifo(tmp_path / "fifo")
    source = manifest.load(artifact).source.model_copy(update={"path": str(tmp_path / "fifo")})
    edit_manifest(artifact, source=source.model_dump(mode="json"))
    done = run("bench", artifact, "--iterations", "3")
    assert done.exit_code == 0, done.output
    assert "the original is gone or changed" in done.stdout
