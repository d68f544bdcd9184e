"""Every file of an artifact changed by one bit, removed, truncated or replaced: load refuses, and names it."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import onnxopt
from onnxopt.errors import ArtifactError
from tests.support.artifacts import full, make
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE

pytestmark = pytest.mark.usefixtures("library")


def files_of(artifact: Path) -> list[str]:
    """All but the signature, which is looked at only where a key is given (test_signing.py)."""
    found = (p.relative_to(artifact).as_posix() for p in artifact.rglob("*") if p.is_file())
    return sorted(name for name in found if name != "manifest.json.minisig")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return full(tmp_path_factory.mktemp("tampering") / "artifact")


def test_it_has_every_file_that_an_artifact_can_have(made: Path) -> None:
    assert set(files_of(made)) == {
        "kernels.cu",
        "manifest.json",
        "model.onnx",
        "model.onnx.data",
        "model.portable.onnx",
        "report.html",
        *(
            f"lib/{n}"
            for n in (
                "libonnxopt_ops.so",
                "kernels.fatbin",
                "kernels.json",
                "gemm_algos.json",
                "conv_plans.json",
                "launches.json",
            )
        ),
        *(f"providers/{n}.json" for n in ("cpu", "cuda", "h100_pcie", "h100_sxm", "h200")),
        *(f"providers/{n}.tensorrt.json" for n in ("h100_pcie", "h100_sxm", "h200")),
    }


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def replace(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all")


@pytest.mark.parametrize("change", [remove, empty, truncate, halve, extend, replace, make_folder, dangle])
def test_each_change_to_each_file(made: Path, tmp_path: Path, change: Callable[[Path], None]) -> None:
    names = files_of(made)
    for number, name in enumerate(names):
        artifact = Path(shutil.copytree(made, tmp_path / f"{number}"))
        change(artifact / name)
        with pytest.raises(ArtifactError, match=f"{re.escape(str(artifact))}.*{re.escape(name)}"):
            onnxopt.load(artifact)


def test_one_bit_of_each_file(made: Path, artifact: Path) -> None:
    shutil.copytree(made, artifact)
    for name in files_of(made):
        bits = (artifact / name).stat().st_size * 8
        for bit in {0, 7, bits // 2, bits - 8, bits - 1, *(random.Random(name).randrange(bits) for _ in range(20))}:
            flip(artifact / name, bit)
            with pytest.raises(ArtifactError, match=re.escape(str(artifact / name))):
                onnxopt.load(artifact)
            flip(artifact / name, bit)
    onnxopt.load(artifact)


def test_every_bit_of_the_manifest(made: Path) -> None:
    """No bit of the manifest is without meaning: neither of a note, nor of the white space."""
    from onnxopt.artifact import manifest as manifests

    content = bytearray((made / "manifest.json").read_bytes())
    for bit in range(0, len(content) * 8, 37):  # every position of a byte comes up
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ArtifactError):
            manifests.parse(bytes(content), made / "manifest.json")
        content[bit // 8] ^= 1 << bit % 8
    manifests.parse(bytes(content), made / "manifest.json")


@pytest.mark.parametrize("name", ["manifest.json", "model.onnx", "lib/kernels.fatbin", "lib/kernels.json"])
def test_a_file_of_another_artifact(artifact: Path, tmp_path: Path, name: str) -> None:
    other = make(tmp_path / "other", CHAIN.replace("Tanh", "Erf"), archs=("sm_90",))
    shutil.copytree(make(tmp_path / "first", archs=("sm_90",)), artifact)
    shutil.copy(other / name, artifact / name)
    # Another artifact's manifest is whole: what does not fit it is the first other file.
    with pytest.raises(ArtifactError, match="the manifest says|not the file" if name == "manifest.json" else name):
        onnxopt.load(artifact)


@pytest.mark.parametrize("name", ["lib/libmore.so", "lib/deep/kernels.json", "providers/mine.json"])
def test_a_file_that_the_manifest_does_not_list(made: Path, artifact: Path, name: str) -> None:
    shutil.copytree(made, artifact)
    (artifact / name).parent.mkdir(exist_ok=True)
    (artifact / name).write_text("{}")
    with pytest.raises(ArtifactError, match=f"{name}: is not of this artifact"):
        onnxopt.load(artifact)


def test_a_library_put_where_none_was(artifact: Path, library: Path) -> None:
    make(artifact, NOTHING_TO_FUSE)
    (artifact / "lib").mkdir()
    shutil.copy(library, artifact / "lib")
    with pytest.raises(ArtifactError, match=r"libonnxopt_ops\.so: is not of this artifact"):
        onnxopt.load(artifact)


def test_files_of_the_user_elsewhere_are_none_of_our_business(made: Path, artifact: Path) -> None:
    shutil.copytree(made, artifact)
    (artifact / "NOTES.txt").write_text("deployed on Tuesday")
    onnxopt.load(artifact)
