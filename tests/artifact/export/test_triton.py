"""export-triton: a backend that reads config.pbtxt as Triton does loads the model and answers as the artifact does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onnxopt
from onnxopt.artifact import layout
from onnxopt.artifact.export import triton
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.runtime import sessions
from tests.support import real_models
from tests.support.artifacts import BATCHED, edit_manifest, make, with_weights
from tests.support.command import assert_refused, run
from tests.support.fakes.triton_backend import Model, exported
from tests.support.small_models import CHAIN, NOTHING_TO_FUSE, TOKENS

pytestmark = pytest.mark.usefixtures("library")

SCALARS = """
scalars (float[batch, 4] x, float scale) => (float[batch, 4] y, float total) {
  a = Mul(x, scale)
  y = Tanh(a)
  total = ReduceSum<keepdims = 0>(y)
}
"""
LENGTHS = """
lengths (int64[batch] count, float[batch, 3] x) => (float[batch] y) {
  axis = Constant<value_ints = [1]>()
  s = ReduceSum<keepdims = 0>(x, axis)
  c = Cast<to = 1>(count)
  y = Mul(s, c)
}
"""
# A dim that the model declares dynamic, and that ORT knows better.
INFERRED = """
inferred (float[batch, 4] x) => (float[batch, rest] y) {
  a = Tanh(x)
  y = Mul(a, x)
}
"""
DTYPES = """
dtypes (bool[n, 2] b, uint8[n, 2] u, int32[n, 2] i, float16[n, 2] h, double[n, 2] d, string[n, 2] s)
    => (bool[n, 2] nb, uint8[n, 2] nu, int32[n, 2] ni, float16[n, 2] nh, double[n, 2] nd, string[n, 2] ns) {
  nb = Not(b)
  nu = Identity(u)
  ni = Neg(i)
  nh = Neg(h)
  nd = Neg(d)
  ns = Identity(s)
}
"""


# --- the backend -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [BATCHED, CHAIN, NOTHING_TO_FUSE, TOKENS, SCALARS, LENGTHS, INFERRED, DTYPES])
def test_the_backend_answers_as_the_artifact_does(tmp_path: Path, text: str) -> None:
    model = Model(exported(tmp_path, text))
    artifact = onnxopt.load(tmp_path / "artifact", providers=[sessions.CPU])
    warmed = model.warm_up()
    assert warmed
    for size, feeds, outputs in warmed:
        assert size in (1, model.config.max_batch_size)
        expected = artifact.run(list(outputs), feeds)
        for found, wanted in zip(outputs.values(), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_the_kernels_run_in_the_backend(tmp_path: Path) -> None:
    """The path in config.pbtxt is the library's: without its kernels.json there, the backend refuses."""
    folder = exported(tmp_path)
    (folder / "1" / "lib" / "kernels.json").write_text("{")
    with pytest.raises(Exception, match=r"kernels\.json"):
        Model(folder)


def test_the_files(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == [
        "1/lib/kernels.fatbin",
        "1/lib/kernels.json",
        "1/lib/libonnxopt_ops.so",
        "1/model.onnx",
        "README.md",
        "config.pbtxt",
        "warmup/0.raw",
        "warmup/1.raw",
    ]
    library = folder.absolute() / "1" / "lib" / layout.LIBRARY
    assert list(Model(folder).config.model_operations.op_library_filename) == [str(library)]
    assert str(library) in (folder / "README.md").read_text()


def test_weights_beside_the_model(tmp_path: Path, artifact: Path) -> None:
    weight = with_weights(artifact)
    for tensorrt in (False, True):
        served = Model(triton.export_triton(artifact, tmp_path / f"{tensorrt}", tensorrt=tensorrt))
        for _, feeds, outputs in served.warm_up():
            np.testing.assert_allclose(outputs["y"], feeds["x"] @ weight, rtol=1e-4, atol=1e-4)


# --- batching --------------------------------------------------------------------------------------------------------


def test_requests_are_batched_where_every_tensor_has_the_batch_first(tmp_path: Path) -> None:
    config = Model(exported(tmp_path, max_batch=32)).config
    assert config.max_batch_size == 32
    assert list(config.dynamic_batching.preferred_batch_size) == [16, 32]
    assert [list(row.dims) for row in (*config.input, *config.output)] == [[16], [16], [16]]
    assert [sample.batch_size for sample in config.model_warmup] == [1, 32]


@pytest.mark.parametrize("text", [CHAIN, SCALARS, NOTHING_TO_FUSE])
def test_and_not_where_one_has_not(tmp_path: Path, text: str) -> None:
    folder = exported(tmp_path, text)
    config = Model(folder).config
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert "Requests are not put together" in (folder / "README.md").read_text()


def test_dims_are_those_that_onnxruntime_infers(tmp_path: Path) -> None:
    """The backend refuses a config whose output dims are not exactly ORT's."""
    config = Model(exported(tmp_path, INFERRED)).config
    assert list(config.output[0].dims) == [4]


def test_one_request_at_a_time(tmp_path: Path) -> None:
    config = Model(exported(tmp_path, max_batch=1)).config
    assert config.max_batch_size == 1
    assert not config.HasField("dynamic_batching")


def test_warm_up_inputs_make_sense(tmp_path: Path) -> None:
    """Token ids stay below the table that they index, which has 3 rows; sizes are those that verification ran at."""
    model = Model(exported(tmp_path, TOKENS))
    for _, feeds, outputs in model.warm_up():
        assert 0 <= feeds["ids"].min() <= feeds["ids"].max() <= 2
        assert feeds["ids"].shape[1] > 1
        assert outputs["y"].shape == (*feeds["ids"].shape, 2)


# --- where it is served ----------------------------------------------------------------------------------------------


def test_a_mount_and_instances_and_a_name(tmp_path: Path) -> None:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    folder = exported(tmp_path, mount="/models", instances=3, device="gpu", name="ranker-7")
    assert folder == tmp_path / "repository" / "ranker-7"
    config = text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert list(config.model_operations.op_library_filename) == [f"/models/ranker-7/1/lib/{layout.LIBRARY}"]
    assert config.instance_group[0].count == 3
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_GPU


def test_a_path_relative_to_where_the_server_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = exported(tmp_path, mount="repository")
    monkeypatch.chdir(tmp_path)
    model = Model(folder)
    assert model.config.model_operations.op_library_filename[0].startswith("repository/")
    assert model.warm_up()


def test_kernels_for_the_cpu_only_are_served_on_the_cpu(tmp_path: Path) -> None:
    from tritonclient.grpc import model_config_pb2

    model = Model(exported(tmp_path, archs=()))
    assert model.config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_CPU
    assert not model.config.optimization.HasField("execution_accelerators")
    assert model.warm_up()


def test_two_models_in_one_repository(tmp_path: Path) -> None:
    first = exported(tmp_path, name="a")
    second = triton.export_triton(tmp_path / "artifact", tmp_path / "repository", name="b")
    for folder in (first, second):
        assert Model(folder).warm_up()


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--name", "a/b"], ["not a model name"]),
        (["--max-batch", "0"], ["1 or more"]),
        (["--instances", "0"], ["1 or more"]),
        (["--device", "tpu"], ["tpu", "auto, gpu, cpu"]),
        (["--tensorrt", "--device", "cpu"], ["TensorRT needs a GPU"]),
        (["--settings", "h900"], ["no settings 'h900'", "cpu", "cuda"]),
        (["--settings", "cpu"], ["CPUExecutionProvider"]),
        (["--device", "cpu", "--settings", "cuda"], ["CUDAExecutionProvider"]),
    ],
)
def test_bad_options(tmp_path: Path, options: list[str], words: list[str]) -> None:
    made = make(tmp_path / "artifact", BATCHED, ("sm_90",))
    assert_refused(run("export-triton", made, tmp_path / "repository", *options), *words)
    assert [p.name for p in tmp_path.iterdir()] == ["artifact"]


def test_a_gpu_without_kernels_for_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no kernels for GPUs"):
        exported(tmp_path, archs=(), device="gpu")


def test_a_model_that_is_there_already(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    before = sorted(folder.rglob("*"))
    with pytest.raises(UsageError, match="exists already"):
        triton.export_triton(tmp_path / "artifact", tmp_path / "repository")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"kind": "sequence"}, "is a sequence"),
        ({"dims": None}, "declares no rank"),
        ({"dtype": "float8_e4m3fn"}, "is float8_e4m3fn"),
        ({"dtype": ""}, "is of undeclared dtype"),
        ({"dtype": "bfloat16"}, "is bfloat16"),
        ({"dtype": "string", "dims": []}, "is a single string"),
    ],
)
def test_what_triton_cannot_pass(tmp_path: Path, tensor: dict[str, Any], words: str) -> None:
    made = make(tmp_path / "artifact", BATCHED)
    original = {"name": "x", "dtype": "float32", "dims": ["batch", 16], "kind": "tensor"}
    edit_manifest(made, inputs=[original | tensor])
    with pytest.raises(UsageError, match=f"x {words}"):
        triton.export_triton(made, tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_a_damaged_artifact(tmp_path: Path) -> None:
    made = make(tmp_path / "artifact", BATCHED)
    (made / "lib" / "kernels.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"kernels\.json"):
        triton.export_triton(made, tmp_path / "repository")
    assert not (tmp_path / "repository").exists()


def test_without_tritonclient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    made = make(tmp_path / "artifact", BATCHED)
    assert_refused(run("export-triton", made, tmp_path / "repository"), "onnxopt[triton]")
    assert not (tmp_path / "repository").exists()


def test_the_command(tmp_path: Path) -> None:
    made = make(tmp_path / "artifact", BATCHED, ("sm_90",))
    result = run("export-triton", made, tmp_path / "repository", "--name", "m", "--max-batch", "4", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["config"] == str(tmp_path / "repository" / "m" / "config.pbtxt")
    assert Model(tmp_path / "repository" / "m").config.max_batch_size == 4


@pytest.mark.models
@pytest.mark.parametrize("name", ["bert_tiny_dyn", "convnext_tiny_dyn", "silero_vad_16k_sequence", "ppocr_cls_v2"])
def test_real_models(tmp_path: Path, name: str) -> None:
    made = onnxopt.optimize(real_models.path(name), tmp_path / "artifact", archs=()).path
    model = Model(triton.export_triton(made, tmp_path / "repository"))
    artifact = onnxopt.load(made, providers=[sessions.CPU])
    for _, feeds, outputs in model.warm_up():
        for found, wanted in zip(outputs.values(), artifact.run(list(outputs), feeds), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-2, atol=1e-2)
