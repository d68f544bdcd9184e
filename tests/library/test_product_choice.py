"""How a product runs: cuBLASLt's algorithms and cuDNN's plans of a 1x1 convolution, measured in turn and kept.

Stand-ins for the driver, cuBLASLt and cuDNN share a clock (tests/support/fakes/fake_products.py).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases.convolution import Layer
from onnxopt.codegen import sealed_json
from onnxopt.program.gemm import Gemm
from tests.library.kinds.test_convolution import ON_GPU, arrays, assert_close, gpu_session, handmade
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.fakes.fake_cudnn import Log, run, tensors
from tests.support.fakes.fake_products import NAMES, Call, ran

CONVOLUTION, FORWARD, OPERATION, GRAPH = 1, 10, 13, 15
X, W, Y, BIAS, RESIDUAL = 1, 2, 3, 4, 5
POINTWISE = Layer(c=64, k=64, kernel=(1, 1), dtype="float16")
SHAPES = ((2, 5, 7, 16), (24, 16), (24,), (2, 5, 7, 24))
PRODUCT = Gemm(("float16",) * 4, ("float16",), bias=2, residual=3, transpose_b=True, activation="relu")
LAYER = Call(PRODUCT, SHAPES)
TIMES = {"FAKE_ALGORITHMS": "30 20 25", "FAKE_ENGINES": "22 10 40"}


def choose(program: Path, folder: Path, call: Call = LAYER, *, tune: bool = True, **variables: str) -> Log:
    folder.mkdir(exist_ok=True)
    given = {"ONNXOPT_MEASURE": "0", **TIMES} | ({"ONNXOPT_GEMM_TUNE": str(folder / "algos.json")} if tune else {})
    return run(program, "product", call.write(folder / "call.json"), **{**given, **variables})


def entry(folder: Path) -> dict[str, Any]:
    (only,) = sealed_json.unseal((folder / "algos.json").read_text())["entries"]
    return dict(only)


def test_the_fastest_of_both_is_kept_and_runs(program: Path, tmp_path: Path) -> None:
    log = choose(program, tmp_path)
    assert ran(log.lines) == "engine 11"
    found = entry(tmp_path)
    assert found["product"] == "float16 m70 n24 k16 b^T bias residual relu"
    assert found["algorithm"] == ["0000000000000001", *["0" * 16] * 7]
    of_cudnn = found["cudnn"]
    assert (of_cudnn["version"], of_cudnn["engine"], of_cudnn["knobs"]) == (91900, 11, [[3, 1]])
    times = (found["heuristic_microseconds"], of_cudnn["algorithm_microseconds"], found["microseconds"])
    assert times == pytest.approx((30, 20, 10), abs=0.01)


def test_what_is_kept_runs_without_measuring(program: Path, tmp_path: Path) -> None:
    choose(program, tmp_path)
    again = choose(program, tmp_path)
    assert ran(again.lines) == "engine 11"
    assert not again.starting("multiply") and len(again.starting("execute")) == 1
    # The entry alone decides, not the times.
    assert ran(choose(program, tmp_path, FAKE_ENGINES="99 99 99").lines) == "engine 11"


@pytest.mark.parametrize("engines", ["22 21 40", "20 19.6 30"], ids=["slower", "within the noise"])
def test_an_algorithm_that_is_as_fast_stays(program: Path, tmp_path: Path, engines: str) -> None:
    assert ran(choose(program, tmp_path, FAKE_ENGINES=engines).lines) == "algorithm 1"
    assert "cudnn" not in entry(tmp_path) and entry(tmp_path)["microseconds"] == pytest.approx(20, abs=0.01)


def test_the_convolution_of_a_product(program: Path, tmp_path: Path) -> None:
    log = choose(program, tmp_path)
    found = tensors(log)
    assert found[X] == [2, 16, 5, 7, 5 * 7 * 16, 1, 7 * 16, 16]
    assert found[W][:4] == [24, 16, 1, 1] and found[BIAS][:4] == [1, 24, 1, 1]
    assert found[Y] == found[RESIDUAL] == [2, 24, 5, 7, 5 * 7 * 24, 1, 7 * 24, 24]
    steps = [log.made[number] for number in log.of_kind(GRAPH)[0].numbers(801)]
    assert [step.kind for step in steps] == [FORWARD, OPERATION, OPERATION, OPERATION]
    seconds = [log.made[int(s.values[752][0])].numbers(906)[0] for s in steps if 752 in s.values]
    assert seconds == [RESIDUAL, BIAS]  # the order that cuDNN has kernels for
    assert {tuple(c.numbers(105) + c.numbers(104)) for c in log.of_kind(CONVOLUTION)} == {(0, 0, 0, 0)}


@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_an_activation_of_ours_follows_the_convolution(program: Path, tmp_path: Path, activation: str) -> None:
    log = choose(program, tmp_path, Call(dataclasses.replace(PRODUCT, activation=activation), SHAPES))
    assert ran(log.lines) == "engine 11"
    assert [log.made[number].kind for number in log.of_kind(GRAPH)[0].numbers(801)] == [FORWARD, OPERATION, OPERATION]


@pytest.mark.parametrize(
    "fields",
    [
        {"shapes": ((70, 16), (24, 16), (24,), (70, 24))},
        {"shapes": ((10, 7, 16), (24, 16), (24,), (10, 7, 24))},
        {"meaning": {"transpose_b": False}, "shapes": ((2, 5, 7, 16), (16, 24), (24,), (2, 5, 7, 24))},
        {"meaning": {"alpha": 2.0}},
        {"meaning": {"beta": 0.5}},
        {"meaning": {"activation": "gelu_tanh"}},
        {"meaning": {"inputs": ("float16", "float16", "float32", "float32"), "outputs": ("float32",)}},
        {"meaning": {"inputs": ("float16",) * 3, "outputs": ("float16",) * 2, "residual": None}, "shapes": SHAPES[:3]},
    ],
    ids=["matrix", "tokens", "weight as it lies", "scaled", "scaled residual", "gelu", "widened", "parts"],
)
def test_products_that_are_no_convolution(program: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    meaning = dataclasses.replace(PRODUCT, **fields.get("meaning", {}))
    log = choose(program, tmp_path, Call(meaning, fields.get("shapes", SHAPES)))
    assert ran(log.lines) == "algorithm 1" and not log.made
    assert "cudnn" not in entry(tmp_path)


def test_bias_and_residual_are_optional(program: Path, tmp_path: Path) -> None:
    plain = Gemm(("float32",) * 2, ("float32",), transpose_b=True)
    log = choose(program, tmp_path, Call(plain, SHAPES[:2], tf32=True, alignment=4))
    assert ran(log.lines) == "engine 11"
    assert entry(tmp_path)["product"] == "float32 m70 n24 k16 b^T tf32 aligned 4 16 16 16"
    assert {t.numbers(900)[0] for t in log.made.values() if 900 in t.values} == {4}


def test_exact_sums_want_exact_engines(program: Path, tmp_path: Path) -> None:
    plain = Gemm(("float32",) * 2, ("float32",), transpose_b=True)
    log = choose(program, tmp_path, Call(plain, SHAPES[:2]), FAKE_NOTES="0")  # all use tensor cores
    assert ran(log.lines) == "algorithm 1"


@pytest.mark.parametrize(
    "variables",
    [
        {"FAKE_REFUSED": "0 1 2"},
        {"FAKE_COMPILED": "0 1 2"},
        {"FAKE_FAILING": "0 1 2"},
        {"FAKE_WORKSPACE": str((32 << 20) + 1)},
        {"FAKE_CONFIGS": "0"},
    ],
    ids=["refused", "would be compiled", "fail when they run", "much memory", "none"],
)
def test_plans_that_are_no_candidates(program: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    assert ran(choose(program, tmp_path, **variables).lines) == "algorithm 1"
    assert "cudnn" not in entry(tmp_path)


def test_a_plan_that_fails_when_it_runs_leaves_the_others(program: Path, tmp_path: Path) -> None:
    found = choose(program, tmp_path, FAKE_FAILING="1", FAKE_ENGINES="15 1 40")
    assert ran(found.lines) == "engine 10"


def test_without_a_workspace(program: Path, tmp_path: Path) -> None:
    call = dataclasses.replace(LAYER, workspace=False)
    assert ran(choose(program, tmp_path / "none", call).lines) == "engine 11"
    assert ran(choose(program, tmp_path / "some", call, FAKE_WORKSPACE="1024").lines) == "algorithm 1"


def without_cudnn(folder: Path, program: Path) -> Path:
    """A folder of the stand-ins in which libcudnn.so.9 has no functions."""
    folder.mkdir()
    (folder / "empty.c").touch()
    subprocess.run(["g++", "-shared", "-o", folder / "libcudnn.so.9", folder / "empty.c"], check=True)
    shutil.copy(program.parent / "libcudnn.so.9", folder / NAMES[0])
    for name in NAMES[1:]:
        (folder / name).symlink_to(NAMES[0])
    return folder


@pytest.mark.parametrize("change", ["version", "refused", "capturing", "missing"])
def test_a_kept_plan_that_cannot_run_leaves_the_kept_algorithm(program: Path, tmp_path: Path, change: str) -> None:
    choose(program, tmp_path)
    file = tmp_path / "algos.json"
    call, variables = LAYER, {}
    if change == "version":
        document = sealed_json.unseal(file.read_text())
        document["entries"][0]["cudnn"]["version"] = 91800
        file.write_text(sealed_json.seal(document))
    elif change == "refused":
        variables = {"FAKE_REFUSED": "1"}
    elif change == "capturing":
        call = dataclasses.replace(LAYER, capturing=True)
    else:
        variables = {"LD_LIBRARY_PATH": str(without_cudnn(tmp_path / "without", program))}
    before = file.read_bytes()
    log = choose(program, tmp_path, call, **variables)
    assert ran(log.lines) == "algorithm 1" and file.read_bytes() == before
    assert not log.starting("execute")


def test_a_kept_plan_that_fails_when_it_runs_leaves_the_kept_algorithm(program: Path, tmp_path: Path) -> None:
    choose(program, tmp_path)
    assert ran(choose(program, tmp_path, FAKE_FAILING="1").lines) == "algorithm 1"


def test_a_kept_algorithm_that_cublaslt_refuses_leaves_the_heuristic(program: Path, tmp_path: Path) -> None:
    choose(program, tmp_path)
    log = choose(program, tmp_path, FAKE_REFUSES_ALGORITHMS="1")
    assert ran(log.lines) == "algorithm 0" and not log.starting("execute")


def of_any_rows(rows: int = 70, loads: int = 0) -> Call:
    return dataclasses.replace(LAYER, shapes=((rows, 16), (24, 16), (24,), (rows, 24)), states=False, loads=loads)


def about(folder: Path) -> dict[str, Any]:
    entries = sealed_json.unseal((folder / "algos.json").read_text())["entries"]
    (only,) = (e for e in entries if "about" in e)
    return dict(only)


def test_tune_keeps_what_the_heuristic_chooses_for_other_rows(program: Path, tmp_path: Path) -> None:
    """Each algorithm once, and none of products whose shapes the graph states."""
    choose(program, tmp_path / "stated")
    assert "about" not in entry(tmp_path / "stated")
    choose(program, tmp_path, of_any_rows())
    found = about(tmp_path)
    assert found["about"] == "float16 m1 n24 k16 b^T bias residual relu"
    assert found["algorithms"] == [["0" * 16] * 8]


def test_tune_asks_for_sizes_before_it_measures(program: Path, tmp_path: Path) -> None:
    log = choose(program, tmp_path, of_any_rows(), ONNXOPT_TUNE_SIZES="1")
    assert ran(log.lines) == "algorithm 0" and len(log.starting("multiply")) == 1
    assert [set(e) & {"about", "product"} for e in [entry(tmp_path)]] == [{"about"}]


def test_algorithms_for_other_rows_are_loaded_once(program: Path, tmp_path: Path) -> None:
    choose(program, tmp_path, of_any_rows(), ONNXOPT_TUNE_SIZES="1")
    log = choose(program, tmp_path, of_any_rows(33, loads=2))
    before, after, run_itself = "\n".join(log.lines).split("loaded")
    assert (before.count("multiply 0"), after.count("multiply")) == (1, 0) and "multiply" in run_itself
    assert choose(program, tmp_path, of_any_rows(33, loads=1), FAKE_REFUSES_ALGORITHMS="1").lines[0] == "loaded"
    other = dataclasses.replace(of_any_rows(33, loads=1), tf32=True)  # another product
    assert choose(program, tmp_path, other).lines[0] == "loaded"


def test_damaged_algorithms_for_sizes(program: Path, tmp_path: Path) -> None:
    choose(program, tmp_path, of_any_rows(), ONNXOPT_TUNE_SIZES="1")
    document = sealed_json.unseal((tmp_path / "algos.json").read_text())
    document["entries"][0]["algorithms"] = [["0"]]
    (tmp_path / "algos.json").write_text(sealed_json.seal(document))
    (line,) = choose(program, tmp_path).starting("error")
    assert "entries[0].algorithms[0]" in line and "1 words, not 8" in line


def pixels(count: int, channels: int) -> Call:
    return Call(PRODUCT, ((count, 1, 1, channels), (24, channels), (24,), (count, 1, 1, 24)))


@pytest.mark.parametrize("channels", [16, 32])
def test_first_runs_over_few_channels_measure_plans_too(program: Path, tmp_path: Path, channels: int) -> None:
    call = pixels(1 << 16, channels)
    cache = {"ONNXOPT_MEASURE": "1", "XDG_CACHE_HOME": str(tmp_path), "ONNXOPT_CACHE_SIZE": "1MB"}
    assert ran(choose(program, tmp_path, call, tune=False, **cache).lines) == "engine 11"
    again = choose(program, tmp_path, call, tune=False, **cache)
    assert ran(again.lines) == "engine 11" and len(again.starting("execute")) == 1
    refused = choose(program, tmp_path, call, tune=False, **cache, FAKE_REFUSED="0 1 2")
    assert ran(refused.lines) == "algorithm 1" and len(refused.starting("multiply")) == 1


@pytest.mark.parametrize("call", [LAYER, pixels(1 << 16, 40), pixels((1 << 16) - 1, 32)], ids=["small", "deep", "few"])
def test_other_first_runs_measure_algorithms_alone(program: Path, tmp_path: Path, call: Call) -> None:
    cache = {"ONNXOPT_MEASURE": "1", "XDG_CACHE_HOME": str(tmp_path), "ONNXOPT_CACHE_SIZE": "1MB"}
    log = choose(program, tmp_path, call, tune=False, **cache)
    assert ran(log.lines) == "algorithm 1" and not log.made
    (file,) = (tmp_path / "onnxopt" / "products").iterdir()
    assert b'"cudnn"' not in file.read_bytes()
    assert ran(choose(program, tmp_path, call, tune=False).lines) == "algorithm 0"  # not measured: the heuristic


@pytest.mark.parametrize(
    ("first", "dims", "runs"),
    [(True, 2, "algorithm 1"), (True, 3, "algorithm 1"), (True, 4, "algorithm 0"), (False, 2, "algorithm 0")],
    ids=["rows", "sequences", "an image", "a later size"],
)
def test_the_first_of_many_sizes_is_measured(program: Path, tmp_path: Path, first: bool, dims: int, runs: str) -> None:
    """Where the graph does not state the shapes; images have too many products for that."""
    cache = {"ONNXOPT_MEASURE": "1", "XDG_CACHE_HOME": str(tmp_path), "ONNXOPT_CACHE_SIZE": "1MB"}
    rows = (1, 1, 70)[3 - (dims - 1) :]
    shapes = ((*rows, 16), (24, 16), (24,), (*rows, 24))
    call = dataclasses.replace(LAYER, shapes=shapes, states=False, first=first)
    assert ran(choose(program, tmp_path, call, tune=False, **cache).lines) == runs


@pytest.mark.parametrize(
    ("of_cudnn", "problem"),
    [
        ({"engine": 11, "knobs": []}, "version"),
        ({"version": 91900, "knobs": []}, "engine"),
        ({"version": 91900, "engine": 11, "knobs": [[1]]}, "knobs"),
        ({"version": 91900, "engine": 11, "knobs": []}, "algorithm_microseconds"),
        ({"version": 91900, "engine": -1, "knobs": [], "algorithm_microseconds": 2}, "engine"),
        (3, "cudnn"),
    ],
)
def test_damaged_plans(program: Path, tmp_path: Path, of_cudnn: object, problem: str) -> None:
    choose(program, tmp_path)
    document = sealed_json.unseal((tmp_path / "algos.json").read_text())
    document["entries"][0]["cudnn"] = of_cudnn
    (tmp_path / "algos.json").write_text(sealed_json.seal(document))
    (line,) = choose(program, tmp_path).starting("error")
    assert "algos.json" in line and "entries[0]" in line and problem in line


@pytest.mark.gpu
def test_a_measured_product_is_kept_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = dataclasses.replace(POINTWISE, activation="relu", residual="before")
    monkeypatch.setenv("ONNXOPT_GEMM_TUNE", str(tmp_path / "algos.json"))
    measuring = gpu_session(tmp_path / "measuring", layer)
    assert_close(measuring.run(None, layer.feeds())[0], layer, layer.feeds(), ON_GPU["float16"])
    found = entry(tmp_path)
    assert found["product"] == "float16 m198 n64 k64 b^T bias residual relu"
    assert 0 < found["microseconds"] <= found["heuristic_microseconds"]


@pytest.mark.gpu
@pytest.mark.parametrize("residual", ["", "before"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_product_by_cudnn_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, residual: str
) -> None:
    """The plan that the kind convolution measured for the same layer gives the same bits, in a CUDA graph too."""
    layer = dataclasses.replace(POINTWISE, activation="relu", residual=residual, dtype=dtype)
    given = arrays(layer)
    monkeypatch.setenv("ONNXOPT_CONV_TUNE", str(tmp_path / "plans.json"))
    monkeypatch.setenv("ONNXOPT_GEMM_TUNE", str(tmp_path / "algos.json"))
    (expected,) = artifact.run(handmade(tmp_path / "convolution", layer, [list(a.shape) for a in given]), given)
    gpu_session(tmp_path / "product", layer).run(None, layer.feeds())
    monkeypatch.delenv("ONNXOPT_CONV_TUNE")
    monkeypatch.delenv("ONNXOPT_GEMM_TUNE")
    (plan,) = sealed_json.unseal((tmp_path / "plans.json").read_text())["entries"]
    of_cudnn = {"version": plan["cudnn"], "engine": plan["engine"], "knobs": plan["knobs"]}
    chosen = entry(tmp_path) | {"cudnn": of_cudnn | {"algorithm_microseconds": 1.0}}
    (tmp_path / "beside").mkdir()
    text = sealed_json.seal({"schema": 2, "entries": [chosen]})
    (tmp_path / "beside" / "gemm_algos.json").write_text(text)
    (found,) = gpu_session(tmp_path / "beside", layer).run(None, layer.feeds())
    assert_close(found, layer, layer.feeds(), ON_GPU[dtype])
    np.testing.assert_array_equal(found, expected)


def test_the_file_says_what_the_library_reads(program: Path, tmp_path: Path) -> None:
    """The example of the documentation has these fields."""
    choose(program, tmp_path)
    assert set(entry(tmp_path)["cudnn"]) == {"version", "engine", "knobs", "algorithm_microseconds"}
    assert json.loads((tmp_path / "algos.json").read_text())["schema"] == 2
