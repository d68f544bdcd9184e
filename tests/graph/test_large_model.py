"""A 10 GB model costs less than 2 GB of resident memory, and one of 3 GB less than 1, mapped files counted."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from onnxopt.graph import wire
from tests.support.hostile.hostile_models import model_of, value

LIMIT = 2 << 30  # bytes resident
ROWS, WIDTH, LAYERS = 1_200_000, 1024, 4
PEAK = textwrap.dedent("""
    import pathlib, re
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())
    print("peak", int(peak.group(1)) * 1024)
""")


def model_of_gigabytes(folder: Path, part: int = 1) -> Path:
    """An embedding of 4.9 GB, tied to the output projection, and 4 layers of 1.3 GB, or a part of it; holes on disk."""
    rows, wide = ROWS // part, 160 * WIDTH // part
    nodes = [helper.make_node("Gather", ["table", "ids"], ["h0"])]
    sizes = {"table": (rows, WIDTH)}
    for i in range(LAYERS):
        sizes[f"up{i}"], sizes[f"down{i}"] = (WIDTH, wide), (wide, WIDTH)
        nodes += [
            helper.make_node("MatMul", [f"h{i}", f"up{i}"], [f"u{i}"]),
            helper.make_node("Sigmoid", [f"u{i}"], [f"s{i}"]),
            helper.make_node("Mul", [f"u{i}", f"s{i}"], [f"a{i}"]),
            helper.make_node("MatMul", [f"a{i}", f"down{i}"], [f"d{i}"]),
            helper.make_node("Add", [f"d{i}", f"h{i}"], [f"h{i + 1}"]),
        ]
    nodes += [
        helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", [f"h{LAYERS}", "head"], ["logits"]),
    ]
    model = model_of(nodes, [value("ids", ["N"], TensorProto.INT64)], [value("logits", ["N", rows])], opset=17)
    offset = 0
    for name, dims in sizes.items():
        tensor = model.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=dims)
        length = 4 * dims[0] * dims[1]
        wire.set_external(tensor, "weights.bin", offset, length)
        offset += length
    assert offset > 10e9 / part
    with open(folder / "weights.bin", "wb") as file:
        file.truncate(offset)
    path = folder / "large.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _peak_of(script: str, *arguments: str) -> int:
    """Peak resident bytes of a Python process that runs `script`, which must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", script + PEAK, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split("peak")[-1])


def test_ten_gigabytes_are_loaded_normalized_and_saved_in_little_memory(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    peak = _peak_of(
        textwrap.dedent("""
        import sys
        from onnxopt.graph import normalize, read, write
        source = read.load(sys.argv[1])
        assert source.bytes > 10e9
        write.save(normalize.normalize(source.model).model, sys.argv[2])
        """),
        str(model_of_gigabytes(tmp_path)),
        str(output),
    )
    assert peak < LIMIT / 4
    written = onnx.load(output / "model.onnx", load_external_data=False)
    assert {t.name for t in written.graph.initializer} >= {"table", "up0", "down3"}
    data = (output / "model.onnx.data").stat()
    assert data.st_size > 10e9
    assert data.st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("part", [pytest.param(1, marks=pytest.mark.exhaustive), 5])  # what is written is hashed
def test_gigabytes_are_optimized_in_little_memory(part: int, tmp_path: Path) -> None:
    peak = _peak_of(
        textwrap.dedent("""
        import sys
        from onnxopt.tools.cli import main
        try:
            main(["optimize", sys.argv[1], "-o", sys.argv[2], "--no-verify"])
        except SystemExit as done:
            assert not done.code, done.code
        """),
        str(model_of_gigabytes(tmp_path, part)),
        str(tmp_path / "artifact"),
    )
    assert peak < LIMIT / min(part, 2)
    assert (tmp_path / "artifact" / "model.onnx.data").stat().st_size > 10e9 / part
