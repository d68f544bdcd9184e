"""Files beside the library that were changed after they were written: refused, and ONNX Runtime runs the bodies."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from onnxopt.codegen import kernels_json, sealed_json
from tests.support.custom_ops.custom_ops_artifact import negation

pytestmark = pytest.mark.usefixtures("library")


def registered(library: Path) -> tuple[ort.SessionOptions, str]:
    """Options after registering, and what the error said, if there was one."""
    options = ort.SessionOptions()
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # noqa: BLE001  (ONNX Runtime's errors have no common class)
        return options, str(error)
    return options, ""


def result(options: ort.SessionOptions, model: bytes) -> float:
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return float(session.run(None, {"x0": np.ones(3, np.float32)})[0][0])


def test_as_written_the_kernel_runs(tmp_path: Path) -> None:
    library, model = negation(tmp_path)
    options, problem = registered(library)
    assert not problem
    assert result(options, model) == -1


@pytest.mark.parametrize("name", ["kernels.json", "kernels.fatbin"])
def test_a_changed_byte_is_an_error_and_the_bodies_run(name: str, tmp_path: Path) -> None:
    """Of every part of the file; with the options that the library refused a session is made all the same."""
    library, model = negation(tmp_path)
    good = (tmp_path / name).read_bytes()
    for at in range(0, len(good), max(1, len(good) // 16)):
        (tmp_path / name).write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        options, problem = registered(library)
        assert str(tmp_path / name) in problem and "\n" not in problem, at
        assert result(options, model) == 1
    (tmp_path / name).write_bytes(good)
    assert result(registered(library)[0], model) == -1


def test_a_changed_number_is_told_from_a_digest_that_fits(tmp_path: Path) -> None:
    library, _ = negation(tmp_path)
    file = tmp_path / "kernels.json"
    changed = file.read_text().replace('"threads": 128', '"threads": 256')
    file.write_text(changed)
    assert "kernels.json: was changed after it was written: its sha256 is " in registered(library)[1]
    file.write_text(sealed_json.seal(json.loads(changed)))
    assert not registered(library)[1]


def test_an_older_schema_says_what_to_do(tmp_path: Path) -> None:
    library, _ = negation(tmp_path)
    document = sealed_json.unseal((tmp_path / "kernels.json").read_text())
    (tmp_path / "kernels.json").write_text(json.dumps({**document, "schema": 3}))
    problem = registered(library)[1]
    assert "schema is 3, and this library reads schema 4" in problem
    assert "restore the artifact folder or write it again with onnxopt" in problem


def test_this_schema_without_a_digest_is_refused(tmp_path: Path) -> None:
    library, _ = negation(tmp_path)
    document = sealed_json.unseal((tmp_path / "kernels.json").read_text())
    for text in (json.dumps(document), json.dumps({"sha256": "0" * 64, **document})):
        (tmp_path / "kernels.json").write_text(text)
        assert "its first line is no sha256 of the others" in registered(library)[1]


@pytest.mark.parametrize("name", ["kernels.json", "kernels.fatbin"])
def test_what_is_no_file_is_refused_at_once(name: str, tmp_path: Path) -> None:
    """A pipe would have the library wait for somebody who writes to it."""
    library, _ = negation(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    assert f"{name}: it is no regular file" in registered(library)[1]
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert f"{name}: it is no regular file" in registered(library)[1]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("kernels.json", "kernels.json has 4294967296 bytes, more than the 268435456 that this library reads"),
        ("kernels.fatbin", "kernels.fatbin has 4294967296 bytes, more than the 64 that kernels.json says"),
    ],
)
def test_files_that_are_too_large_are_not_read(name: str, problem: str, tmp_path: Path) -> None:
    library, _ = negation(tmp_path)
    with (tmp_path / name).open("r+b") as file:
        file.truncate(1 << 32)  # a file of holes
    assert problem in registered(library)[1]


def test_what_python_seals_can_be_unsealed() -> None:
    document = {"schema": kernels_json.SCHEMA, "kernels": [1.5, "é", None]}
    text = sealed_json.seal(document)
    assert sealed_json.unseal(text) == document
    assert json.loads(text) == {"sha256": text.split('"')[3], **document}
    assert sealed_json.seal(json.loads(text)) == text
    assert hashlib.sha256("".join(text.splitlines(keepends=True)[1:]).encode()).hexdigest() == text.split('"')[3]
    for changed in (text[:-1], text + " ", text.replace("1.5", "1.6"), text[1:], "", "{}"):
        with pytest.raises(ValueError, match="sha256"):
            sealed_json.unseal(changed)
