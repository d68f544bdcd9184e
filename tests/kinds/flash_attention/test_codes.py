"""Codes that an attention's results become in the kernel that attends: which are found, and what they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cases.flash_attention import Case, fused
from cases.table import Row
from onnxopt.codegen import generate
from onnxopt.program.flash_attention import AttentionCodes
from tests.support.emulation import flash_entry, kernel_launches

_ZEROS = {"uint8": 117, "int8": -5, "float8e4m3fn": 0}
_STEPS = {"uint8": 0.0043, "int8": 0.011, "float8e4m3fn": 0.0021}


@dataclasses.dataclass(frozen=True)
class Coded(Case):
    """An attention whose results become codes: 8-bit floats, or integers minus their zero point as float16."""

    codes: str = "uint8"

    @property
    def step(self) -> float:
        dtype = ml_dtypes.bfloat16 if self.dtype == "bfloat16" else np.float16
        return float(np.array(_STEPS[self.codes], dtype))

    @property
    def stored(self) -> str:
        return "float8e4m3fn" if self.codes == "float8e4m3fn" else "float16"

    def model(self) -> onnx.ModelProto:
        model = super().model()
        graph, is_float8 = model.graph, self.stored == "float8e4m3fn"
        element = TensorProto.BFLOAT16 if self.dtype == "bfloat16" else TensorProto.FLOAT16
        (attention,) = (node for node in graph.node if node.op_type == "MultiHeadAttention")
        attention.output[0] = "results"
        if is_float8:
            zero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], bytes(1), raw=True)
            graph.node.append(helper.make_node("QuantizeLinear", ["results", "step", "zero"], ["y"], name="q"))
        else:
            zero = numpy_helper.from_array(np.array(_ZEROS[self.codes], self.codes), "zero")
            graph.node.append(helper.make_node("QuantizeLinear", ["results", "step", "zero"], ["codes"], name="q"))
            graph.node.append(helper.make_node("DequantizeLinear", ["codes", "one", "zero"], ["d"], name="d"))
            graph.node.append(helper.make_node("Cast", ["d"], ["y"], name="c", to=TensorProto.FLOAT16))
            graph.initializer.append(numpy_helper.from_array(np.float32(1), "one"))
        graph.initializer.extend([zero, helper.make_tensor("step", element, [], [self.step])])
        graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FN if is_float8 else TensorProto.FLOAT16
        return model

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        exact = super().expected(feeds) / self.step
        if self.stored == "float8e4m3fn":
            return np.clip(exact, -448, 448)
        info, zero = np.iinfo(self.codes), _ZEROS[self.codes]
        return np.clip(exact, info.min - zero, info.max - zero)

    def worst(self, y: np.ndarray, expected: np.ndarray) -> float:
        """The largest error in units of what rounding results to 16 bits, and then to codes, allows."""
        found, eps = y.astype(np.float64), 2.0**-10 if self.dtype == "float16" else 2.0**-7
        of_codes = np.maximum(np.abs(expected) / 16, 2.0**-10) if self.stored == "float8e4m3fn" else 0.5
        of_results = 1.5 * eps * (np.abs(expected) + 1 / self.step)
        if self.stored == "float16" and (found != np.rint(found)).any():
            return float("inf")
        return float(np.max(np.abs(found - expected) / (of_codes + of_results), initial=0.0))


_CASES = (
    Coded(3, 49, 49, 2, 32, layout="split", codes="uint8"),
    Coded(2, 70, 70, 2, 64, layout="split", causal=True, codes="int8"),
    Coded(2, 40, 50, 2, 24, codes="float8e4m3fn"),
    Coded(1, 150, 150, 2, 64, layout="interleaved", codes="float8e4m3fn"),
    Coded(2, 17, 33, 1, 20, bias=(False, True), codes="uint8"),
    Coded(1, 9, 9, 3, 7, 11, codes="float8e4m3fn"),
    Coded(2, 33, 33, 2, 64, dtype="bfloat16", layout="split", codes="float8e4m3fn"),
)


def test_emulated_kernels_against_float64(tmp_path: Path) -> None:
    found = kernel_launches.results(tmp_path, Row("codes", _CASES), fused)
    assert {case for case, _ in found} == set(_CASES)
    wrong = [(case, symbol, e) for (case, symbol), (y, x) in found.items() if not (e := case.worst(y, x)) <= 1]
    assert not wrong


def test_emulated_without_products(tmp_path: Path) -> None:
    found = kernel_launches.results(tmp_path, Row("codes", _CASES[-1:]), fused, flash_entry.without_products)
    assert all(case.worst(y, x) <= 1 for (case, _), (y, x) in found.items())


@pytest.mark.parametrize("case", _CASES, ids=lambda case: f"{case.codes} {case.dtype} {case.queries}")
def test_codes_are_part_of_the_region(case: Coded) -> None:
    found = fused(case)
    (region,) = found.plan.regions
    low = None if case.stored == "float8e4m3fn" else float(np.iinfo(case.codes).min - _ZEROS[case.codes])
    assert region.meaning.codes == AttentionCodes(case.step, low, None if low is None else low + 255)
    assert region.meaning.outputs == (case.stored,) and [v.name for v in region.outputs] == ["y"]
    assert found.kernels[0].name.startswith("MultiHeadAttentionQuantizeLinear_")


def _changed(change) -> Coded:
    @dataclasses.dataclass(frozen=True)
    class Changed(Coded):
        def model(self) -> onnx.ModelProto:
            model = super().model()
            change(model.graph)
            return model

    return Changed(2, 20, 20, 2, 16, layout="split")


def _another_reader(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Relu", ["results"], ["z"], name="another"))
    graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT16, None))


def _codes_are_read(graph: onnx.GraphProto) -> None:
    graph.output.append(helper.make_tensor_value_info("codes", TensorProto.UINT8, None))


def _another_zero(graph: onnx.GraphProto) -> None:
    graph.initializer.append(numpy_helper.from_array(np.uint8(3), "other"))
    next(node for node in graph.node if node.name == "d").input[2] = "other"


def _another_step(graph: onnx.GraphProto) -> None:
    next(tensor for tensor in graph.initializer if tensor.name == "one").CopyFrom(
        numpy_helper.from_array(np.float32(2), "one")
    )


@pytest.mark.parametrize("change", [_another_reader, _codes_are_read, _another_zero, _another_step])
def test_results_that_others_read_are_stored_as_they_are(change) -> None:
    region = next(r for r in fused(_changed(change)).plan.regions if r.kind.name == "flash_attention")
    assert region.meaning.codes is None and region.meaning.outputs == ("float16",)


def test_the_text_divides_and_rounds_without_a_branch() -> None:
    (kernel,) = fused(_CASES[0]).kernels
    text = generate.generate([kernel])
    assert "divide_by_constant(narrow<Stored>(y)" in text and "round_to_code(x)" in text
    assert "using Result = float16;" in text


@pytest.mark.parametrize(
    ("codes", "outputs"),
    [
        (AttentionCodes(0.0, -1.0, 1.0), ("float16",)),
        (AttentionCodes(float("nan")), ("float8e4m3fn",)),
        (AttentionCodes(0.1, -1.0, 1.0), ("float8e4m3fn",)),
        (AttentionCodes(0.1), ("float16",)),
        (AttentionCodes(0.1, -1.5, 1.0), ("float16",)),
        (AttentionCodes(0.1, -1.0, 300.0), ("float16",)),
        (None, ("float8e4m3fn",)),
    ],
)
def test_a_bad_meaning(codes: AttentionCodes | None, outputs: tuple[str, ...]) -> None:
    meaning = fused(_CASES[0]).plan.regions[0].meaning
    meaning.verify()
    with pytest.raises(ValueError, match=r"codes|inputs"):
        dataclasses.replace(meaning, codes=codes, outputs=outputs).verify()
