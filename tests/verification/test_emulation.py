"""CUDA kernels emulated on the CPU: right ones pass, wrong ones are found and named, what is not run is said."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import onnxopt
from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.summary import executed_text, not_emulated_text
from onnxopt.codegen import generate
from onnxopt.errors import UsageError
from onnxopt.fusion.region import Kernel
from onnxopt.runtime.sessions import CPU
from onnxopt.tools import doctor
from onnxopt.verification.check import Check
from onnxopt.verification.emulation import emulate, gcc, one_kernel, shape_text
from onnxopt.verification.executed import EMULATED, Execution
from onnxopt.verification.verify import VerificationReport, completed
from tests.support import fusing
from tests.support.command import assert_refused, run
from tests.support.emulation import emulated
from tests.support.small_models import write

# A pointwise, a rowwise and a scan region; the rows are too short for vectors alone.
KINDS = """
kinds (float[batch, 37] x, float[37] bias) => (float[batch, 37] p, float[batch, 37] q, float[batch, 37] r)
<int64[1] axis = {1}> {
  a = Add(x, bias)  b = Tanh(a)  p = Mul(b, x)
  s = Softmax(x)  q = Mul(s, bias)
  c = CumSum(x, axis)  r = Mul(c, bias)
}
"""
POINTWISE = "g (float[batch, 8] x) => (float[batch, 8] y) { a = Tanh(x)  y = Mul(a, x) }"
ROWWISE = "g (float[batch, 37] x, float[37] b) => (float[batch, 37] y) { a = Softmax(x)  y = Mul(a, b) }"
SCAN = """
g (float[batch, 37] x, float[37] b) => (float[batch, 37] y) <int64[1] axis = {1}> { a = CumSum(x, axis)  y = Mul(a, b) }
"""
LARGE = "g (float[30, 40] x) => (float[30, 40] y) { a = Tanh(x)  y = Mul(a, x) }"
WEIGHTS = """
g (float[batch, 4] x) => (float[batch, 4] y) <float[4] w = {1, 2, 3, 4}> { a = Tanh(x)  b = Mul(a, w)  y = Mul(b, x) }
"""
HALVES = "g (float16[batch, 8] x) => (float16[batch, 8] y) { a = Tanh(x)  b = Sqrt(a)  y = Div(b, x) }"
ARCHS = ("sm_80",)
_FLAGS = gcc.FLAGS
# A shell starts background jobs with SIGINT ignored, and Python leaves it so.
_VERIFY = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from onnxopt.__main__ import run
sys.argv = ["onnxopt", "verify", sys.argv[1], "--emulate"]
run()
"""


def _row(report: VerificationReport) -> Execution:
    (row,) = (row for row in report.executed or () if row.provider == EMULATED)
    return row


def _optimize(tmp_path: Path, text: str, **options: bool) -> Manifest:
    model = write(tmp_path / "m.onnx", text)
    return onnxopt.optimize(model, tmp_path / "artifact", archs=ARCHS, **options).manifest


@pytest.fixture(scope="module", autouse=True)
def quick_compilers() -> Iterator[None]:
    """The emulation does not look at NVRTC's machine code; g++ optimizes nothing and has the headers precompiled."""
    with pytest.MonkeyPatch.context() as patch:
        fusing.compile_nothing(patch)
        patch.setattr(gcc, "FLAGS", (*_FLAGS, *emulated.options("-O0")))
        yield


@pytest.fixture
def sabotage(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Replaces a piece of the CUDA text of all kernels."""
    right = generate.generate

    def replace(old: str, new: str) -> None:
        def wrong(kernels: Sequence[Kernel]) -> str:
            text = right(kernels)
            assert old in text or not kernels
            return text.replace(old, new)

        monkeypatch.setattr(generate, "generate", wrong)

    return replace


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of KINDS, emulated when it was made, beside its model m.onnx."""
    folder = tmp_path_factory.mktemp("kinds")
    _optimize(folder, KINDS, emulate=True)
    return folder / "artifact"


@pytest.fixture
def artifact(made: Path, tmp_path: Path) -> Path:
    """A copy of `made` that a test may change; the model stays where it was."""
    return shutil.copytree(made, tmp_path / "artifact")


def test_right_kernels_pass_and_are_recorded(made: Path) -> None:
    manifest = manifests.load(made)
    assert {kernel.kind for kernel in manifest.kernels} == {"pointwise", "rowwise", "scan"}
    row, names = _row(manifest.verify), {kernel.name for kernel in manifest.kernels}
    assert (set(row.kernels), row.of, row.not_run) == (names, 3, {})
    assert manifest.left_out == ()
    checks = [c for c in manifest.verify.checks if c.provider == EMULATED]
    assert {c.output for c in checks} == names
    assert all(c.ok and c.difference is not None for c in checks)
    assert set(row.shapes) == names
    assert {"float32[1,37], float32[37]", "float32[2,37], float32[37]"} <= {s for v in row.shapes.values() for s in v}
    assert not set(manifest.verify.of_models) & set(checks)


def test_every_tool_says_what_was_emulated(made: Path) -> None:
    said = "CUDA (emulated): 3 of 3 kernels; CUDA: compiled, not run"
    assert said in run("explain", made).stdout
    assert said in (made / "report.html").read_text()
    (finding,) = [row for row in doctor.examine(made) if row.check == "verify"]
    assert said in finding.message


@pytest.mark.parametrize(
    ("model", "old", "new"),
    [
        (POINTWISE, "const float v0 = tanh(x0);", "const float v0 = x0;"),
        (ROWWISE, "p.p0 = add(p.p0, q.p0);", "p.p0 = sub(p.p0, q.p0);"),
        (SCAN, "      value = x0;\n", "      value = x0 + 1.0f;\n"),
    ],
    ids=["pointwise", "rowwise", "scan"],
)
def test_a_wrong_kernel_is_left_out_and_named(
    tmp_path: Path, sabotage: Callable[[str, str], None], model: str, old: str, new: str
) -> None:
    sabotage(old, new)
    manifest = _optimize(tmp_path, model, emulate=True)
    (left,) = manifest.left_out
    assert left.reason.startswith(f"output {left.name} (CUDA (emulated) with the library, batch=1, data sample 0): off")
    assert (left.excess or 0) > 1
    assert manifest.kernels == ()
    assert manifest.verify.status == "passed"
    assert onnxopt.verify(tmp_path / "m.onnx", tmp_path / "artifact").status == "passed"


def test_verify_completes_an_artifact(artifact: Path, made: Path) -> None:
    model = made.with_name("m.onnx")
    result = run("verify", model, artifact, "--emulate", "--provider", CPU)
    assert result.exit_code == 0, result.output
    assert "\nCUDA (emulated)  passed " in result.stdout
    assert "CUDA (emulated): 3 of 3 kernels" in result.stdout
    assert len(_row(manifests.load(artifact).verify).kernels) == 3


def test_verify_finds_a_wrong_kernel(tmp_path: Path, sabotage: Callable[[str, str], None]) -> None:
    """On a machine without a GPU, verification without emulation sees nothing of what is wrong here."""
    sabotage("const float v0 = tanh(x0);", "const float v0 = x0;")
    (kernel,) = _optimize(tmp_path, POINTWISE).kernels
    result = run("verify", tmp_path / "artifact", "--emulate")
    assert result.exit_code == 1, result.output
    assert f"verify: FAILED: output {kernel.name} (CUDA (emulated) with the library, batch=1, " in result.stdout
    assert manifests.load(tmp_path / "artifact").verify.status == "failed"


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ("*reinterpret_cast<volatile float*>(8)", "the process that ran it ended by SIGSEGV"),
        ("x0; if (threadIdx.x == 0) __syncthreads()", "a barrier waits for a thread that has ended"),
    ],
    ids=["crash", "barrier"],
)
def test_a_kernel_that_ends_the_process_is_left_out(
    tmp_path: Path, sabotage: Callable[[str, str], None], new: str, reason: str
) -> None:
    sabotage("const float v0 = tanh(x0);", f"const float v0 = {new};")
    manifest = _optimize(tmp_path, POINTWISE, emulate=True)
    (left,) = manifest.left_out
    assert reason in left.reason
    assert manifest.kernels == ()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("for (volatile int k = 0; k == 0;) {}", "no time left after 1 s"),
        ('int k; asm volatile("mov.u32 %0, 7;" : "=r"(k));', "g++ does not compile"),
    ],
    ids=["endless", "unknown"],
)
def test_what_cannot_be_emulated_is_said(
    tmp_path: Path, sabotage: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, more: str, reason: str
) -> None:
    monkeypatch.setattr(emulate, "_RUN_SECONDS", 1.0)
    sabotage("const float v0 = tanh(x0);", f"const float v0 = tanh(x0); {more}")
    manifest = _optimize(tmp_path, POINTWISE, emulate=True)
    (kernel,) = manifest.kernels
    row = _row(manifest.verify)
    assert row.kernels == ()
    assert reason in row.not_run[kernel.name]
    assert not_emulated_text(manifest.verify).startswith(f"{kernel.name}: ")
    assert "not emulated" in run("explain", tmp_path / "artifact").stdout


def test_large_tensors_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_kernel, "_MAX_ELEMENTS", 1000)
    manifest = _optimize(tmp_path, LARGE, emulate=True)
    (kernel,) = manifest.kernels
    assert _row(manifest.verify).not_run == {kernel.name: "a tensor of it has more than 1000 elements"}


def test_gemms_need_a_gpu(made: Path, tmp_path: Path) -> None:
    gemm = emulate.EmulatedKernel("MatMulAdd_1f", "gemm", (), "", {})
    emulation = emulate.emulate(made / "model.onnx", None, [gemm], tmp_path)
    assert emulation.execution.not_run == {"MatMulAdd_1f": "cuBLASLt runs it, which takes a GPU"}
    assert list(tmp_path.iterdir()) == []
    report = VerificationReport("passed", executed=(emulation.execution,))
    assert executed_text(report, ARCHS) == "CUDA (emulated): 0 of 1 kernels; CUDA: compiled, not run"


def test_another_emulation_replaces_the_earlier_one() -> None:
    earlier = Execution(EMULATED, "cpu", "1.27", ("a",), 2, {"a": ("float32[1]",)}, {"b": "no time"})
    later = dataclasses.replace(earlier, kernels=("b",), shapes={"b": ("float32[1]",)}, not_run={"a": "no time"})
    check = Check(EMULATED, True, "static", "a", None, error="")
    first = VerificationReport("passed", checks=(check,), executed=(earlier,))
    both = completed(first, VerificationReport("passed", executed=(later,)))
    assert both.executed == (later,)


def test_without_a_compiler_nothing_is_done(
    made: Path, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert_refused(run("optimize", made.with_name("m.onnx"), "-o", tmp_path / "new", "--emulate"), "g++", "PATH")
    assert not (tmp_path / "new").exists()
    before = (artifact / "manifest.json").read_bytes()
    assert_refused(run("verify", artifact, "--emulate"), "g++", "PATH")
    assert (artifact / "manifest.json").read_bytes() == before


def test_what_has_no_cuda_kernels_is_refused(tmp_path: Path, artifact: Path) -> None:
    model = write(tmp_path / "m.onnx", POINTWISE)
    for options in (["--no-verify"], ["--arch", "none"]):
        assert_refused(run("optimize", model, "-o", tmp_path / "new", "--emulate", *options), "emulat")
    with pytest.raises(UsageError, match="is no artifact"):
        onnxopt.verify(model, model, emulate=True)


def test_temporary_files_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    _optimize(tmp_path, HALVES, emulate=True)
    assert [path for path in temporary.iterdir() if path.name != ".ses"] == []  # ONNX Runtime leaves that one


def _runs(pid: str) -> bool:
    """Whether there is such a process; a container may keep the entry of one that has ended (Z)."""
    status = Path("/proc", pid, "stat")
    return status.is_file() and status.read_text().rpartition(") ")[2][0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_its_processes(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """g++ is one that starts a process and waits for it, as the real one does."""
    slow, temporary, started = tmp_path / "bin" / "g++", tmp_path / "tmp", tmp_path / "started"
    slow.parent.mkdir()
    temporary.mkdir()
    slow.write_text(f"#!/bin/sh\nsleep 100 &\necho $! >> {started}\nwait\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = subprocess.Popen(
        [sys.executable, "-c", _VERIFY, str(artifact)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    end = time.monotonic() + 60
    while not started.is_file() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.2)
    sent = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - sent < 2.0  # an idle machine takes 0.2
    assert (process.returncode, errors) == (128 + number, b"")
    assert [path for path in temporary.iterdir() if path.name != ".ses"] == []
    assert not any(map(_runs, started.read_text().split()))


def test_weights_beside_the_model(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", WEIGHTS)
    manifest = onnxopt.optimize(model, tmp_path / "artifact", archs=ARCHS, external_data=True, emulate=True).manifest
    assert manifest.left_out == ()
    (shapes,) = _row(manifest.verify).shapes.values()
    assert shapes[0] == "float32[1,4]"  # the weight is no input


def test_floats_of_16_bits(tmp_path: Path) -> None:
    manifest = _optimize(tmp_path, HALVES, emulate=True)
    assert manifest.left_out == ()
    assert len(_row(manifest.verify).kernels) == 1


def test_conversions_of_halves_are_those_of_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcc, "FLAGS", _FLAGS)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = halves[np.isfinite(halves)].astype(np.float32)
    between = (exact[:, None] * np.float32([1 - 2**-12, 1 - 2**-11, 1 + 2**-12, 1 + 2**-11, 1.0001])).ravel()
    extremes = np.float32([65519.9, 65520, 1e9, np.inf, 2**-25, 2**-25 * 1.001, 1e-30, 0])
    floats = np.concatenate([exact, between, extremes, -extremes]).astype(np.float32)
    halves.tofile(tmp_path / "halves")
    floats.tofile(tmp_path / "floats")
    emulated.run(
        tmp_path,
        f"""
        int main() {{
          auto halves = emulation::read<unsigned short>("halves", {halves.size});
          auto floats = emulation::read<float>("floats", {floats.size});
          std::vector<float> wide;
          std::vector<unsigned short> narrow;
          for (auto x : halves) wide.push_back(onnxopt::ptx::half_to_float(x));
          for (auto x : floats) narrow.push_back(onnxopt::ptx::float_to_half(x));
          emulation::write("wide", wide);
          emulation::write("narrow", narrow);
        }}""",
    )
    np.testing.assert_array_equal(np.fromfile(tmp_path / "wide", np.float32), halves.astype(np.float32))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(np.fromfile(tmp_path / "narrow", np.float16), floats.astype(np.float16))


@pytest.mark.parametrize(
    ("text", "sizes", "shape"),
    [
        ("float32[]", {}, ()),
        ("float16[batch,Min(512, n),2*n + 1]", {"batch": 3, "n": 7}, (3, 7, 15)),
        ("float32[Max(0, floor(u__1/64) - Min(0, n - 1) - 1)]", {"u__1": 256, "n": 1}, (3,)),
        ("int64[?batch,a.b,n**2]", {"?batch": 2, "a.b": 5, "n": 3}, (2, 5, 9)),
    ],
)
def test_shapes_at_sizes(text: str, sizes: dict[str, int], shape: tuple[int, ...]) -> None:
    parsed = shape_text.parse(text)
    assert set(parsed.symbols) == set(sizes)
    assert parsed.at("x", sizes).dims == shape


@pytest.mark.parametrize("dim", ["n - 2", "n/3", "?", "1/(n - 1)", "n**9**9"])
def test_shapes_that_there_are_not(dim: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        shape_text.parse(f"float32[{dim}]").at("x", {"n": 1})


def test_commands_end_after_their_time(tmp_path: Path) -> None:
    with gcc.started(["sleep", "60"]) as process:
        pass
    assert process.returncode == -9
    assert gcc._run_all({"a": ["sleep", "60"], "b": ["true"], "c": ["false"]}, tmp_path, 0.3) == {
        "a": "g++ was not done with it after 0 s",
        "c": "g++ does not compile it: it says nothing",
    }
