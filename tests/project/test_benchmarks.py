"""The benchmarks: all are listed and can be run by name, and what runs on the GPU is timed as it should be."""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from onnx import helper

from benchmarks.__main__ import main, summaries
from benchmarks.cpu import exporters
from benchmarks.models import peers
from benchmarks.support import gpu_timing, skeletons, torch_peers
from tests.support.hostile.hostile_building import model_of, value

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {path.parent for path in (ROOT / "benchmarks").glob("*/*.py")}


def test_every_benchmark_is_listed_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A benchmark is a module that runs as a program; those that only others run lie in support/ and have no line."""
    programs = {
        f"{path.parent.name}.{path.stem}"
        for folder in FOLDERS - {ROOT / "benchmarks" / "support"}
        for path in folder.glob("*.py")
        if 'if __name__ == "__main__":' in path.read_text()
    }
    assert summaries().keys() == programs
    assert main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    for name, summary in summaries().items():
        assert len(summary) > 20
        assert [line for line in listed if line.split()[:1] == [name] and line.endswith(summary)]


def test_the_readme_says_what_rests_on_every_benchmark() -> None:
    """Each has one row, and each that times something names the claim or the threshold in its last column."""
    rows: dict[str, str] = {}
    for line in (ROOT / "benchmarks" / "README.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`((?:cpu|models|kernels|checks)\.\w+)`", cells[0]) if line.startswith("|") else []
        assert not rows.keys() & set(names)
        rows |= dict.fromkeys(names, cells[-1])
    assert rows.keys() == summaries().keys()
    assert all(rows.values())


def test_every_result_file_is_cited_once_by_its_path() -> None:
    """By notes, a page, a threshold, or the benchmark that reads it; names are unique, folders small."""
    results = ROOT / "benchmarks" / "results"
    files = [path for path in results.rglob("*") if path.is_file()]
    names = [path.name for path in files if "tune" not in path.parts]
    assert len(names) == len(set(names))
    folders = [results, *(path for path in results.rglob("*") if path.is_dir())]
    assert all(len(list(folder.iterdir())) <= 25 for folder in folders)
    texts = [
        path.read_text("utf-8")
        for folder in ("benchmarks", "docs", "onnxopt/costs", "tests/project")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".py") or (path.parent.name == "data" and path.suffix == ".json")
    ]
    cited = {cited for text in texts for cited in re.findall(r"results/([\w./*-]+)", text)}
    assert {str(path.relative_to(results)) for path in files if "tune" not in path.parts} <= cited


def test_a_benchmark_runs_by_name(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By `python -m benchmarks cpu.chains`, and as a module."""
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["cpu.chains", "--help"])
    assert "--seconds" in capsys.readouterr().out
    command = [sys.executable, "-m", "benchmarks.cpu.chains", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--seconds" in done.stdout


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models.nothing"]) == 2
    assert "No benchmark is named models.nothing; the names are: checks." in capsys.readouterr().err


def _names(tree: ast.AST) -> set[str]:
    """What a module's top level defines, by definition, assignment or import."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif not isinstance(node, ast.expr) or isinstance(getattr(node, "ctx", None), ast.Store):
            names |= _names(node)
    return names


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements at any depth. Expressions hold none, and most of a tree's nodes lie in them."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, field, ())


def test_imports_of_our_own_modules_name_what_is_there() -> None:
    """Those inside of functions too, which run on a machine with a GPU alone."""
    folders = ("benchmarks", "cases", "models", "onnxopt", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if "cache" not in path.parts]
    trees = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}
    names, imports = dict[str, set[str]](), list[tuple[str, ast.Import | ast.ImportFrom]]()
    for module, path in trees.items():  # one tree at a time: all at once take the garbage collector's time
        tree = ast.parse(path.read_text())
        names[module] = _names(tree)
        imports += [(module, node) for node in _statements(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    known = {f"{name}.{defined}" for name, found in names.items() for defined in found}
    known |= {".".join(name.split(".")[:n]) for name in names for n in range(1, name.count(".") + 2)}
    wrong = []
    for module, node in imports:
        if isinstance(node, ast.Import):
            ours = [alias.name for alias in node.names if alias.name.partition(".")[0] in folders]
            wrong += [f"{module}:{node.lineno}: there is no {name}" for name in ours if name not in known]
        elif (node.module or "").partition(".")[0] in folders and "__getattr__" not in names.get(str(node.module), ()):
            lacking = [alias.name for alias in node.names if f"{node.module}.{alias.name}" not in known]
            wrong += [f"{module}:{node.lineno}: {node.module} has no {name}" for name in lacking]
    assert len(names) > 200
    assert wrong == []


# --- timing ----------------------------------------------------------------------------------------------------------


class _FakeCuda:
    """torch.cuda of a GPU that begins with the default stream's work when it is waited for, and with other work at
    once. Graphs hold one list of what was launched while they were captured."""

    def __init__(self) -> None:
        self.pending: list[Callable[[], object]] = []
        self.captured: list[Callable[[], object]] | None = None

    def launch(self, work: Callable[[], object]) -> None:
        """On a stream other than the default one."""
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    def synchronize(self) -> None:
        while self.pending:
            self.pending.pop(0)()

    def stream(self, _stream: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def CUDAGraph(self) -> types.SimpleNamespace:
        launched: list[Callable[[], object]] = []
        return types.SimpleNamespace(launched=launched, replay=lambda: [work() for work in launched])

    @contextlib.contextmanager
    def graph(self, graph: types.SimpleNamespace, **_options: object) -> Iterator[None]:
        self.synchronize()  # as torch does
        self.captured = graph.launched
        yield
        self.captured = None

    def Event(self, **_options: object) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            record=lambda _stream: None, synchronize=lambda: None, elapsed_time=lambda _end: 0.006
        )


def test_timed_runs_wait_for_what_the_gpu_has_yet_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a reference whose memory, freed by then, the timed runs write to."""
    cuda = _FakeCuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    memory, reference = [1], []
    cuda.pending.append(lambda: reference.append(memory[0]))

    def run() -> None:
        cuda.launch(lambda: memory.__setitem__(0, memory[0] + 1))

    stream: Any = types.SimpleNamespace(synchronize=lambda: None)
    assert gpu_timing.microseconds_in_graph([run], stream, at_least=3, replays=2) == 2.0
    assert reference == [1]
    assert memory == [1 + 2 + 5 * 3]  # twice, and three replays of three runs before the two that are timed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="this build of torch has no CUDA")
def test_timed_runs_wait_for_the_default_stream() -> None:
    x, total = (torch.zeros(1 << 16, device="cuda") for _ in range(2))
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)  # clock cycles
    x.fill_(1.0)
    gpu_timing.microseconds_in_graph([lambda: total.add_(x)], stream, at_least=1, replays=1)
    assert total.unique().tolist() == [6.0]


# --- exporters -------------------------------------------------------------------------------------------------------


def test_launches_of_an_artifact_whose_shapes_are_read() -> None:
    """Shape of a call's result needs no copy of it: the call is a kernel, and what it reads is not on the host."""
    model = ir.from_proto(
        onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20, "calls" : 1]>
        main (float[n, 4] x) => (float[n, 4] y) {
            a = MatMul (x, x)
            b = calls.Fused (a)
            c = calls.Fused (b)
            shape = Shape (c)
            same = Reshape (b, shape)
            y = MatMul (same, c)
        }
        <domain: "calls", opset_import: ["" : 20]>
        Fused (v) => (w) { u = Relu (v) w = Neg (u) }
        """)
    )
    assert exporters.launches(model) == 4


def test_files_are_compared_with_those_of_their_dtype() -> None:
    """A float16 file may need fewer launches than float32 allows, and --precision float16 is a row of its own."""
    rows = [
        exporters.Row("bert", exporter, precision, launches=launches, attentions=2)
        for exporter, precision, launches in (
            ("onnxslim", "", 24), ("keras", "", 20), ("keras", "float16", 12), ("converter-half", "", 10)
        )
    ]  # fmt: skip
    rows.append(exporters.Row("bert", "keras", "", failed="the exporter: no such model"))
    assert list(exporters.of_fewest(rows).values()) == [1.2, 1.0, 1.0, 1.0]
    assert [line.split()[2] for line in exporters.report(rows)[1:5]] == ["float32"] * 3 + ["float16"]
    keras = next(line.split() for line in exporters.summary(rows) if line.startswith("keras"))
    assert keras == ["keras", "2", "4", "of", "4", "1.00", "1.00", "0", "1"]


# --- peers -----------------------------------------------------------------------------------------------------------


def test_peers_time_the_sessions_that_were_opened_in_one_thread(tmp_path: Path) -> None:
    """CUDA graphs belong to the thread that captured them, and one model that fails does not hide the others."""
    threads = set()

    def open_sessions(name: str, folder: Path, row: dict[str, Any]) -> dict[str, Any]:
        threads.add(threading.get_ident())
        if name == "vit":
            raise RuntimeError("no such graph")
        row["ORT cosine"] = 1.0
        return {"ORT": name, "onnxopt": name}

    def time_sessions(opened: dict[str, Any]) -> dict[str, float]:
        threads.add(threading.get_ident())
        return dict.fromkeys(opened, 2.5)

    out = tmp_path / "peers.json"
    args = argparse.Namespace(only=["bert", "vit", "llama"], modes=[], seconds=60.0, torch_only=False)
    rows = peers.run(tmp_path, out, args, open_sessions, time_sessions)
    measured = {"ORT cosine": 1.0, "ORT": 2.5, "onnxopt": 2.5}
    assert rows == {"bert": measured, "vit": {"ORT": "failed: RuntimeError: no such graph"}, "llama": measured}
    assert json.loads(out.read_text()) == rows
    assert len(threads) == 1 and threading.get_ident() not in threads


def _stripped(folder: Path, op_type: str) -> onnx.ModelProto:
    """A graph of one node, with an optimized form of it in the folder under the name "net"."""
    image = [value("x", [1, 3, 8, 8])]
    inputs = ["x", "w"] if op_type == "Conv" else ["x"]
    nodes = [helper.make_node(op_type, inputs, ["y"])]
    weights = {"w": torch.ones(4, 3, 3, 3).numpy()} if op_type == "Conv" else {}
    source = model_of(nodes, image, [value("y", None)], weights)
    skeletons.strip(onnx.ModelProto.FromString(source.SerializeToString()), source, folder / "net.onnx.xz")
    return source


def test_onnx_runtimes_layout_options_are_a_peer_where_there_are_convolutions(tmp_path: Path) -> None:
    (tmp_path / "net.ort_fusions.failed").write_text("ValueError: no")
    (tmp_path / "net.plan.json").write_text(json.dumps({"options": {"use_tf32": "1"}}))
    row: dict[str, Any] = {}
    forms = peers.ort_forms("net", _stripped(tmp_path, "Conv"), tmp_path, row, {"onnxopt": "lib.so"})
    assert list(forms) == ["ORT", "ORT + CUDA graph", peers.NHWC_LABEL, "onnxopt"]
    assert forms[peers.NHWC_LABEL].options == {"prefer_nhwc": "1", "fuse_conv_bias": "1"}
    assert forms["onnxopt"].options == {"use_tf32": "1"}
    assert [form.cuda_graph for form in forms.values()] == [False, True, True, True]
    assert {label: form.library for label, form in forms.items() if form.library} == {"onnxopt": "lib.so"}
    assert row == {"ORT after ort_fusions": "ValueError: no"}
    assert peers.NHWC_LABEL not in peers.ort_forms("net", _stripped(tmp_path, "Relu"), tmp_path, {}, {})
    assert f"| {peers.NHWC_LABEL} |" in peers.table({})


def test_torch_over_channels_last_is_a_peer_for_images(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "compile", lambda net, **options: modes.append(options) or net)
    net, images = torch.nn.Conv2d(4, 8, 3), torch.zeros(2, 4, 8, 8)
    made = torch_peers.compiled(net, torch_peers.CHANNELS_LAST)
    assert made.weight.is_contiguous(memory_format=torch.channels_last)
    assert modes == [{"mode": "reduce-overhead", "dynamic": False}]
    laid = torch_peers.input_for(torch_peers.CHANNELS_LAST, images)
    assert laid.is_contiguous(memory_format=torch.channels_last) and torch.equal(laid, images)
    assert torch_peers.input_for("default", images) is images
    with pytest.raises(ValueError, match="a layout of images, the input has 2 dims"):
        torch_peers.input_for(torch_peers.CHANNELS_LAST, torch.zeros(8, 128))
    assert torch_peers.CHANNELS_LAST in peers.MODES
