"""QuantizeLinear and DequantizeLinear in kernels: the codes of ONNX Runtime, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from onnxopt.artifact import layout
from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from tests.support.fusing import cpu_kernels_forced
from tests.support.graphs import graph, run

_CODES = ("int8", "uint8", "int16", "uint16")
_ROWS = 61


def _values(storage: type[np.floating], scale: float) -> np.ndarray:
    """Ties in both directions, what lies just beside them, what saturates, and what is no number."""
    info = np.finfo(storage)
    ties = (np.arange(-300, 300) + 0.5) * scale
    beside = np.nextafter(ties.astype(storage), storage(0))
    special = [0.0, -0.0, info.max, info.min, info.tiny, -info.tiny]
    if storage is np.float32:  # ONNX Runtime's kernel for float16 gives these codes that depend on their sign and size
        special += [np.nan, np.inf, -np.inf]
    drawn = np.random.default_rng(5).standard_normal(4000) * 200 * scale
    return np.concatenate([ties.astype(storage), beside, np.array(special, storage), drawn.astype(storage)])


def _in_rows(values: np.ndarray) -> np.ndarray:
    return np.resize(values, (len(values) // _ROWS + 1, _ROWS))


def _model(dtype: str, codes: str, zero: int | None, *, channels: bool) -> ir.Model:
    scale = f"{dtype}[{_ROWS}] s" if channels else f"{dtype} s"
    point = f", {codes}[{_ROWS}] z" if channels else f", {codes} z"
    operands = "s" if zero is None else "s, z"
    attributes = "<axis = 1>" if channels else ""
    body = f"a = Neg(x)  q = QuantizeLinear{attributes}(a, {operands})  y = DequantizeLinear{attributes}(q, {operands})"
    inputs = f"{dtype}[N, {_ROWS}] x, {scale}{'' if zero is None else point}"
    return graph(inputs, f"{codes}[N, {_ROWS}] q, {dtype}[N, {_ROWS}] y", body, opset=21)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("codes", _CODES)
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_codes_are_those_of_onnx_runtime(dtype: str, codes: str, channels: bool, tmp_path: Path) -> None:
    storage = np.float16 if dtype == "float16" else np.float32
    for zero in (0, 7) if codes.startswith("u") else (0, -7):
        model = _model(dtype, codes, zero, channels=channels)
        folder = tmp_path / str(zero)
        folder.mkdir()
        ir.save(model, folder / "model.onnx")
        with cpu_kernels_forced():
            artifact = flow.optimize(folder / "model.onnx", folder / "out", archs=("sm_90",), verify=False)
        assert [kernel.ops for kernel in artifact.manifest.kernels] == [("Neg", "QuantizeLinear", "DequantizeLinear")]
        library = artifact.path / layout.LIBRARY_FOLDER / layout.LIBRARY
        session = sessions.open_session(artifact.path / layout.MODEL, library=library)
        for scale in (0.25, 0.0234375, 0.0437):
            rows = _in_rows(_values(storage, scale))
            shape = (_ROWS,) if channels else ()
            scales = np.full(shape, scale, storage) * (np.linspace(0.5, 2, _ROWS) if channels else 1)
            feeds = {"x": rows, "s": np.asarray(scales, storage), "z": np.full(shape, zero, codes)}
            wanted = dict(zip(("q", "y"), run(model, feeds), strict=True))
            found = sessions.run(session, feeds)
            np.testing.assert_array_equal(found["q"], wanted["q"])
            np.testing.assert_array_equal(found["y"], wanted["y"])


# name: inputs, outputs, body, constants, kind and operators of the one region
_REGIONS = {
    "codes to codes": (
        "uint8[N, 40] x", "int8[N, 40] y",
        "a = DequantizeLinear(x, s, u)  b = Tanh(a)  y = QuantizeLinear(b, s, i)",
        "pointwise", ("DequantizeLinear", "Tanh", "QuantizeLinear")),
    "a norm's result": (
        "float[N, 40] x, float[40] g", "uint8[N, 40] y",
        "n = LayerNormalization(x, g, g)  y = QuantizeLinear(n, s, u)",
        "rowwise", ("LayerNormalization", "QuantizeLinear")),
    "there and back behind a norm": (
        "float[N, 40] x, float[40] g", "float[N, 40] y",
        "n = LayerNormalization(x, g, g)  q = QuantizeLinear(n, s, u)  y = DequantizeLinear(q, s, u)",
        "rowwise", ("LayerNormalization", "QuantizeLinear", "DequantizeLinear")),
    "a residual of codes": (
        "uint8[N, 40] x, float[N, 40] r, float[40] g", "uint8[N, 40] y",
        "a = DequantizeLinear(x, s, u)  b = Add(a, r)  n = LayerNormalization(b, g, g)  y = QuantizeLinear(n, s, u)",
        "rowwise", ("DequantizeLinear", "Add", "LayerNormalization", "QuantizeLinear")),
    "scales of the last axis": (
        "float[N, 4] x", "float[N, 4] y",
        "a = Neg(x)  q = QuantizeLinear<axis = -1>(a, s4, i4)  y = DequantizeLinear<axis = 1>(q, s4, i4)",
        "pointwise", ("Neg", "QuantizeLinear", "DequantizeLinear")),
    "no zero point": (
        "float[N, 40] x", "uint8[N, 40] y", "a = Relu(x)  y = QuantizeLinear(a, s)", "pointwise",
        ("Relu", "QuantizeLinear")),
    "16 bits": (
        "float[N, 40] x", "float[N, 40] y", "q = QuantizeLinear(x, s, w)  a = DequantizeLinear(q, s, w)  y = Sin(a)",
        "pointwise", ("QuantizeLinear", "DequantizeLinear", "Sin")),
    "moved": (
        "float[N, 8, 40] x", "int8[N, 40, 8] y", "t = Transpose<perm = [0, 2, 1]>(x)  y = QuantizeLinear(t, s, i)",
        "pointwise", ("Transpose", "QuantizeLinear")),
}  # fmt: skip
_CONSTANTS = (
    "float s = {0.03}, uint8 u = {120}, int8 i = {-3}, uint16 w = {300}, float[4] s4 = {0.1, 0.02, 0.3, 0.04}, "
    "int8[4] i4 = {0, 1, -2, 3}"
)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", _REGIONS)
def test_regions_with_codes(case: str, tmp_path: Path) -> None:
    """The library's CPU kernels, and the CUDA text compiled by g++, against ONNX Runtime."""
    inputs, outputs, body, kind, ops = _REGIONS[case]
    model = graph(inputs, outputs, body, constants=_CONSTANTS, opset=21)
    ir.save(model, tmp_path / "model.onnx")
    with cpu_kernels_forced():
        artifact = flow.optimize(tmp_path / "model.onnx", tmp_path / "out", archs=("sm_90",), emulate=True)
    assert artifact.manifest.verify.status == "passed"
    assert [(kernel.kind, kernel.ops, kernel.cpu) for kernel in artifact.manifest.kernels] == [(kind, ops, True)]
    assert not artifact.manifest.left_out


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", _REGIONS)
def test_codes_stay_with_the_cpu_provider(case: str, tmp_path: Path) -> None:
    inputs, outputs, body, _, _ = _REGIONS[case]
    ir.save(graph(inputs, outputs, body, constants=_CONSTANTS, opset=21), tmp_path / "model.onnx")
    with_gpus = flow.optimize(tmp_path / "model.onnx", tmp_path / "gpus", archs=("sm_90",)).manifest
    assert not any(kernel.cpu for kernel in with_gpus.kernels)
    without = flow.optimize(tmp_path / "model.onnx", tmp_path / "none", archs=()).manifest
    assert not any("Linear" in op for kernel in without.kernels for op in kernel.ops)


def _text(dtype: str, tail: str) -> str:
    """The CUDA text of Gelu and what is behind it."""
    constants = f"{dtype} s = {{{13517 if dtype == 'float16' else 0.3}}}, uint8 z = {{3}}"  # 16-bit floats as bits
    model = graph(f"{dtype}[N, 64] x", "uint8[N, 64] q", f"a = Gelu(x)  {tail}", constants=constants)
    (kernel,) = outline(model, fuse(model))
    return "\n".join(kernel.kind.cuda(kernel))


def test_functions_are_approximate_where_16_bits_lie_between_them_and_the_codes() -> None:
    """Rounding to float16 hides their error; codes of float32 numbers would show it."""
    half = _text("float16", "q = QuantizeLinear(a, s, z)")
    assert "approximate::gelu" in half and "divide_by_constant" in half
    wide = _text("float", "q = QuantizeLinear(a, s, z)")
    assert "approximate" not in wide and " erf(" in wide and "divide_by_constant" in wide
    bare = _text("float16", "b = Cast<to = 1>(a)  c = Exp(b)  q = Cast<to = 2>(c)")
    assert " erf(" in bare and " exp(" in bare and "approximate" not in bare  # a Cast in float32 rounds nothing
