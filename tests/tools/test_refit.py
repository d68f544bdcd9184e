"""Other weights in the kernels of an artifact: the same as optimizing again, without compiling, or a named tensor."""

from __future__ import annotations

import json
import shutil
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import hash_files
from onnxopt.codegen.compiler_report import Usage
from onnxopt.pipeline import fused
from onnxopt.tools.refitting import weights
from tests.support.artifacts import edit_manifest
from tests.support.command import assert_refused, run
from tests.support.fusing import compile_nothing
from tests.support.graphs import graph, hold

# Two products that become one, a norm after a convolution that is folded into it, and a scalar that becomes a part of a
# kernel's code.
BODY = """
q0 = MatMul (x, wq) q = Add (q0, bq) k0 = MatMul (x, wk) k = Add (k0, bk)
s0 = Mul (q, k) s = Mul (s0, alpha) t = Tanh (s) y = LayerNormalization <axis = -1> (t, g, b)
c = Conv <pads = [1, 1, 1, 1]> (image, wc) n = BatchNormalization (c, s1, b1, m1, v1) z = Relu (n)
"""
SHAPES: dict[str, tuple[int, ...]] = {
    "wq": (16, 8), "bq": (8,), "wk": (16, 8), "bk": (8,), "alpha": (), "g": (8,), "b": (8,), "wc": (4, 3, 3, 3),
    "s1": (4,), "b1": (4,), "m1": (4,), "v1": (4,),
}  # fmt: skip
ARCHS = ("sm_80", "sm_90")

torch = pytest.importorskip("torch", reason="torch is missing: pip install -e '.[models]'")
safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is missing: pip install -e '.[refit]'")
pytestmark = pytest.mark.usefixtures("library")


def drawn(seed: int, **changes: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {name: rng.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in SHAPES.items()}
    return {**arrays, "alpha": np.array(0.25, np.float32), **changes}


def saved(path: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    held = ", ".join(f"float{list(a.shape) if a.ndim else ''} {name}" for name, a in arrays.items())
    model = graph(
        f"float[batch, 16] x, float[batch, 3, h, w] image, {held}", "float[batch, 8] y, float[batch, 4, h, w] z", BODY
    )
    for place, node in enumerate(model.graph):
        node.name = f"{node.op_type}_{place}"
    hold(model, arrays, np.float32)
    ir.save(model, path)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    """A folder with a model of weights 0 and its artifact `old`."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        compile_nothing(patch)
        onnxopt.optimize(saved(folder / "0.onnx", drawn(0)), folder / "old", archs=ARCHS)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, where the command runs; nothing is compiled from then on."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "folder"))
    monkeypatch.setattr(fused, "compiled", None)
    return tmp_path / "folder"


def files(artifact: str) -> dict[str, str]:
    """Hashes of the files that a run reads."""
    found = manifests.load(Path(artifact)).files
    return {name: file.sha256 for name, file in found.items() if name.startswith(("model", "lib/kernels", "providers"))}


def expected(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Hashes of the files of an artifact that is optimized with the weights."""
    with pytest.MonkeyPatch.context() as patch:
        compile_nothing(patch)
        onnxopt.optimize(saved(Path("expected.onnx"), arrays), "expected", archs=ARCHS)
    return files("expected")


def save_tensors(name: str, arrays: Mapping[str, np.ndarray]) -> None:
    if name.endswith(".safetensors"):
        safetensors.save_file(dict(arrays), name)
    else:
        state = {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}
        torch.save({"state_dict": state} if name.endswith(".pth") else state, name)


@pytest.mark.parametrize("name", ["1.onnx", "1.safetensors", "1.pt", "1.pth"])
def test_it_is_the_artifact_of_the_new_weights(folder: Path, name: str) -> None:
    arrays = drawn(1)
    if name.endswith(".onnx"):
        saved(Path(name), arrays)
    else:
        save_tensors(name, {**arrays, "n.num_batches_tracked": np.array(3)})
    result = run("refit", "old", name, "-o", "new")
    assert result.exit_code == 0, result.output
    assert files("new") == expected(arrays) != files("old")
    manifest = manifests.load(Path("new"))
    assert manifest.verify.status == "passed" and not manifest.left_out
    assert manifest.source.name == (name if name.endswith(".onnx") else f"0.onnx with {name}")
    assert onnxopt.load("new", providers=["CPUExecutionProvider"]) is not None


def test_the_model_is_saved_and_refitted_again(folder: Path) -> None:
    save_tensors("1.safetensors", drawn(1))
    save_tensors("2.safetensors", drawn(2))
    assert run("refit", "old", "1.safetensors", "-o", "new", "--save-model", "1.onnx").exit_code == 0
    assert onnxopt.verify("new").status == "passed"
    result = run("refit", "new", "2.safetensors", "-o", "new", "--force")
    assert result.exit_code == 0, result.output
    assert files("new") == expected(drawn(2))


def test_renamed_and_transposed_weights_are_found_by_their_values(folder: Path) -> None:
    """As an exporter of PyTorch folds the Transpose of a Linear; tied weights have two names."""
    for seed in (0, 1):
        arrays = drawn(seed)
        arrays["query.weight"] = np.ascontiguousarray(arrays.pop("wq").T)
        save_tensors(f"{seed}.safetensors", {**arrays, "tied.weight": arrays["query.weight"]})
    assert_refused(run("refit", "old", "1.safetensors", "-o", "new"), "no initializer query.weight", "--old-weights")
    result = run("refit", "old", "1.safetensors", "-o", "new", "--old-weights", "0.safetensors")
    assert result.exit_code == 0, result.output
    assert files("new") == expected(drawn(1))
    arrays = drawn(0)
    arrays["query.weight"] = np.ascontiguousarray(arrays.pop("wq").T)
    save_tensors("0.safetensors", {**arrays, "tied.weight": arrays["query.weight"] + 1})  # which were not tied
    result = run("refit", "old", "1.safetensors", "-o", "other", "--old-weights", "0.safetensors")
    assert_refused(result, "no initializer tied.weight")


def test_what_was_measured_is_kept(folder: Path) -> None:
    """It depends on kernels and sizes, not on weights; the options of a GPU, too."""
    options = Path("old/providers/cpu.json").read_text().replace("{", '{"tuned": {"device": "NVIDIA H200"},', 1)
    measured = {"lib/launches.json": "measured launches", "providers/h200.json": options}
    for name, text in measured.items():
        Path("old", name).write_text(text)
    edit_manifest(folder / "old", files={name: vars(file) for name, file in hash_files(Path("old")).items()})
    save_tensors("1.safetensors", drawn(1))
    result = run("refit", "old", "1.safetensors", "-o", "new")
    assert result.exit_code == 0, result.output
    assert {name: Path("new", name).read_text() for name in measured} == measured
    assert files("new")["lib/kernels.json"] == files("old")["lib/kernels.json"]


def test_some_weights(folder: Path) -> None:
    save_tensors("1.safetensors", {"wk": drawn(1)["wk"]})
    assert_refused(run("refit", "old", "1.safetensors", "-o", "new"), "1.safetensors: lacks wq, bq, bk and 7 more")
    assert run("refit", "old", "1.safetensors", "-o", "new", "--partial").exit_code == 0
    assert files("new") == expected(drawn(0, wk=drawn(1)["wk"]))


@pytest.mark.parametrize(("config", "scale"), [({}, 2.0), ({"use_rslora": True}, 8 / 4**0.5)])
def test_an_adapter_is_merged(folder: Path, config: dict[str, Any], scale: float) -> None:
    rng = np.random.default_rng(3)
    base = drawn(0)
    base["query.weight"] = np.ascontiguousarray(base.pop("wq").T)
    save_tensors("base.safetensors", base)
    down, up = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 16), (8, 4)))
    whole = "base_model.model.query.lora_{}.weight"
    Path("adapter").mkdir()
    save_tensors("adapter/adapter_model.safetensors", {whole.format("A"): down, whole.format("B"): up})
    assert_refused(run("refit", "old", "adapter", "-o", "new"), "adapter_config.json", "has the scale")
    Path("adapter/adapter_config.json").write_text(json.dumps({"lora_alpha": 8, "r": 4, **config}))
    assert_refused(run("refit", "old", "adapter", "-o", "new"), "no initializer query.weight")
    result = run("refit", "old", "adapter", "-o", "new", "--old-weights", "base.safetensors")
    assert result.exit_code == 0, result.output
    weight = base["query.weight"] + np.float32(scale) * (up @ down)
    assert files("new") == expected(drawn(0, wq=weight.T))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wq": None}, ["lacks wq of the model"]),
        ({"other": np.ones(3, np.float32)}, ["the model has no initializer other"]),
        ({"other": drawn(1)["bq"]}, ["the model has no initializer other"]),
        ({"bq": np.ones(9, np.float32)}, ["bq has the shape [9], the model's [8]"]),
        ({"bq": np.ones(8, np.float16)}, ["bq is float16, the model's float32"]),
        (
            {"alpha": np.array(0.5, np.float32)},
            ["the value of alpha is a part of them (the first that differs: Add_", "optimize the model"],
        ),
    ],
)
def test_a_mismatch_names_the_tensor(folder: Path, changes: Mapping[str, Any], words: list[str]) -> None:
    arrays = {name: array for name, array in {**drawn(1), **changes}.items() if array is not None}
    save_tensors("1.safetensors", arrays)
    before = sorted(Path().iterdir())
    assert_refused(run("refit", "old", "1.safetensors", "-o", "new", "--save-model", "new.onnx"), *words)
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alpha": np.array(0.5, np.float32)}, ["the value of alpha is a part of them"]),
        ({"wc": np.ones((4, 3, 1, 1), np.float32)}, ["1.onnx: wc is FLOAT [4,3,1,1]", "before FLOAT [4,3,3,3]"]),
    ],
)
@pytest.mark.parametrize("original", [(), ("--original", "0.onnx")])
def test_an_export_of_another_network_is_refused(
    folder: Path, changes: Mapping[str, np.ndarray], words: list[str], original: tuple[str, ...]
) -> None:
    saved(Path("1.onnx"), drawn(1, **changes))
    assert_refused(run("refit", "old", "1.onnx", "-o", "new", *original), *words)
    assert not Path("new").exists()


def test_an_export_with_fewer_weights_is_refused(folder: Path) -> None:
    """Other names are not."""
    arrays = drawn(1)
    renamed = onnx.load(saved(Path("1.onnx"), arrays))
    for node in renamed.graph.node:
        node.input[:] = ["val_3" if name == "wq" else name for name in node.input]
    for tensor in renamed.graph.initializer:
        tensor.name = "val_3" if tensor.name == "wq" else tensor.name
    onnx.save(renamed, "renamed.onnx")
    result = run("refit", "old", "renamed.onnx", "-o", "new")
    assert result.exit_code == 0, result.output
    for tensor in renamed.graph.initializer:
        if tensor.name == "bk":
            renamed.graph.initializer.remove(tensor)
    for node in renamed.graph.node:
        node.input[:] = ["bq" if name == "bk" else name for name in node.input]
    onnx.save(renamed, "fewer.onnx")
    assert_refused(run("refit", "old", "fewer.onnx", "-o", "other"), "fewer.onnx: lacks bk, FLOAT [8]")
    with pytest.raises(onnxopt.UsageError, match="has, as the model before has not, bk, FLOAT"):
        weights.compare(Path("0.onnx"), ir.load("0.onnx"), ir.load("fewer.onnx"))


def test_machine_code_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnxopt.optimize(saved(Path("0.onnx"), drawn(0)), "old", archs=("sm_80",))
    monkeypatch.setattr(fused, "compiled", None)
    save_tensors("1.safetensors", drawn(1))
    result = run("refit", "old", "1.safetensors", "-o", "new")
    assert result.exit_code == 0, result.output
    images = [Path(name, "lib", "kernels.fatbin").read_bytes() for name in ("old", "new")]
    assert images[0] == images[1] and b"sm_80" in images[0]
    assert manifests.load(Path("new")).verify.status == "passed"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["old", "none.pt"], ["none.pt: no such file"]),
        (["old", "text.txt"], ["text.txt: expected .safetensors"]),
        (["old", "broken.safetensors"], ["broken.safetensors: cannot be read as weights"]),
        (["old", "evil.pt"], ["evil.pt: cannot be read as weights"]),
        (["old", "list.pt"], ["list.pt: is no state dict"]),
        (["old", "other.safetensors", "--partial"], ["no initializer other"]),
        (["old", "unused.safetensors", "--partial"], ["no tensor is an initializer of the model"]),
        (["old", "empty"], ["empty: has no .safetensors file"]),
        (["none", "1.safetensors"], ["none: no such artifact"]),
        (["old", "1.safetensors", "--original", "1.onnx"], ["1.onnx: is not the model that old was made of"]),
        (["old", "1.safetensors", "--original", "gone.onnx"], ["its original, gone.onnx, is not there"]),
        (["old", "1.safetensors", "--old-weights", "1.safetensors"], ["has another value in the model"]),
        (["old", "1.safetensors", "--save-model", "0.onnx"], ["0.onnx: exists already"]),
        (["old", "1.onnx", "--save-model", "2.onnx"], ["is a model already"]),
        (["made_by_another", "1.safetensors"], ["was made by another onnxopt"]),
        (["of_data", "1.safetensors"], ["was made with --data; give --data here, too"]),
        (["of_reference", "1.safetensors"], ["was made with --reference, which belongs to the old weights"]),
        (["of_memory", "1.safetensors"], ["does not say what it was made of"]),
    ],
)
def test_what_is_refused(folder: Path, arguments: list[str], words: list[str]) -> None:
    saved(Path("1.onnx"), drawn(1))
    save_tensors("1.safetensors", drawn(1))
    save_tensors("other.safetensors", {"other": np.ones(2)})
    save_tensors("unused.safetensors", {"n.num_batches_tracked": np.array(3)})
    Path("text.txt").write_text("weights")
    Path("broken.safetensors").write_bytes(b"\xff" * 64)
    torch.save({"a": types.SimpleNamespace()}, "evil.pt")  # what would run code when it is unpickled
    torch.save([1, 2], "list.pt")
    Path("empty").mkdir()
    changes = {"made_by_another": {"code": "0" * 64}}
    changes |= {f"of_{name}": {"files": {part: "0" * 64}} for name, part in (("data", "data 1"), ("reference",) * 2)}
    if change := changes.get(arguments[0]):
        request = json.loads(Path("old/manifest.json").read_bytes())["request"]
        edit_manifest(folder / "old", request={**request, **change})
        Path("old").rename(arguments[0])
    elif arguments[0] == "of_memory":
        onnxopt.optimize(onnx.load("0.onnx"), "of_memory", archs=())
    assert_refused(run("refit", *arguments, "-o", "new"), *words)
    assert not Path("new").exists()


def test_regions_that_were_split_are_split_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which kernels spill is known to the compiler alone; the manifest says which did."""
    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        compile_nothing(patch)
        image, spilled = fused.compiled, []

        def compiled(text: str, *arguments: Any) -> types.SimpleNamespace:
            made = image(text, *arguments)
            spilled.append(len(spilled) == 0)
            return types.SimpleNamespace(fatbin=made.fatbin, usage={"sm_90": {"first": spilled[-1]}})

        patch.setattr(fused, "compiled", compiled)
        patch.setattr(fused.compiler_report, "spilling", _spilling)
        onnxopt.optimize(saved(Path("0.onnx"), drawn(0)), "old", archs=ARCHS)
    assert len(spilled) == 2
    manifest = manifests.load(Path("old"))
    assert manifest.split
    monkeypatch.setattr(fused, "compiled", None)
    save_tensors("1.safetensors", drawn(1))
    result = run("refit", "old", "1.safetensors", "-o", "new")
    assert result.exit_code == 0, result.output
    new = manifests.load(Path("new"))
    assert new.split == manifest.split
    assert [kernel.name for kernel in new.kernels] == [kernel.name for kernel in manifest.kernels]


def _spilling(kernels: Any, usage: Mapping[str, Mapping[str, Usage]]) -> set[frozenset[str]]:
    """The regions of the first compilation that can be split."""
    if not usage["sm_90"]["first"]:
        return set()
    return {frozenset(site.replaced) for kernel in kernels if kernel.kind.splits for site in kernel.sites}
