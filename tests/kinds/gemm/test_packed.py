"""Which MatMulNBits become kernels, the reasons against others, and weights as floats against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from cases.models import fuse, outline
from cases.packed_weights import STORED, Products, Weight
from onnxopt.fusion import fuse as fusing
from onnxopt.kinds import KINDS
from onnxopt.kinds.gemm import packed_entry_points
from onnxopt.kinds.gemm.kind import GEMM
from onnxopt.program.gemm import Gemm, PackedIntegers
from tests.support.emulation import emulated

DEPTH = 64


def planned(weight: Weight, dtype: str = "float16", more: tuple[str, ...] = (), dims=("s",), **attributes: int):
    products = Products()
    products.constant("order", np.zeros(DEPTH, np.int32))
    products.product("y", "x", weight, more, **attributes)
    inputs = {"x": (dtype, [*dims, weight.depth])}
    return fuse(ir.serde.deserialize_model(products.model(inputs, {"y": dtype})))


@pytest.mark.parametrize("zeros", ["middle", "codes", "floats"])
@pytest.mark.parametrize(("bits", "group"), [(4, 16), (4, 32), (4, 256), (8, 16), (8, 128)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_becomes_a_kernel(dtype: str, bits: int, group: int, zeros: str) -> None:
    plan = planned(Weight(24, DEPTH, bits, group, zeros, dtype), dtype)
    (region,) = plan.regions
    assert region.kind is GEMM and plan.refusals == ()
    codes = region.meaning.packed
    assert (codes.bits, codes.group, codes.scales) == (bits, group, 2)
    assert codes.zeros == (None if zeros == "middle" else 3)
    assert region.traffic.flops is None  # of an unknown number of rows


def test_the_work_of_a_known_number_of_rows() -> None:
    (region,) = planned(Weight(24, DEPTH), dims=(3,)).regions
    assert region.traffic.flops == 2 * 3 * 24 * DEPTH


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"weight": Weight(24, DEPTH, bits=2, group=16)},
            "MatMulNBits of 2 bits in blocks of 16 runs as ONNX Runtime's own kernel; the library has kernels"
            " for 2, 4, 8 bits in blocks of 32 to 256",
        ),
        ({"weight": Weight(24, 72, bits=2, group=64)}, "Rows of 72 elements, or of 32 bytes of codes"),
        ({"N": 23}, "The first dim of `y.0` is not N, which is 23"),
        ({"block_size": 512}, "MatMulNBits of 4 bits in blocks of 512"),
        ({"weight_prepacked": 1}, r"an order of its own \(g_idx or weight_prepacked\)"),
        ({"more": ("order",)}, r"an order of its own \(g_idx or weight_prepacked\)"),
        ({"weight": Weight(24, 60)}, "Rows of 60 elements, or of 32 bytes of codes, are no multiple of 16 bytes"),
        ({"weight": Weight(24, 48, group=16)}, "Rows of 48 elements, or of 24 bytes of codes"),
        ({"weight": Weight(24, DEPTH, dtype="float32"), "dtype": "float32"}, "A MatMulNBits of float32 runs as"),
        ({"weight": Weight(24, DEPTH, dtype="float32")}, "other dtypes than uint8 and float16"),
        ({"dims": ()}, "`x` has fewer than two dims or an unknown rank"),
    ],
)
def test_the_reason_against_others(fields, reason: str) -> None:
    weight = fields.pop("weight", Weight(24, DEPTH))
    plan = planned(weight, **fields)
    assert plan.regions == ()
    (refusal,) = plan.refusals
    with pytest.raises(ValueError, match=reason):
        raise ValueError(refusal.reason)


def test_a_weight_that_is_an_input_stays() -> None:
    products = Products()
    products.product("y", "x", Weight(24, DEPTH))
    proto = products.model({"x": ("float16", ["s", DEPTH])}, {"y": "float16"})
    scales = proto.graph.initializer[1]
    proto.graph.input.append(proto.graph.input[0].__class__(name=scales.name))
    proto.graph.input[-1].type.CopyFrom(proto.graph.input[0].type)
    plan = fuse(ir.serde.deserialize_model(proto))
    assert [r.reason for r in plan.refusals] == ["`y.1` of MatMulNBits is no constant"]


def test_without_a_gpu_the_provider_keeps_it() -> None:
    products = Products()
    products.product("y", "x", Weight(24, DEPTH))
    model = ir.serde.deserialize_model(products.model({"x": ("float16", ["s", DEPTH])}, {"y": "float16"}))
    plan = fusing.fuse(model, KINDS, cuda=False)
    assert plan.regions == ()
    assert [r.reason for r in plan.refusals] == [
        "ONNX Runtime's CPU provider multiplies by the codes of MatMulNBits itself"
    ]


@pytest.mark.parametrize(
    ("columns", "bits", "warps"),
    [(1, 4, (16, 4)), (2112, 4, (16, 4)), (2113, 4, (8, 4)), (4224, 8, (8, 4)), (4225, 8, (4,))],
)
def test_entry_points(columns: int, bits: int, warps: tuple[int, ...]) -> None:
    products = Products()
    products.product("y", "x", Weight(columns, DEPTH, bits))
    model = ir.serde.deserialize_model(products.model({"x": ("float16", ["s", DEPTH])}, {"y": "float16"}))
    (kernel,) = outline(model, fuse(model))
    row = ["row"] if bits == 4 else []
    codes = [f"codes{w}" for w in warps]
    assert [v.symbol.rsplit("_", 1)[1] for v in kernel.variants] == [*row, *codes, "floats"]
    assert all(v.shared <= 227 << 10 for v in kernel.variants)


@pytest.mark.parametrize(("columns", "warps"), [(4224, 16), (4225, 4), (25344, 4), (25345, 8)])
def test_blocks_of_one_row(columns: int, warps: int) -> None:
    """All run at once where that can be."""
    for gate in (None, "silu"):
        meaning = Gemm(
            ("float16", "uint8", "float16"), ("float16",), transpose_b=True, gate=gate, packed=PackedIntegers(4, 32, 2)
        )
        row = packed_entry_points._one_row("k", columns, meaning)
        assert row.threads // 32 == (8 if gate and warps == 16 else warps)
        assert row.columns * (2 if gate else 1) == {16: 16, 8: 32, 4: 64}[row.threads // 32]
        assert row.shared == 64 << 10


_MAIN = """
#include "matrix_words.h"
#include "matmul_nbits/matmul_nbits.cuh"
using namespace onnxopt;
int main() {
  auto b = emulation::read<unsigned char>("b", %(bytes)d);
  auto scales = emulation::read<unsigned short>("scales", %(scales)d);
  %(read)s
  std::vector<unsigned short> y(%(count)d);
  const DequantizeParams p{b.data(), scales.data(), %(zeros)s, y.data(), %(columns)d, %(depth)d, %(groups)d};
  emulation::launch(%(columns)d, 64, [&] {
    dequantize_nbits<%(dtype)s, %(bits)d, %(group)d, Zeros::%(kind)s, 64>(p);
  });
  emulation::write("y", y);
}
"""
_KINDS = {"middle": "kMiddle", "codes": "kCodes", "floats": "kFloats"}
_ZEROS = {"middle": "", "codes": "unsigned char", "floats": "unsigned short"}


@pytest.mark.parametrize(
    "weight",
    [
        Weight(5, 1000, zeros="codes"),
        Weight(3, 104, bits=8, group=16, zeros="floats", dtype="bfloat16"),
        Weight(4, 640, group=256),
    ],
)
def test_weights_as_floats(tmp_path: Path, weight: Weight) -> None:
    """Each is the exact one, rounded once."""
    inputs, matrix = weight.draw(9)
    for name, array in zip(("b", "scales", "zeros"), inputs, strict=False):
        array.tofile(tmp_path / name)
    of_zeros = _ZEROS[weight.zeros]
    read = f'auto zeros = emulation::read<{of_zeros}>("zeros", {inputs[-1].size});' if of_zeros else ""
    filled = {
        "bytes": inputs[0].size, "scales": inputs[1].size, "read": read, "count": matrix.size,
        "columns": weight.columns, "depth": weight.depth, "groups": weight.groups,
        "zeros": "zeros.data()" if of_zeros else "nullptr",
        "dtype": weight.dtype, "bits": weight.bits, "group": weight.group, "kind": _KINDS[weight.zeros],
    }  # fmt: skip
    emulated.run(tmp_path, _MAIN % filled)
    found = np.fromfile(tmp_path / "y", STORED[weight.dtype]).reshape(matrix.shape)
    ulp = 2.0**-11 if weight.dtype == "float16" else 2.0**-8
    np.testing.assert_allclose(found.astype(np.float64), matrix, rtol=1.01 * ulp, atol=6e-8)
