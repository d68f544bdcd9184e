"""Choices that the library measured: tune tries them, keeps them beside it for this GPU alone, or takes them away."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onnxopt
from cases.models import fuse, outline
from onnxopt.artifact import layout
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.folder import hash_file, write_manifest
from onnxopt.codegen import sealed_json
from onnxopt.errors import ArtifactError
from onnxopt.fusion import entry_points
from onnxopt.graph import normalize, read
from onnxopt.kinds.rowwise.entry_points import RowVariant
from onnxopt.runtime import providers
from onnxopt.tools.commands.tune import describe_kernel
from onnxopt.tools.tuning import first_run
from onnxopt.tools.tuning.kernels import RULES, SECTION, MeasuredKernels
from tests.support import artifacts
from tests.support.small_models import CHAIN, write
from tests.tools.tuning.test_tuning import ARENA, assert_whole, pretend_times, tune

pytestmark = pytest.mark.usefixtures("library")
GPU = "NVIDIA H200"
PRODUCT = {"gpu": GPU, "cublaslt": 130100, "product": "float16 m8 n8 k8", "algorithm": ["0" * 16] * 8}
FASTER = PRODUCT | {"microseconds": 4.0, "heuristic_microseconds": 5.0}
CONVOLUTION = {"gpu": GPU, "cudnn": 91900, "convolution": "float16 x 1x8x8x8", "engine": 4, "knobs": [[3, 1]]}
SAME = PRODUCT | {"product": "float16 m9 n9 k9", "microseconds": 5.0, "heuristic_microseconds": 5.0}
OTHERS = FASTER | {"gpu": "NVIDIA L4"}
LAUNCH = {"gpu": GPU, "kernel": "k", "size": "8", "symbol": "s", "microseconds": 1.0, "rule_microseconds": 2.0}


@pytest.fixture
def made(artifact: Path) -> Path:
    return artifacts.make(artifact)


def text(*entries: dict[str, Any]) -> str:
    return sealed_json.seal({"schema": 2, "entries": list(entries)})


def entries(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text())["entries"])


def add_file(artifact: Path, name: str, content: str) -> None:
    """Put a file into lib/, as an earlier tune has."""
    (artifact / "lib" / name).write_text(content)
    manifest = manifests.load(artifact)
    files = {**manifest.files, f"lib/{name}": hash_file(artifact / "lib" / name)}
    write_manifest(artifact, manifest.model_copy(update={"files": files}))


@pytest.fixture
def measured(made: Path, tmp_path: Path) -> MeasuredKernels:
    return MeasuredKernels(made / "lib" / layout.LIBRARY, GPU, tmp_path / "artifact.tune-h200.json", tmp_path)


def test_a_knob_for_what_was_faster_alone(measured: MeasuredKernels, tmp_path: Path) -> None:
    assert measured.knobs() == []
    (tmp_path / "artifact.tune-h200.gemm_algos.json").write_text(text(SAME, OTHERS))
    assert measured.knobs() == []
    (tmp_path / "artifact.tune-h200.gemm_algos.json").write_text(text(SAME, FASTER))
    assert [k.name for k in measured.knobs()] == ["measured_products"]
    assert measured.record()["measured_products"] == [
        {"product": "float16 m8 n8 k8", "microseconds": 4.0, "heuristic_microseconds": 5.0}
    ]


def test_a_product_that_cudnn_runs_says_so(measured: MeasuredKernels, tmp_path: Path) -> None:
    plan = {"version": 91900, "engine": 4, "knobs": [], "algorithm_microseconds": 4.5}
    (tmp_path / "artifact.tune-h200.gemm_algos.json").write_text(text(FASTER | {"cudnn": plan}))
    (shown,) = measured.record()["measured_products"]
    assert shown == {
        "product": "float16 m8 n8 k8", "microseconds": 4.0, "heuristic_microseconds": 5.0, "runs_on": "cuDNN"
    }  # fmt: skip
    beside = measured.library({SECTION: RULES | {"measured_products": "1"}}).with_name("gemm_algos.json")
    assert entries(beside)[0]["cudnn"] == plan


def test_plans_of_convolutions_are_a_knob_of_their_own(measured: MeasuredKernels, tmp_path: Path) -> None:
    faster = CONVOLUTION | {"microseconds": 4.0, "heuristic_microseconds": 5.0}
    (tmp_path / "artifact.tune-h200.conv_plans.json").write_text(text(faster))
    assert [k.name for k in measured.knobs()] == ["measured_convolutions"]
    shown = {"convolution": "float16 x 1x8x8x8", "microseconds": 4.0, "heuristic_microseconds": 5.0}
    assert measured.record()["measured_convolutions"] == [shown]
    beside = measured.library({SECTION: RULES | {"measured_convolutions": "1"}}).with_name("conv_plans.json")
    assert entries(beside) == [faster]


def test_every_kind_of_what_was_measured_is_told(measured: MeasuredKernels, tmp_path: Path) -> None:
    times = {"microseconds": 4.0, "heuristic_microseconds": 5.0}
    for file, entry in (("gemm_algos", FASTER), ("conv_plans", CONVOLUTION | times), ("launches", LAUNCH)):
        (tmp_path / f"artifact.tune-h200.{file}.json").write_text(text(entry))
    told = [describe_kernel(entry) for entries in measured.record().values() for entry in entries]
    assert told == [
        "float16 m8 n8 k8: 4.0 us instead of 5.0",
        "float16 x 1x8x8x8: 4.0 us instead of 5.0",
        "k of 8: 1.0 us instead of 2.0",
    ]


def test_choices_for_sizes_travel_with_the_artifact_in_any_case(measured: MeasuredKernels, tmp_path: Path) -> None:
    """They are cuDNN's own, so there is nothing to choose, and nothing to count as measured."""
    about = {k: v for k, v in CONVOLUTION.items() if k != "convolution"} | {"about": "float16 x 1x8x8x8"}
    slower = CONVOLUTION | {"microseconds": 5.0, "heuristic_microseconds": 5.0}
    (tmp_path / "artifact.tune-h200.conv_plans.json").write_text(text(slower, about, about | {"gpu": "NVIDIA L4"}))
    assert measured.knobs() == []
    assert entries(measured.library({SECTION: RULES}).with_name("conv_plans.json")) == [about]
    assert "1 convolutions, 0 of them faster otherwise" in measured.summary()


def test_libraries_lie_apart_with_what_each_configuration_wants(measured: MeasuredKernels, tmp_path: Path) -> None:
    (tmp_path / "artifact.tune-h200.gemm_algos.json").write_text(text(FASTER))
    (tmp_path / "artifact.tune-h200.launches.json").write_text(text(LAUNCH))
    ruled = measured.library({SECTION: RULES})
    products = measured.library({SECTION: RULES | {"measured_products": "1"}})
    both = measured.library({SECTION: dict.fromkeys(RULES, "1")})
    found = {p: sorted(f.name for f in p.parent.glob("*.json")) for p in (ruled, products, both)}
    assert found[ruled] == ["kernels.json"]
    assert found[products] == ["gemm_algos.json", "kernels.json"]
    assert found[both] == ["gemm_algos.json", "kernels.json", "launches.json"]
    assert len({p.stat().st_ino for p in found}) == 3  # one file would be one library to the loader
    assert measured.library({SECTION: RULES}) == ruled


def test_other_gpus_keep_their_entries(made: Path, measured: MeasuredKernels, tmp_path: Path) -> None:
    add_file(made, "gemm_algos.json", text(OTHERS, SAME))
    (tmp_path / "artifact.tune-h200.gemm_algos.json").write_text(text(OTHERS, FASTER))
    on, off = (measured.texts({SECTION: RULES | {"measured_products": v}}) for v in ("1", "0"))
    assert json.loads(str(on["gemm_algos.json"]))["entries"] == [OTHERS, FASTER]
    assert json.loads(str(off["gemm_algos.json"]))["entries"] == [OTHERS]
    assert entries(measured.library({SECTION: RULES}).with_name("gemm_algos.json")) == [OTHERS]
    assert on["launches.json"] is None


def test_what_is_no_file_of_the_library_is_told(measured: MeasuredKernels, tmp_path: Path) -> None:
    (tmp_path / "artifact.tune-h200.launches.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"launches\.json: is not what the library writes"):
        measured.knobs()


def test_measuring_runs_the_model_in_a_process_of_its_own(
    made: Path, measured: MeasuredKernels, tmp_path: Path
) -> None:
    """On the CPU the library measures nothing; that the run itself works, and what is said where it does not."""
    import numpy as np

    feeds = {name: np.zeros(shape, np.float32) for name, shape in {"x": (5, 8), "bias": (8,), "weight": (8, 8)}.items()}
    data = providers.read(made, "cpu")
    given = {"model": made / "model.onnx", "data": data, "folder": made}
    assert measured.measure(given, feeds, 60.0) is None
    problem = measured.measure(given | {"model": made / "missing.onnx"}, feeds, 60.0)
    assert problem is not None and problem.startswith("kernels could not be measured: ") and "missing.onnx" in problem
    assert "larger --budget" in str(measured.measure(given, feeds, 0.0))


def test_sizes_are_asked_for_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a session of their own, so that they are there when the time for measuring ends."""
    asked: list[str | None] = []
    given = pickle.dumps({"run": {"data": {"provider": "cpu"}}, "feeds": {}})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    monkeypatch.setattr(first_run, "BoundRun", lambda *_: asked.append(os.environ.get("ONNXOPT_TUNE_SIZES")))
    monkeypatch.setattr("onnxopt.runtime.configuration.open_session", lambda **_: None)
    assert first_run.main() == 0
    assert asked == ["1", None]


class Pretended(MeasuredKernels):
    """The library has measured a product to be faster: what happens on a GPU."""

    def measure(self, *_: Any) -> str | None:
        self._measured["measured_products"].write_text(text(FASTER))
        return None


@pytest.fixture
def on_a_gpu(made: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """tune on the CPU, as if the library had measured kernels of a GPU."""

    def pretend(opened: Any, _chosen: Any, state: Any, scratch: Path) -> MeasuredKernels:
        return Pretended(opened.library, GPU, state.path, scratch)

    def use(faster: Callable[[int], bool]) -> None:
        monkeypatch.setattr("onnxopt.tools.tuning.flow._kernels", pretend)
        monkeypatch.setattr("onnxopt.tools.tuning.flow.knobs", lambda *_, **__: [ARENA])
        pretend_times(monkeypatch, faster)

    return use


def test_what_was_measured_lies_beside_the_library_then(made: Path, on_a_gpu: Callable[..., None]) -> None:
    add_file(made, "gemm_algos.json", text(OTHERS))
    on_a_gpu(lambda k: k in (1, 3))  # 0: the noise, 1: measured products, 2: the arena, 3: against the rule-made file
    result = tune(made)
    assert [(c.option, c.before, c.after) for c in result.changes] == [("measured_products", "0", "1")]
    assert result.kernels["measured_products"][0]["microseconds"] == 4.0
    counts = ("1 products, 1 of them", "0 convolutions, 0 of them", "0 launches of kernels, 0 of them")
    assert f"measured: {'; '.join(f'{c} faster otherwise' for c in counts)}" in result.notes[0]
    assert entries(made / "lib" / "gemm_algos.json") == [OTHERS, FASTER]
    assert "lib/gemm_algos.json" in manifests.load(made).files
    written = providers.read(made, "cpu")
    assert written[SECTION]["measured_products"] == "1"
    assert written["why"]["measured_products"].startswith("measured: 1.250 times as fast as 0")
    assert not list(made.parent.glob("*.tune-*"))
    assert_whole(made)


def test_what_is_not_faster_as_a_whole_is_taken_away(made: Path, on_a_gpu: Callable[..., None]) -> None:
    on_a_gpu(lambda k: k in (1, 3))
    tune(made)
    on_a_gpu(lambda _: False)
    assert tune(made).status == "unchanged"
    assert not (made / "lib" / "gemm_algos.json").exists()
    assert "lib/gemm_algos.json" not in manifests.load(made).files
    assert SECTION not in providers.read(made, "cpu")
    assert_whole(made)


def test_a_stopped_run_goes_on_with_what_was_measured(made: Path, on_a_gpu: Callable[..., None]) -> None:
    on_a_gpu(lambda _: False)

    def interrupt(_done: int, _total: int, text: str) -> None:
        if "measured_products=1" in text:
            raise KeyboardInterrupt

    assert tune(made, progress=interrupt).status == "interrupted"
    kept = made.parent / "artifact.tune-cpu.gemm_algos.json"
    assert entries(kept) == [FASTER]
    assert json.loads((made.parent / "artifact.tune-cpu.json").read_text())["kernels_measured"]
    assert tune(made).resumed == 1
    assert not kept.exists()


# --- entry points to choose from -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "m (float16[64, 768] x, float16[768] g) => (float16[64, 768] y) { a = Softmax(x)  b = Mul(a, g)  y = Relu(b) }",
        "m (float16[64, 768] x, float16[768] g) => (float16[64, 768] y) { a = Add(x, g)  b = Mul(a, g)  y = Tanh(b) }",
    ],
    ids=["rowwise", "pointwise"],
)
def test_alternatives_come_last_and_are_entry_points_of_their_own(tmp_path: Path, body: str) -> None:
    model = normalize.normalize(read.load(write(tmp_path / "model.onnx", body)).model).model
    (kernel,) = outline(model, fuse(model))
    more = entry_points.with_alternatives(kernel)
    added = more.variants[len(kernel.variants) :]
    assert more.variants[: len(kernel.variants)] == kernel.variants
    assert len({v.symbol for v in more.variants}) == len(more.variants)
    shapes = {(v.unroll, v.threads, getattr(v, "lanes", 0)) for v in (*added, kernel.variants[0])}
    assert added and len(shapes) == len(added) + 1
    for variant in added:
        if isinstance(variant, RowVariant):
            assert variant.lanes * variant.unroll * variant.vector >= variant.columns == 768
            assert variant.threads % variant.lanes == 0
    assert entry_points.with_alternatives(more).variants[: len(more.variants)] == more.variants


def test_an_artifact_has_them_where_they_are_asked_for(tmp_path: Path) -> None:
    model = write(tmp_path / "chain.onnx", CHAIN)
    counts = []
    for wanted in (False, True):
        made = onnxopt.optimize(model, tmp_path / f"{wanted}", archs=["sm_90"], verify=False, launch_choices=wanted)
        counts.append([len(k.variants) for k in made.manifest.kernels if k.kind != "gemm"])
    assert counts[0] and all(more > few for few, more in zip(*counts, strict=True))
