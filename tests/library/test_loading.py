"""Loading the custom-op library: what it registers where, several artifacts and threads at once, and damaged files."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from onnx import helper

from onnxopt.codegen import nvrtc
from onnxopt.program.pointwise import Instruction, Program
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.custom_ops import custom_ops_damage as damage
from tests.support.emulation import library_programs
from tests.support.fakes import custom_ops_fake_driver as fake_driver

pytestmark = pytest.mark.usefixtures("library")
F = "float32"
WRONG_BODY = [helper.make_node("Identity", ["x0"], ["y0"])]  # tells the kernel's result from the function's


def numbers(shape, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


def test_outputs_that_exceed_every_cache(tmp_path):
    """Streamed stores: two outputs, a length that no vector divides, and one of another dtype."""
    program = Program((F,), (F, "float16"), (Instruction("neg", F, (0,)),), (1, 1), ((0,), (0,)), (0, 0))
    library = artifact.write(tmp_path, [artifact.kernel(program)])
    body = [helper.make_node("Neg", ["x0"], ["y0"]), helper.make_node("Cast", ["y0"], ["y1"], to=10)]
    model = artifact.model(body, [(F, ["n"])], [(F, ["n"]), ("float16", ["n"])])
    x = numbers(60_000_011, 3)
    wide, narrow = artifact.run(artifact.session(model, library), [x])
    np.testing.assert_array_equal(wide, -x)
    np.testing.assert_array_equal(narrow, (-x).astype(np.float16))


# registering


def negation_or_identity(folder, **fields):
    """A kernel that negates under a function that does not, so that the result tells which one ran."""
    row = {**artifact.kernel(artifact.one_op("neg", (F,), F)), **fields}
    return artifact.write(folder, [row]), artifact.model(WRONG_BODY, [(F, ["n"])], [(F, ["n"])])


def ran_kernel(session) -> bool:
    return artifact.run(session, [np.ones(3, F)])[0][0] == -1


def test_kernel_overrides_the_function(tmp_path):
    library, model = negation_or_identity(tmp_path)
    assert ran_kernel(artifact.session(model, library))
    assert not ran_kernel(artifact.session(model, None))


def test_without_kernels_json_nothing_is_registered(tmp_path):
    _, model = negation_or_identity(tmp_path / "other")
    assert not ran_kernel(artifact.session(model, artifact.copy_library(tmp_path)))


def test_session_entry_disables(tmp_path):
    library, model = negation_or_identity(tmp_path)
    assert not ran_kernel(artifact.session(model, library, {"onnxopt.disable": "1"}))
    assert ran_kernel(artifact.session(model, library, {"onnxopt.disable": "0"}))


def test_session_entry_leaves_kinds_out(tmp_path):
    """In one session of several in the process; the others have all kernels."""
    library, model = negation_or_identity(tmp_path)
    for names, runs in (("gemm,pool", True), ("pool,pointwise", False), ("", True), ("pointwise", False)):
        assert ran_kernel(artifact.session(model, library, {"onnxopt.leave_out": names})) == runs
    for wrong in ("nothing", "pool, pointwise", "pool,,gemm"):
        with pytest.raises(Exception, match=r"onnxopt\.leave_out names `.*`, which is no kind of kernels"):
            artifact.session(model, library, {"onnxopt.leave_out": wrong})


def test_environment_disables(tmp_path, monkeypatch):
    library, model = negation_or_identity(tmp_path)
    monkeypatch.setenv("ONNXOPT_DISABLE", "1")
    assert not ran_kernel(artifact.session(model, library))
    monkeypatch.setenv("ONNXOPT_DISABLE", "0")
    assert ran_kernel(artifact.session(model, library))


def test_kernel_that_does_not_pay_on_the_cpu_is_inlined(tmp_path):
    library, model = negation_or_identity(tmp_path, cpu=False)
    assert not ran_kernel(artifact.session(model, library))


def test_two_artifacts_in_one_process(tmp_path):
    first, model = negation_or_identity(tmp_path / "first")
    second = artifact.write(tmp_path / "second", [artifact.kernel(artifact.one_op("abs", (F,), F))])
    x = np.array([-2.0], F)
    assert artifact.run(artifact.session(model, first), [x])[0] == 2
    assert artifact.run(artifact.session(model, second), [x])[0] == 2
    assert artifact.run(artifact.session(model, None), [x])[0] == -2


def test_many_sessions_and_threads(tmp_path):
    code = (Instruction("add", F, (0, 1)), Instruction("tanh", F, (2,)))
    library = artifact.write(tmp_path, [artifact.kernel(Program((F, F), (F,), code, (3,), ((0, 1),), (0,)))])
    body = [helper.make_node("Add", ["x0", "x1"], ["a"]), helper.make_node("Tanh", ["a"], ["y0"])]
    model = artifact.model(body, [(F, ["n", "m"]), (F, ["m"])], [(F, None)])
    shared = artifact.session(model, library)

    def work(seed: int) -> bool:
        own = artifact.session(model, library, threads=1)
        arrays = [numbers((seed + 1, 900), seed), numbers(900, seed)]
        return all(np.array_equal(artifact.run(shared, arrays)[0], artifact.run(own, arrays)[0]) for _ in range(10))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


# a machine with a GPU, as far as registering goes

_WHICH_RAN = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.register_custom_ops_library(sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print("kernel" if session.run(None, {"x0": np.ones(3, np.float32)})[0][0] == -1 else "function")
"""


_REGISTERED = [
    (90, [(80, False), (90, False)], 0, "kernel", ""),
    (89, [(80, False)], 0, "kernel", ""),
    (75, [(80, False), (80, True)], 0, "function", "no code for this GPU (sm_75)"),
    (90, [(80, False)], 0, "function", "no code for this GPU (sm_90)"),
    (90, [(80, False), (80, True)], 0, "kernel", ""),
    (90, [(80, False), (80, True)], 222, "function", "does not load on this GPU (sm_90): CUDA_ERROR_FAKE"),
    (90, [(80, False), (90, False, True)], 0, "kernel", ""),
    (91, [(90, False)], 0, "kernel", ""),
    (91, [(90, False, True)], 0, "function", "no code for this GPU (sm_91)"),
    (100, [(90, False, True)], 0, "function", "no code for this GPU (sm_100)"),
    (100, [(90, False, True), (90, True)], 0, "kernel", ""),
    (100, [(90, True, True)], 0, "function", "no code for this GPU (sm_100)"),
]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("arch", "images", "load_error", "ran", "warning", "cpu"),
    [*((*row, True) for row in _REGISTERED), *((*row, False) for row in _REGISTERED[1:4])],
)
def test_registering_with_a_gpu(arch, images, load_error, ran, warning, cpu, tmp_path):
    """A CPU session runs the CPU kernel where it pays (cpu) and the GPU runs its own, else the function."""
    fatbin = fake_driver.fatbin(*images)
    row = {"file": "kernels.fatbin", "sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin)}
    kernel = artifact.kernel(artifact.one_op("neg", (F,), F), cpu=cpu, variants=[{**damage.VARIANT, "modes": "*"}])
    library = artifact.write(tmp_path, [kernel], row)
    (tmp_path / "kernels.fatbin").write_bytes(fatbin)
    model = tmp_path / "model.onnx"
    model.write_bytes(artifact.model(WRONG_BODY, [(F, ["n"])], [(F, ["n"])]).SerializeToString())
    driver = fake_driver.build()
    env = {"LD_LIBRARY_PATH": str(driver), "FAKE_ARCH": str(arch), "FAKE_LOAD_ERROR": str(load_error)}
    command = [sys.executable, "-c", _WHICH_RAN, str(model), str(library)]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (ran if cpu else "function")
    assert ("warning" in done.stderr) == bool(warning)
    assert warning in done.stderr


_CODE_FOR_ALONE = """
#include <cstdio>
#include <fstream>
#include <iterator>
#include "kernel_file/fatbin.h"
int main(int count, char** paths) {
  for (int k = 1; k < count; ++k) {
    std::ifstream stream(paths[k], std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    std::printf("%d", onnxopt::cuda::HasMachineCodeForAlone(bytes, 90));
  }
}
"""


def test_entry_points_for_hopper_run_where_their_machine_code_is(tmp_path):
    """PTX and machine code for every GPU of an architecture have none."""
    (tmp_path / "main.cc").write_text(_CODE_FOR_ALONE)
    program = library_programs.compiled(tmp_path / "main.cc", tmp_path / "program")
    fatbins = {
        "none": b"",
        "plain": fake_driver.fatbin((90, False), (90, True)),
        "ptx": fake_driver.fatbin((90, True, True)),
        "other": fake_driver.fatbin((100, False, True), (90, False)),
        "hopper": fake_driver.fatbin((80, False), (90, False, True), (90, True)),
        "compiled": nvrtc.compile_cuda("#if defined(__CUDA_ARCH_FEAT_SM90_ALL)\n#endif\n", ["sm_90"]),
    }
    for name, content in fatbins.items():
        (tmp_path / name).write_bytes(content)
    done = subprocess.run([program, *(tmp_path / name for name in fatbins)], capture_output=True, text=True, check=True)
    assert done.stdout == "000011"


# damage


@pytest.mark.parametrize("name", damage.DAMAGE)
def test_damaged_kernels_json(name, tmp_path):
    change, message = damage.DAMAGE[name]
    library = artifact.copy_library(tmp_path)
    damage.write(tmp_path, change)
    _, model = negation_or_identity(tmp_path / "model")
    with pytest.raises(Exception, match=re.escape(message)) as caught:
        artifact.session(model, library)
    assert "kernels.json" in str(caught.value)
    assert "onnxopt" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', "\xff\xfe", "[" * 100000], ids=range(7))
def test_kernels_json_that_is_no_kernel_file(text, tmp_path):
    library = artifact.copy_library(tmp_path)
    (tmp_path / "kernels.json").write_bytes(text.encode("latin-1"))
    _, model = negation_or_identity(tmp_path / "model")
    with pytest.raises(Exception, match=r"kernels\.json"):
        artifact.session(model, library)


def test_undamaged_file_registers_and_an_error_is_repeated_until_it_is_mended(tmp_path):
    library, model = negation_or_identity(tmp_path)
    good = (tmp_path / "kernels.json").read_text()
    (tmp_path / "kernels.json").write_text(good[:-10])
    for _ in range(2):
        with pytest.raises(Exception, match="was changed after it was written"):
            artifact.session(model, library)
    (tmp_path / "kernels.json").write_text(good)
    assert ran_kernel(artifact.session(model, library))


def test_truncated_anywhere_never_crashes(tmp_path):
    """Every prefix and many single-byte changes of a kernel file, each read by a fresh copy of the library."""
    script = tmp_path / "read_all.py"
    script.write_text(_READ_ALL)
    path = os.pathsep.join([str(pathlib.Path(__file__).parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "done"


_READ_ALL = """
import json, pathlib, random, sys
import onnxruntime as ort
from tests.support.custom_ops import custom_ops_artifact as artifact, custom_ops_damage as damage
random.seed(0)
good = json.dumps(damage.document()).encode()
texts = [good[:n] for n in range(0, len(good), 7)]
for _ in range(300):
    at = random.randrange(len(good))
    texts.append(good[:at] + bytes([random.randrange(256)]) + good[at + 1:])
library = None
for k, text in enumerate(texts):
    if library is None:  # a file that was read is not read again, so go on with a fresh copy
        library = artifact.copy_library(pathlib.Path(sys.argv[1]) / str(k))
        (library.parent / "kernels.fatbin").write_bytes(damage.FATBIN)
    (library.parent / "kernels.json").write_bytes(text)
    try:
        ort.SessionOptions().register_custom_ops_library(str(library))
    except Exception as error:
        assert "onnxopt" in str(error), error
    else:
        library = None
print("done")
"""


def test_model_of_another_artifact_is_an_error(tmp_path):
    library, _ = negation_or_identity(tmp_path)
    model = artifact.model([helper.make_node("Add", ["x0", "x1"], ["y0"])], [(F, ["n"]), (F, ["n"])], [(F, ["n"])])
    with pytest.raises(Exception, match=artifact.NAME):
        artifact.session(model, library)
