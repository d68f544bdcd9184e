"""What first runs measured, in the user's cache: read by later processes, and only where it can be trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.emulation import library_programs

# Keeps one choice of each table, or prints what is found: "known FIRST-WORD ENGINE KNOB=VALUE" or "unknown".
_MAIN = r"""
#include <cstdio>
#include <string>
#include "kernel_file/measured/convolution_plans.h"
#include "kernel_file/measured/gemm_algorithms.h"
using namespace onnxopt;
int main(int, char** arguments) {
  try {
    auto& products = cuda::Algorithms::Get();
    auto& plans = cuda::ConvolutionPlans::Get();
    if (std::string(arguments[1]) == "keep") {
      products.Add("GPU", 130100, "float16 m8 n16 k32", {{{11, 2, 3, 4, 5, 6, 7, 8}}, 5.0, 6.0});
      plans.Add("GPU", 91900, "float16 x 1x5x5x8", {{42, {{3, 7}}}, 5.0, 6.0});
      plans.AddExpected("GPU", 91900, {{"float16 x 1x8x8x8", {{43, {}}, true}}, {"float16 x 1x4x4x8", {{44, {}}}}});
    }
    const auto product = products.FindKept("GPU", 130100, "float16 m8 n16 k32");
    const auto plan = plans.FindKept("GPU", 91900, "float16 x 1x5x5x8");
    if (products.FindKept("GPU", 130200, "float16 m8 n16 k32")) throw Error("another release's");
    if (product) std::printf("known %llu\n", static_cast<unsigned long long>(product->algorithm.data[0]));
    if (plan) std::printf("known %lld %lld=%lld\n", static_cast<long long>(plan->choice.engine),
                          static_cast<long long>(plan->choice.knobs[0].first),
                          static_cast<long long>(plan->choice.knobs[0].second));
    for (const char* about : {"float16 x 1x8x8x8", "float16 x 1x4x4x8"}) {
      const auto size = plans.FindExpected("GPU", 91900, about);
      if (size) std::printf("known %lld timed %d\n", static_cast<long long>(size->choice.engine), size->timed);
    }
    if (!product || !plan) std::printf("unknown\n");
  } catch (const std::exception& e) {
    std::printf("error %s\n", e.what());
    return 1;
  }
}
"""
KNOWN = ["known 11", "known 42 3=7", "known 43 timed 1", "known 44 timed 0"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "main.cc").write_text(_MAIN)
    return library_programs.compiled(folder / "main.cc", folder / "tables")


def ask(program: Path, folder: Path, mode: str = "find", **variables: str) -> list[str]:
    given = {**os.environ, "XDG_CACHE_HOME": str(folder), "ONNXOPT_CACHE_SIZE": "1MB", **variables}
    done = subprocess.run([program, mode], capture_output=True, text=True, env=given, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout.split("\n")[:-1]


def kept(folder: Path, name: str) -> Path:
    (file,) = (folder / "onnxopt" / name).iterdir()
    return file


def test_choices_are_kept_for_later_processes(tables: Path, tmp_path: Path) -> None:
    assert ask(tables, tmp_path) == ["unknown"]
    assert ask(tables, tmp_path, "keep") == KNOWN
    assert ask(tables, tmp_path) == KNOWN
    assert b"float16 m8 n16 k32" in kept(tmp_path, "products").read_bytes()
    assert all(f.stat().st_mode & 0o777 == 0o600 for f in (tmp_path / "onnxopt" / "convolutions").iterdir())


@pytest.mark.parametrize(
    "change",
    [lambda b: b.replace(b'"000000000000000b"', b'"000000000000000c"'), lambda b: b[:40], lambda b: b""],
    ids=["another algorithm", "cut short", "empty"],
)
def test_damaged_choices_are_none(tables: Path, tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    ask(tables, tmp_path, "keep")
    file = kept(tmp_path, "products")
    content = file.read_bytes()
    file.write_bytes(change(content))
    assert file.read_bytes() != content
    assert ask(tables, tmp_path) == [*KNOWN[1:], "unknown"]


def test_tune_measures_everything_itself(tables: Path, tmp_path: Path) -> None:
    """What is kept is no entry for it, and what it measures goes to its file alone."""
    ask(tables, tmp_path, "keep")
    files = {"ONNXOPT_GEMM_TUNE": str(tmp_path / "g.json"), "ONNXOPT_CONV_TUNE": str(tmp_path / "c.json")}
    assert ask(tables, tmp_path, **files) == ["unknown"]
    assert ask(tables, tmp_path / "other", "keep", **files) == KNOWN
    assert (tmp_path / "g.json").exists() and not (tmp_path / "other").exists()


_A_PROCESS = """
import hashlib, sys
from pathlib import Path
from tests.library.kinds import test_convolution as t
kernel = (3, 3) if sys.argv[2] == "convolutions" else (1, 1)
pads = t.SAME if kernel == (3, 3) else (0, 0, 0, 0)
layer = t.Layer(n=5, h=13, w=13, c=96, k=128, kernel=kernel, pads=pads, dtype="float16", activation="relu",
                symbolic=("N", "H", "W") if "sizes" in sys.argv else ())
ready = t.gpu_session(Path(sys.argv[1]), layer)
outputs = [ready.run(None, layer.feeds())[0] for _ in range(3)]
t.assert_close(outputs[0], layer, layer.feeds(), t.ON_GPU["float16"])
print(*{hashlib.sha256(y.tobytes()).hexdigest() for y in outputs})
"""
KEPT = {
    "convolutions": b"float16 x 5x13x13x96 w 128x3x3x96 y 13x13 pads 1x1x1x1 bias relu",
    "products": b"float16 m845 n128 k96 ",
}


def _in_a_process(folder: Path, run: str, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **variables}
    command = [sys.executable, "-c", _A_PROCESS, str(folder / run), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("name", KEPT)
def test_a_first_run_keeps_the_fastest(tmp_path: Path, name: str) -> None:
    """One file for a shape that the graph states. Later runs and processes give the same bits."""

    _in_a_process(tmp_path, "unmeasured", name, ONNXOPT_MEASURE="0")
    assert not (tmp_path / "cache" / "onnxopt" / name).exists()
    first = _in_a_process(tmp_path, "first", name)
    file = kept(tmp_path / "cache", name)
    content = file.read_bytes()
    assert KEPT[name] in content
    assert _in_a_process(tmp_path, "later", name) == first and file.read_bytes() == content
    damaged = content.replace(KEPT[name], KEPT[name].replace(b"13", b"14").replace(b"845", b"846"))
    assert damaged != content
    file.write_bytes(damaged)  # measured again
    _in_a_process(tmp_path, "damaged", name)
    assert file.read_bytes() != damaged


@pytest.mark.gpu
def test_a_first_run_of_a_size_keeps_the_fastest_for_all_like_it(tmp_path: Path) -> None:
    """The heuristic's choice alone is kept where nothing measures, and is timed where it is needed next."""
    _in_a_process(tmp_path, "unmeasured", "convolutions", "sizes", ONNXOPT_MEASURE="0")
    file = kept(tmp_path / "cache", "convolutions")
    untimed = file.read_bytes()
    assert b'"about"' in untimed and b'"timed"' not in untimed
    first = _in_a_process(tmp_path, "first", "convolutions", "sizes")
    timed = file.read_bytes()
    assert b'"timed": true' in timed
    assert _in_a_process(tmp_path, "later", "convolutions", "sizes") == first and file.read_bytes() == timed
