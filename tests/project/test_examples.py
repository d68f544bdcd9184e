"""The examples do what the README says: they run an artifact with the library and without it, and the outputs agree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnxruntime
import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path) -> str:
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    """An artifact of y = gelu(x + bias) * x with dynamic batch, made by the command."""
    folder = tmp_path_factory.mktemp("example")
    bias = onnx.numpy_helper.from_array(np.linspace(-1, 1, 96, dtype=np.float32), "bias")
    nodes = [
        onnx.helper.make_node("Add", ["x", "bias"], ["sum"]),
        onnx.helper.make_node("Gelu", ["sum"], ["gelu"]),
        onnx.helper.make_node("Mul", ["gelu", "x"], ["y"]),
    ]
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 96]) for n in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "example", values[:1], values[1:], [bias])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    command = (sys.executable, "-m", "onnxopt", "optimize", folder / "model.onnx", "-o", folder / "artifact")
    run(*command, "--arch", "sm_90", "--no-verify")
    return folder / "artifact"


def differences(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"max difference (\S+)", output)]


def test_python(optimized: Path) -> None:
    found = differences(run(sys.executable, ROOT / "examples/python/run.py", optimized, "x=64x96"))
    assert len(found) == 2
    assert max(found) < 1e-5


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Path:
    path = tmp_path_factory.mktemp("cpp") / "run"
    run(ROOT / "examples/cpp/build", sys.executable, path)
    return path


@pytest.mark.models
def test_from_torch(tmp_path: Path, library: Path) -> None:
    pytest.importorskip("torch")
    output = run(sys.executable, "examples/python/from_torch.py", tmp_path / "artifact")
    assert float(output.rsplit(":", 1)[1]) < 1e-4


def test_cpp(optimized: Path, program: Path) -> None:
    output = run(program, optimized, "x=64x96")
    assert differences(output)[0] < 1e-5
    assert "y [64x96]" in output
    assert re.search(r"with the library +\d", output)
    assert "from C++, providers/cpu.json: " in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "usage: run ARTIFACT"),
        (("no-such-folder",), "no-such-folder"),
        (("{artifact}", "x64x96"), "expected INPUT=DIMS"),
        (("{artifact}", "x=64x95"), "95"),
    ],
)
def test_cpp_says_what_is_wrong(optimized: Path, program: Path, arguments: tuple[str, ...], message: str) -> None:
    command = [str(program), *(a.format(artifact=optimized) for a in arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode in (1, 2)
    assert message in result.stderr


def with_providers(artifact: Path, folder: Path, **texts: str) -> Path:
    """A copy of the artifact with other files in providers/."""
    shutil.copytree(artifact, folder)
    for name, text in texts.items():
        (folder / "providers" / f"{name}.json").write_text(text, "utf-8")
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CUDA driver whose only device is an "NVIDIA H200 é", and which can do nothing else."""
    folder = tmp_path_factory.mktemp("driver")
    text = """
    #include <string.h>
    int cuInit(unsigned flags) { return flags; }
    int cuDeviceGet(int* device, int ordinal) { *device = 7; return ordinal; }
    int cuDeviceGetName(char* name, int size, int device) { strncpy(name, "NVIDIA H200 é", size); return device - 7; }
    """
    (folder / "driver.c").write_text(text, "utf-8")
    run("gcc", "-shared", "-fPIC", folder / "driver.c", "-o", folder / "libcuda.so.1")
    return folder


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("NVIDIA H200 é", "h200.json (tuned on NVIDIA H200 é) fails: "),
        (r"NVIDIA H200 \u00E9", "h200.json (tuned on NVIDIA H200 é) fails: "),
        ("NVIDIA H200", "cuda.json (no file was tuned on NVIDIA H200 é) fails: "),
    ],
)
def test_cpp_takes_what_was_tuned_and_falls_back_to_the_cpu(
    optimized: Path, program: Path, driver: Path, tmp_path: Path, device: str, reason: str
) -> None:
    """With a driver that names a device, on which CUDA then does not start."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has no CUDA execution provider: pip install onnxruntime-gpu")
    tuned = json.loads((optimized / "providers" / "cuda.json").read_text()) | {"tuned": {"device": "?"}}
    artifact = with_providers(optimized, tmp_path / "artifact", h200=json.dumps(tuned).replace("?", device))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    result = subprocess.run([program, artifact, "x=4x96"], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    assert f"providers/cpu.json: {reason}" in result.stdout
    assert differences(result.stdout)[0] < 1e-5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cpu.json: is not JSON: no JSON value at byte 0"),
        ("{", "cpu.json: is not JSON: expected a string at byte 1"),
        ('{"provider": "CPUExecutionProvider"', "cpu.json: is not JSON: expected } at byte 35"),
        ('{"provider": "CPU', "cpu.json: is not JSON: a string without end at byte 17"),
        (r'{"provider": "\x"}', "cpu.json: is not JSON: an unknown escape at byte 16"),
        (r'{"provider": "\u12"}', "cpu.json: is not JSON: expected four hexadecimal digits"),
        ('{"provider": 1.5.2}', "cpu.json: is not JSON: no JSON value at byte 13"),
        ('{"provider": nothing}', "cpu.json: is not JSON: no JSON value at byte 13"),
        ("[" * 1000, "cpu.json: is not JSON: nested too deeply"),
        ("{} {}", "cpu.json: is not JSON: text behind the document at byte 3"),
        ("[]", "cpu.json: is for the provider ''"),
        ('{"provider": "TensorrtExecutionProvider"}', "cpu.json: is for the provider 'TensorrtExecutionProvider'"),
        (
            '{"provider": "CPUExecutionProvider", "session_options": {"graph_optimization_level": "most"}}',
            "graph_optimization_level is 'most'",
        ),
        ('{"provider": "CPUExecutionProvider", "session_options": {"other": 1}}', "session option other is not known"),
    ],
)
def test_cpp_says_what_is_wrong_with_a_file_of_providers(
    optimized: Path, program: Path, tmp_path: Path, text: str, message: str
) -> None:
    artifact = with_providers(optimized, tmp_path / "artifact", cpu=text)
    result = subprocess.run([program, artifact, "x=4x96"], capture_output=True, text=True)
    assert result.returncode == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_cpp_applies_the_file_of_providers(optimized: Path, program: Path, tmp_path: Path) -> None:
    """All that `tune` may write; onnxopt.disable switches the kernels off, and the results stay."""
    data = json.loads((optimized / "providers" / "cpu.json").read_text())
    data["session_options"] |= {
        "execution_mode": "parallel",
        "enable_mem_pattern": False,
        "enable_cpu_mem_arena": False,
    }
    data["session_options"] |= {"intra_op_num_threads": 1, "inter_op_num_threads": 1}
    data["session_config"] |= {"onnxopt.disable": "1"}
    artifact = with_providers(optimized, tmp_path / "artifact", cpu=json.dumps(data, indent=1))
    assert differences(run(program, artifact, "x=4x96")) == [0.0]


def test_csharp(optimized: Path, tmp_path: Path) -> None:
    """Compiled by the SDK's compiler, against ONNX Runtime's own assembly; run over the wheel's library."""
    dotnet, assembly = shutil.which("dotnet"), os.environ.get("ONNXRUNTIME_ASSEMBLY")
    if dotnet is None or assembly is None:
        pytest.skip(
            "needs a .NET SDK (3.1 or later), and ONNXRUNTIME_ASSEMBLY: the path of Microsoft.ML.OnnxRuntime.dll, "
            "lib/netstandard2.0 of the NuGet package Microsoft.ML.OnnxRuntime.Managed"
        )
    version, folder = re.findall(r"^(\S+) \[(.+)\]$", run(dotnet, "--list-sdks"), re.MULTILINE)[-1]
    runtime = re.findall(r"^Microsoft.NETCore.App (\S+) \[(.+)\]$", run(dotnet, "--list-runtimes"), re.MULTILINE)[-1]
    assemblies = [f"-r:{path}" for path in Path(runtime[1], runtime[0]).glob("*.dll") if is_managed(path)]
    sources = (ROOT / "examples/csharp/Program.cs", ROOT / "onnxopt/include/Onnxopt.cs")
    compiler = (dotnet, Path(folder, version, "Roslyn/bincore/csc.dll"), "-nologo", "-langversion:8", "-warnaserror")
    program = tmp_path / "Example.dll"
    run(*compiler, "-nullable:enable", *assemblies, f"-r:{assembly}", f"-out:{program}", *sources)
    framework = {"name": "Microsoft.NETCore.App", "version": runtime[0]}
    config = {"runtimeOptions": {"framework": framework}}
    program.with_suffix(".runtimeconfig.json").write_text(json.dumps(config))
    shutil.copy(assembly, tmp_path)
    (tmp_path / "libonnxruntime.so").symlink_to(
        next(Path(onnxruntime.__file__).with_name("capi").glob("libonnxruntime.so.*"))
    )
    output = run(dotnet, program, optimized, "x=64x96")
    assert "from C#, providers/cpu.json: " in output
    assert differences(output)[0] < 1e-5
    assert "y [64x96]" in output
    result = subprocess.run([dotnet, program, optimized, "x=64x95"], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")


def is_managed(path: Path) -> bool:
    return path.name.startswith(("System.", "Microsoft.", "netstandard", "mscorlib")) and ".Native." not in path.name
