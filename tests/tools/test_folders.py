"""Folders of models: names and other files stay, one library serves all, and one bad model leaves the others done."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxopt
from models.reference import Reference
from onnxopt.artifact import manifest as manifests
from onnxopt.errors import ArtifactError, ModelError, UsageError
from onnxopt.runtime import sessions
from tests.support import real_models
from tests.support.command import assert_refused, run
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE, write

pytestmark = pytest.mark.usefixtures("library")
MODELS = {"model.onnx": "Tanh", "onnx/decoder_model.onnx": "Erf", "onnx/deep/encoder_model.onnx": "Sigmoid"}
OTHERS = {"config.json": b'{"model_type": "none"}', "onnx/tokenizer.json": b"{}", ".gitattributes": b"* text"}
RANDOM = np.random.default_rng(0)
SHAPES = {"x": (5, 8), "bias": (8,), "weight": (8, 8), "x0": (3, 64)}
FEEDS = {name: RANDOM.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "original"
    for name, op in MODELS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        write(root / name, CHAIN.replace("Tanh", op))
    for name, data in OTHERS.items():
        (root / name).write_bytes(data)
    return root


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}


def outputs(model: Path, options: ort.SessionOptions | None = None) -> tuple[np.ndarray, set[str]]:
    """The output, and the operators that ran."""
    options = options or ort.SessionOptions()
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = f"{folder}/profile"
        session = ort.InferenceSession(model, options, providers=[sessions.CPU])
        (y,) = session.run(None, {i.name: FEEDS[i.name] for i in session.get_inputs()})
        events = json.loads(Path(session.end_profiling()).read_text())
    return y, {event["args"]["op_name"] for event in events if "op_name" in event.get("args", {})}


def external(path: Path, op: str, data: str) -> Path:
    """A model whose weight lies in the file `data` beside it."""
    text = (
        f"g (float[batch, 64] x0) => (float[batch, 64] y) {{ a = {op}(x0) b = Mul(a, x0) c = Add(b, w) y = Tanh(c) }}"
    )
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    weight = onnx.numpy_helper.from_array(np.linspace(0, 1, 64, dtype=np.float32), "w")
    model.graph.initializer.append(weight)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=0)
    return path


def test_every_model_is_optimized_in_place_and_one_library_serves_all(folder: Path, tmp_path: Path) -> None:
    made = onnxopt.optimize_folder(folder, tmp_path / "made", archs=())
    assert made.exit_code == 0
    assert made.others == tuple(sorted(OTHERS))
    assert {model.path for model in made.models} == set(MODELS)
    assert {name for name in files(made.path) if not name.startswith("onnxopt/")} == {*MODELS, *OTHERS}
    assert all((made.path / name).read_bytes() == data for name, data in OTHERS.items())
    assert not list((made.path / "onnxopt").rglob("*.onnx"))  # optimum takes such for a model
    assert len(list(made.path.rglob("*.so"))) == 1
    options = ort.SessionOptions()
    assert made.library is not None
    options.register_custom_ops_library(str(made.library))
    for model in made.models:
        expected, _ = outputs(folder / model.path)
        with_kernels, ran = outputs(made.path / model.path, options)
        without, ran_without = outputs(made.path / model.path)
        np.testing.assert_allclose(with_kernels, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(without, expected, rtol=1e-5, atol=1e-6)
        assert model.manifest is not None and model.record is not None
        names = {kernel.name for kernel in model.manifest.kernels}
        assert len(names) == 2 and names <= ran and not names & ran_without
        kept = manifests.load(made.path / model.record)
        assert kept.kernels == model.manifest.kernels
        assert set(kept.files) == files(made.path / model.record) - {"manifest.json"}
        assert run("explain", made.path / model.record).exit_code == 0
        with pytest.raises(ArtifactError, match="is what an optimized folder keeps of one model"):
            onnxopt.load(made.path / model.record)
    for command in ("explain", "doctor", "bench"):
        assert_refused(run(command, made.path), "holds optimized models, and is no artifact; `onnxopt explain` reads")


@pytest.mark.models
def test_an_encoder_and_decoders_in_one_session_options(tmp_path: Path) -> None:
    """Real architectures: a text encoder, a speech encoder, and a decoder for prompts and one with its cache."""
    names = {"bert_tiny_dyn", "whisper_encoder_tiny_dyn", "llama_tiny_dyn", "llama_decode_tiny_dyn"}
    (tmp_path / "original").mkdir()
    for name in names:
        shutil.copy(real_models.path(name), tmp_path / "original" / f"{name}.onnx")
    made = onnxopt.optimize_folder(tmp_path / "original", tmp_path / "made", archs=())
    assert made.exit_code == 0 and made.library is not None
    for library in (made.library, None):
        options = ort.SessionOptions()
        if library is not None:
            options.register_custom_ops_library(str(library))
        for name in names:
            reference = Reference.of(name)
            session = ort.InferenceSession(made.path / f"{name}.onnx", options, providers=[sessions.CPU])
            assert reference.worst(session.run(None, dict(reference.feeds))) <= 1


def test_the_command_and_its_record(folder: Path, tmp_path: Path) -> None:
    done = run("optimize", folder, "-o", tmp_path / "made", "--arch", "none")
    assert done.exit_code == 0, done.output
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "model nodes launches verify" in rows and "onnx/decoder_model.onnx 7 -> 3 7 -> 3 passed" in rows
    assert "next: register it with your session options" in done.stdout
    assert run(*done.stdout.splitlines()[-1].partition("(")[0].split()[1:]).exit_code == 0  # the command that it names
    assert "3 of 3 models optimized, 3 other files copied" in done.stdout
    record = json.loads((tmp_path / "made" / "onnxopt" / "folder.json").read_text())
    assert record["schema_version"] == 1
    assert record["library"] == "onnxopt/lib/libonnxopt_ops.so"
    assert [model["path"] for model in record["models"]] == sorted(MODELS)
    again = run("optimize", folder, "-o", tmp_path / "again", "--arch", "none", "--json")
    document = json.loads(again.stdout)
    assert document == {
        "folder": str(tmp_path / "again"),
        **{k: v for k, v in record.items() if k not in ("onnxopt", "files", "request")},
    }


def test_equal_models_share_one_folder_of_kernels(folder: Path, tmp_path: Path) -> None:
    write(folder / "twin.onnx", CHAIN)
    made = onnxopt.optimize_folder(folder, tmp_path / "made", archs=())
    assert made.library is not None
    named = json.loads(made.library.with_name("kernels.json").read_text())["folders"]
    assert len(named) == 3 and sorted(named) == sorted(p.name for p in made.library.parent.iterdir() if p.is_dir())


def test_a_bad_model_is_kept_and_listed(folder: Path, tmp_path: Path) -> None:
    (folder / "bad.onnx").write_bytes(b"no model")
    done = run("optimize", folder, "-o", tmp_path / "made", "--arch", "none", "--json")
    assert done.exit_code == 2
    bad, *others = json.loads(done.stdout)["models"]
    assert bad["status"] == "kept" and bad["exit_code"] == 2 and "bad.onnx: not an ONNX file" in bad["reason"]
    assert [model["status"] for model in others] == ["optimized"] * 3
    assert (tmp_path / "made" / "bad.onnx").read_bytes() == b"no model"


def test_a_model_that_cannot_be_verified_is_kept_with_exit_code_3(folder: Path, tmp_path: Path) -> None:
    body = "g (float[2, 3] x) => (float[6] y) <int64[1] s = {7}> { a = Tanh(x) b = Mul(a, x) y = Reshape(b, s) }"
    write(folder / "wrong.onnx", body)
    made = onnxopt.optimize_folder(folder, tmp_path / "made", archs=())
    (kept,) = [model for model in made.models if model.error]
    assert kept.path == "wrong.onnx" and made.exit_code == kept.error.exit_code in (2, 3)
    assert (made.path / "wrong.onnx").read_bytes() == (folder / "wrong.onnx").read_bytes()


def test_weights_outside_keep_their_name_and_old_ones_go(tmp_path: Path) -> None:
    folder = tmp_path / "original"
    external(folder / "model.onnx", "Tanh", "model.onnx_data")
    external(folder / "sub" / "first.onnx", "Erf", "shared.bin")
    external(folder / "sub" / "second.onnx", "Sigmoid", "shared.bin")
    (folder / "model.safetensors").write_bytes(b"kept")
    made = onnxopt.optimize_folder(folder, tmp_path / "made", archs=())
    assert made.exit_code == 0, [model.error for model in made.models]
    data = {"model.onnx_data", "sub/shared.bin", "sub/second.onnx_data"}
    models = {"model.onnx", "sub/first.onnx", "sub/second.onnx"}
    assert {name for name in files(made.path) if not name.startswith("onnxopt/")} == {
        *models, *data, "model.safetensors",
    }  # fmt: skip
    folder.rename(tmp_path / "gone")  # nothing may refer to it
    for name in models:
        got, expected = (outputs(root / name)[0] for root in (made.path, tmp_path / "gone"))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_weights_of_a_kept_model_stay(tmp_path: Path) -> None:
    folder = tmp_path / "original"
    external(folder / "good.onnx", "Tanh", "weights.bin")
    kept = external(folder / "kept.onnx", "Erf", "weights.bin")
    model = onnx.load(kept, load_external_data=False)
    model.metadata_props.add(key="onnxopt.version", value="0")  # as if it were optimized already
    kept.write_bytes(model.SerializeToString())
    made = onnxopt.optimize_folder(folder, tmp_path / "made", archs=())
    assert [m.path for m in made.models if m.error] == ["kept.onnx"]
    for name in ("kept.onnx", "weights.bin"):
        assert (made.path / name).read_bytes() == (folder / name).read_bytes()
    assert (made.path / "good.onnx_data").is_file()


def test_links_to_files_are_followed_as_in_a_cache_of_hugging_face(folder: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (folder / "model.onnx").rename(blobs / "0123")
    (folder / "model.onnx").symlink_to("../blobs/0123")
    (folder / "config.json").rename(blobs / "4567")
    (folder / "config.json").symlink_to("../blobs/4567")
    made = onnxopt.optimize_folder(folder, tmp_path / "made", archs=())
    assert made.exit_code == 0
    assert not [path for path in made.path.rglob("*") if path.is_symlink()]
    assert (made.path / "config.json").read_bytes() == OTHERS["config.json"]


def test_shapes_go_to_the_models_that_have_them(folder: Path, tmp_path: Path) -> None:
    write(folder / "other.onnx", "g (float[n, 4] z) => (float[n, 4] y) { a = Tanh(z) y = Mul(a, z) }")
    made = onnxopt.optimize_folder(folder, tmp_path / "made", archs=(), shapes={"batch": (3,), "z": (6, 4)})
    cases = {m.path: {check.case for check in m.manifest.verify.checks} for m in made.models if m.manifest}
    assert all("batch=3" in case for case in cases["model.onnx"])
    assert all("n=6" in case for case in cases["other.onnx"])
    with pytest.raises(UsageError, match=r"shape of batsch: no model of .* has an input or a dim of this name"):
        onnxopt.optimize_folder(folder, tmp_path / "more", archs=(), shapes={"batsch": (3,)})


def test_nothing_to_fuse_makes_no_library(tmp_path: Path) -> None:
    (tmp_path / "original").mkdir()
    write(tmp_path / "original" / "model.onnx", NOTHING_TO_FUSE)
    made = onnxopt.optimize_folder(tmp_path / "original", tmp_path / "made", archs=())
    assert made.library is None and not (made.path / "onnxopt" / "lib").exists()


def test_where_no_model_can_be_optimized_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "original"
    folder.mkdir()
    (folder / "one.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"one\.onnx: not an ONNX file"):
        onnxopt.optimize_folder(folder, tmp_path / "made", archs=())
    (folder / "two.onnx").write_bytes(b"")
    with pytest.raises(ModelError, match=r"none of its 2 models could be optimized; .*one\.onnx"):
        onnxopt.optimize_folder(folder, tmp_path / "made", archs=())
    assert sorted(os.listdir(tmp_path)) == ["original"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "{made}", "--portable"], "portable is for one model"),
        (["-o", "{made}", "--data", "x.npz"], "data is for one model"),
        (["-o", "{original}"], "exists already"),
        (["-o", "{original}/made"], "made: is in "),
        (["-o", "{made}", "--out-dir", "{made}"], "give either --output"),
        (["{original}", "-o", "{made}"], "-o is for one model, 2 were given"),
    ],
)
def test_what_a_folder_cannot_be_optimized_with(folder: Path, tmp_path: Path, options: list[str], words: str) -> None:
    named = [text.format(made=tmp_path / "made", original=folder) for text in options]
    assert_refused(run("optimize", folder, *named), words)
    assert sorted(os.listdir(tmp_path)) == ["original"]


def test_folders_that_are_no_folder_of_models(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_refused(run("optimize", tmp_path / "empty", "-o", tmp_path / "made"), "is a folder without any .onnx file")
    (tmp_path / "empty" / "model.safetensors").write_bytes(b"")
    words = "is a folder without any .onnx file; export its weights first: optimum-cli export onnx --model "
    assert_refused(run("optimize", tmp_path / "empty", "-o", tmp_path / "made"), words)
    (folder / "pipe").symlink_to(tmp_path, target_is_directory=True)
    assert_refused(run("optimize", folder, "-o", tmp_path / "made"), "pipe: is a link to a folder")
    (folder / "pipe").unlink()
    os.mkfifo(folder / "pipe")
    assert_refused(run("optimize", folder, "-o", tmp_path / "made"), "pipe: cannot be read: it is a FIFO")
    (folder / "pipe").unlink()
    (folder / "onnxopt").mkdir()
    assert_refused(run("optimize", folder, "-o", tmp_path / "made"), "has an entry `onnxopt`")


# many models


def test_many_models_by_paths_and_patterns(folder: Path, tmp_path: Path) -> None:
    (folder / "broken.onnx").write_bytes(b"no model")
    pattern = str(folder / "**" / "*.onnx")
    done = run("optimize", pattern, folder / "model.onnx", "--out-dir", tmp_path / "made", "--arch", "none")
    assert done.exit_code == 2
    made = {path.name for path in (tmp_path / "made").iterdir()}
    assert made == {"model", "decoder_model", "encoder_model"}
    assert all(manifests.load(tmp_path / "made" / name).kernels for name in made)
    assert "broken: " in done.stdout and done.stdout.splitlines()[-1] == "3 of 4 done"
    again = run("optimize", pattern, "--out-dir", tmp_path / "made", "--arch", "none", "--json")
    assert again.exit_code == 2
    rows: list[dict[str, Any]] = json.loads(again.stdout)["models"]
    assert [(row["status"], row["resumed"]) for row in rows].count(("done", True)) == 3
    other = run("optimize", pattern, "--out-dir", tmp_path / "made", "--arch", "none", "--portable", "--json")
    rows = json.loads(other.stdout)["models"]
    assert sum("exists already" in row["error"] for row in rows) == 3


def test_names_of_many_models(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "model.onnx", CHAIN)
    both = [tmp_path / name / "model.onnx" for name in ("a", "b")]
    done = run("optimize", *both, folder, "--out-dir", tmp_path / "made", "--arch", "none")
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"a-model", "b-model", "original"}
    assert (tmp_path / "made" / "original" / "onnxopt" / "folder.json").is_file()
    assert_refused(run("optimize", tmp_path / "*.none", "--out-dir", tmp_path / "more"), "*.none: matches no file")
    assert_refused(run("optimize", tmp_path / "none", "--out-dir", tmp_path / "more"), "none: no such file or folder")


def test_a_pattern_that_ends_with_a_slash_takes_folders(folder: Path, tmp_path: Path) -> None:
    pattern, made = f"{folder.parent}/orig*/", tmp_path / "made"
    done = run("optimize", pattern, "--out-dir", made, "--arch", "none", "--no-verify")
    assert done.exit_code == 0, done.output
    assert (made / "original" / "onnxopt" / "folder.json").is_file()
    assert_refused(run("optimize", f"{folder.parent}/none*/", "--out-dir", made), "none*: matches no folder")
