"""manifest.json: its JSON Schema, the versions it asks for, and that it notices its own damage."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import onnx
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt import versions
from onnxopt.artifact import manifest as manifests
from onnxopt.codegen.architectures import ARCHITECTURES, DRIVERS
from onnxopt.errors import ArtifactError
from onnxopt.runtime import releases
from tests.support.artifacts import edit_manifest, make

SCHEMA = Path(manifests.__file__).with_name(manifests.SCHEMA_FILE)


@pytest.fixture
def made(artifact: Path, library: Path) -> Path:
    return make(artifact, archs=("sm_90", "sm_120"))


# --- schema ----------------------------------------------------------------------------------------------------------


def test_the_schema_file_is_what_the_model_says() -> None:
    assert SCHEMA.read_text("utf-8") == manifests.schema(), (
        "run: python -m onnxopt.artifact.manifest > onnxopt/artifact/manifest.schema.json"
    )


def test_an_artifacts_manifest_is_valid(made: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    document = json.loads((made / "manifest.json").read_text())
    validator.validate(document)
    for broken in ({"surprise": 1}, {"files": {"x": {"bytes": 1}}}, {"schema_version": 1}, {"archs": "sm_90"}):
        assert not validator.is_valid(document | broken)


def test_the_docs_name_every_field() -> None:
    text = (Path(__file__).parents[2] / "docs" / "artifact.md").read_text()
    section = text[text.index("## manifest.json") : text.index("## providers/")]
    for field in manifests.Manifest.model_fields:
        assert field in section, field


def test_a_manifest_must_end_with_its_digest(made: Path) -> None:
    path = made / "manifest.json"
    text = path.read_text()
    for damaged in (text.replace("chain.onnx", "chaim.onnx"), text + " ", text.replace("\n", "\r\n"), text[:-2] + "}"):
        assert damaged != text
        path.write_bytes(damaged.encode())
        with pytest.raises(ArtifactError, match=r"manifest\.json: damaged or edited"):
            onnxopt.load(made)


# --- minimum versions ------------------------------------------------------------------------------------------------


def _model(opset: int, ir_version: int = 8, op: str = "Identity", dtype: int = onnx.TensorProto.FLOAT) -> ir.Model:
    x, y = (onnx.helper.make_tensor_value_info(n, dtype, [2, 2]) for n in "xy")
    domain = "com.microsoft" if op == "MultiHeadAttention" else ""
    graph = onnx.helper.make_graph([onnx.helper.make_node(op, ["x"], ["y"], domain=domain)], "g", [x], [y])
    return ir.from_proto(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version)
    )


@pytest.mark.parametrize(
    ("model", "opens", "runs"),
    [
        (_model(17), "1.21", "1.21"),
        (_model(22, 10), "1.21", "1.21"),
        (_model(23, 10), "1.23", "1.23"),
        (_model(22, 11), "1.23", "1.23"),
        (_model(24, 10), "1.24", "1.24"),
        (_model(26, 13), "1.25", "1.25"),
        (_model(23, 11, "Attention"), "1.23", "1.25"),
        (_model(20, 9, "MultiHeadAttention"), "1.21", "1.21"),
        (_model(20, 9, "MultiHeadAttention", onnx.TensorProto.BFLOAT16), "1.21", "1.24"),
        (_model(20, 9, "ReduceMean", onnx.TensorProto.BFLOAT16), "1.21", "1.31"),
    ],
)
def test_the_oldest_onnxruntime(model: ir.Model, opens: str, runs: str) -> None:
    needed = releases.of(model, library=True, archs=())
    assert (needed.onnxruntime, needed.onnxruntime_cuda) == (opens, runs)
    assert any(reason.startswith(f"{runs}: ") for reason in needed.because)


def test_drivers_follow_from_the_architectures() -> None:
    needed = releases.of(_model(17), library=True, archs=("sm_75", "sm_90", "sm_100", "sm_120"))
    assert needed.cuda_driver == {"sm_75": "12.0", "sm_90": "12.0", "sm_100": "12.8", "sm_120": "12.8"}
    assert {a.cuda for a in ARCHITECTURES} == set(DRIVERS)


def test_versions_compare_as_numbers() -> None:
    assert releases.parts("1.31.1") > releases.parts("1.9")
    assert releases.parts("1.25.0rc1") == (1, 25, 0)
    assert releases.parts("unknown") == ()


def test_what_an_artifact_says_it_needs(made: Path) -> None:
    manifest = manifests.load(made)
    assert manifest.requires.onnxruntime == "1.21"
    assert manifest.requires.cuda_driver == {"sm_90": "12.0", "sm_120": "12.8"}
    assert manifest.versions["nvidia-cuda-nvrtc-cu12"] == versions.dependencies()["nvidia-cuda-nvrtc-cu12"]


def test_an_onnxruntime_that_is_too_old(made: Path) -> None:
    needs = {"onnxruntime": "9.5", "onnxruntime_cuda": "9.5", "because": ["9.5: opset 99"], "cuda_driver": {}}
    edit_manifest(made, requires=needs)
    with pytest.raises(ArtifactError, match=r"needs ONNX Runtime 9\.5 to open it, this is .*opset 99"):
        onnxopt.load(made)
