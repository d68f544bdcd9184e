"""`onnxopt.optimize` of models that are no files: bytes, messages, graphs, exported programs, modules of PyTorch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.graph import write
from tests.support import small_models
from tests.support.small_models import CHAIN, HEADER

X = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
FEEDS = {"x": X, "bias": np.ones(8, np.float32), "weight": np.eye(8, dtype=np.float32)}


def _optimized(model: Any, tmp_path: Path, **options: Any) -> onnxopt.Artifact:
    return onnxopt.optimize(model, tmp_path / "artifact", archs=(), **options)


@pytest.mark.usefixtures("library", "without_footprints")
@pytest.mark.parametrize("form", ["bytes", "proto", "ir"])
def test_a_model_in_memory(form: str, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(HEADER + CHAIN)
    before = proto.SerializeToString()
    given = {"bytes": before, "proto": proto, "ir": ir.from_proto(proto)}[form]
    artifact = _optimized(given, tmp_path)
    assert artifact.manifest.verify.status == "passed" and artifact.manifest.kernels
    onnx.save(proto, tmp_path / "chain.onnx")
    of_file = onnxopt.optimize(tmp_path / "chain.onnx", tmp_path / "of_file", archs=())
    assert (artifact.path / "model.onnx").read_bytes() == (of_file.path / "model.onnx").read_bytes()
    session = artifact.session(providers=["CPUExecutionProvider"])
    (y,) = session.run(None, FEEDS)
    (expected,) = of_file.session(library=False).run(None, FEEDS)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    assert proto.SerializeToString() == before  # the caller's message stays as it is
    source = artifact.manifest.source
    assert (source.name, source.path) == (type(given).__name__, None)
    with pytest.raises(onnxopt.UsageError, match=f"was made of a {source.name} in memory, so there is no file"):
        onnxopt.verify(artifact)
    measured = onnxopt.bench(artifact, iterations=1)
    assert measured.against == f"the artifact's own model without the library (made of a {source.name} in memory)"


def test_weights_beyond_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit one file is written beside it, and the caller keeps the weights."""
    monkeypatch.setattr("onnxopt.graph.model_source.EMBED_LIMIT", 1000)
    weight = np.arange(4096, dtype=np.float32).reshape(64, 64)
    graph = onnx.parser.parse_graph("g (float[n, 64] x) => (float[n, 64] y) { m = MatMul(x, w)  y = Relu(m) }")
    graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    before = proto.SerializeToString()
    for k, given in enumerate((proto, ir.from_proto(proto))):
        artifact = onnxopt.optimize(given, tmp_path / f"a{k}", archs=())
        assert artifact.manifest.verify.status == "passed"
    assert proto.SerializeToString() == before
    assert list(tmp_path.glob("*weights*")) == []


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (3, {}, "a model is given as a path, bytes, onnx.ModelProto, onnx_ir.Model, torch.onnx.ONNXProgram or torch"),
        (None, {}, "not as NoneType"),
        (onnx.ModelProto, {"example_inputs": (X,)}, "not as the class ModelProto: give an object of it"),
        (b"no model", {}, "^the given bytes: not an ONNX file"),
        ("", {}, "the path of the model is empty"),
        ("somewhere.onnx", {"example_inputs": (X,)}, "are for a torch.nn.Module"),
        (Path(__file__).parent, {}, "is a folder, not an ONNX file; optimize_folder takes folders"),
    ],
)
def test_what_is_no_model(given: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(onnxopt.OnnxoptError, match=message):
        _optimized(given, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": None}, "the output is the path of a new folder, not NoneType"),
        ({"output": 5}, "the output is the path of a new folder, not int"),
        ({"shapes": {"batch": 8}}, r"shape of batch: 8 is no tuple of sizes, as \(8, 128\) is, or \(8,\) for one dim"),
        ({"shapes": {"x": "1x8"}}, "shape of x: '1x8' is no tuple of sizes"),
        ({"shapes": {"x": (1.5, 8)}}, r"shape of x: \(1.5, 8\) is no tuple of sizes"),
        ({"shapes": {"x": (np.int64(1), 8)}}, "is no tuple of sizes"),
        ({"shapes": "batch=8"}, r"shapes are sizes by name, as .*, not 'batch=8'"),
        ({"archs": 90}, r"archs is a sequence of names, as \('sm_90', 'h200'\), not 90"),
        ({"archs": [90]}, r"not \[90\]"),
        ({"archs": "sm_90"}, r"archs is a sequence of architectures: give \('sm_90',\)"),
    ],
)
def test_wrong_types_are_one_line(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = small_models.write(tmp_path / "m.onnx", CHAIN)
    given = {"output": tmp_path / "artifact", "archs": (), **options}
    with pytest.raises(onnxopt.UsageError, match=message):
        onnxopt.optimize(model, given.pop("output"), **given)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_the_result_is_a_table_in_a_terminal_and_a_notebook(tmp_path: Path) -> None:
    artifact = onnxopt.optimize(small_models.write(tmp_path / "m.onnx", CHAIN), tmp_path / "a", archs=())
    shown = repr(artifact).splitlines()
    assert shown[0].split() == ["m.onnx", "before", "after"]
    assert shown[-1] == f"next: {artifact.result.next}"
    page = artifact._repr_html_()
    assert page.startswith("<pre>") and "launches, predicted" in page and "\x1b" not in page


def test_the_result_is_taken_where_a_path_is(tmp_path: Path) -> None:
    artifact = onnxopt.optimize(small_models.write(tmp_path / "m.onnx", CHAIN), tmp_path / "a", archs=())
    assert onnxopt.load(artifact).get_inputs()
    assert onnxopt.explain(artifact) == onnxopt.explain(tmp_path / "a")


@pytest.mark.models
def test_a_module_of_pytorch(tmp_path: Path) -> None:
    """Exported with dynamic shapes, and served: the outputs are the module's at another batch size."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32))
    example = (torch.randn(2, 16),)
    with pytest.raises(onnxopt.UsageError, match=r"training mode: call .eval\(\) first"):
        _optimized(module, tmp_path, example_inputs=example)
    module.eval()
    with pytest.raises(onnxopt.UsageError, match="give example_inputs"):
        _optimized(module, tmp_path)
    with pytest.warns(
        UserWarning, match=r"takes input \[2, 16\] alone.*dynamic_shapes=\{'input': \{0: batch\}\}"
    ) as warned:
        onnxopt.optimize(module, tmp_path / "fixed", example_inputs=example, archs=(), verify=False)
    assert [row.filename for row in warned if row.category is UserWarning] == [__file__]
    with warnings.catch_warnings(action="error", category=UserWarning):
        onnxopt.optimize(module, tmp_path / "asked", example_inputs=example, dynamic_shapes=(), archs=(), verify=False)
        batch = torch.export.Dim("batch")
        artifact = _optimized(module, tmp_path, example_inputs=example, dynamic_shapes={"input": {0: batch}})
    assert artifact.manifest.inputs[0].dims == ("batch", 16)
    session = artifact.session(providers=["CPUExecutionProvider"])
    x = torch.randn(7, 16)
    with torch.no_grad():
        expected = module(x).numpy()
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    program = torch.onnx.export(module, example, dynamo=True, verbose=False)
    exported = onnxopt.optimize(program, tmp_path / "program", archs=())
    assert exported.manifest.verify.status == "passed"
    assert (exported.path / write.MODEL_FILE).is_file()


@pytest.mark.models
def test_a_module_of_pytorch_as_a_callable(tmp_path: Path) -> None:
    """Outputs in the module's own structure, at other sizes, with arguments in any order and of any strides."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, mask: Any = None, *, scale: Any) -> dict[str, Any]:
            y = (torch.tanh(x) * scale + x).masked_fill(mask[..., None], 0)
            return {"y": y, "large": y > 0.5, "nothing": None, "pair": (y.sum(-1), x.argmax(-1))}

    module, batch = Module().eval(), torch.export.Dim("batch")
    example = {"scale": torch.ones(32), "x": torch.randn(4, 32), "mask": torch.zeros(4, dtype=torch.bool)}
    shapes = {"x": {0: batch}, "mask": {0: batch}, "scale": None}
    fast = onnxopt.compile(module, example, dynamic_shapes=shapes)
    assert "launches, predicted" in repr(fast) and fast.artifact.manifest.kernels
    earlier = []
    for rows in (3, 7):
        x, mask, scale = torch.randn(32, rows).T, torch.rand(rows) > 0.5, torch.rand(32)
        expected = module(x, mask, scale=scale)
        earlier += [(fast(x, mask, scale=scale), expected), (fast(mask=mask, scale=scale, x=x), expected)]
    for found, expected in earlier:  # memory of an output stays its own
        torch.testing.assert_close(found, expected)
    for wrong, message in (
        ({"x": x.double(), "mask": mask}, "Unexpected input data type"),
        ({"x": x[:, :3], "mask": mask}, "Got: 3 Expected: 32"),
        ({"x": x}, r"2 tensors were given, the export takes 3: \['scale', 'x', 'mask'\]"),
    ):
        with pytest.raises(onnxopt.UsageError, match=message):
            fast(scale=scale, **wrong)
    folder = fast.artifact.path
    del fast
    assert not folder.exists()


@pytest.mark.usefixtures("library")
def test_the_cache_of_kernels_is_a_path_of_any_kind(tmp_path: Path) -> None:
    model = small_models.write(tmp_path / "m.onnx", CHAIN)
    for k, cache in enumerate((tmp_path / "first", str(tmp_path / "second"))):
        onnxopt.optimize(model, tmp_path / f"a{k}", archs=["sm_90"], verify=False, cache=cache)
        assert any(path.is_file() for path in Path(cache).rglob("*"))
