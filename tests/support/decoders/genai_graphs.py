"""Decoders as onnxruntime-genai's builder writes them: GroupQueryAttention, norms that add, plain or packed weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_LONGEST = 512  # tokens that the rotary tables have positions of


@dataclasses.dataclass(frozen=True)
class Form:
    """What the builder varies. bits: of the weights, 16 for plain MatMul. packed: one product of q, k and v. rotary:
    where q and k are rotated, in GroupQueryAttention or by RotaryEmbedding nodes in front ("inside", "outside", "").
    bias: of q, k and v. head_norms: of q and k, as Qwen 3 has them; then they are rotated outside.
    """

    layers: int = 2
    bits: int = 4
    zero_points: bool = False
    dtype: int = TensorProto.FLOAT
    packed: bool = False
    rotary: str = "inside"
    bias: bool = False
    head_norms: bool = False


def genai(**form: Any) -> onnx.ModelProto:
    """A decoder as onnxruntime-genai's builder writes it: hidden 64, 4 heads of 16, 2 of keys, blocks of 32."""
    return _Genai(Form(**form)).model()


class _Genai:
    hidden, heads, groups, size, inner, vocabulary, block = 64, 4, 2, 16, 96, 50, 32

    def __init__(self, form: Form) -> None:
        self.form, self.layers, self.bits, self.dtype = form, form.layers, form.bits, form.dtype
        self.rng = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, inputs: list[str], out: str | list[str], domain: str = "", **attributes: object) -> str:
        outputs = [out] if isinstance(out, str) else out
        self.nodes.append(helper.make_node(kind, inputs, outputs, outputs[0] + "_node", domain=domain, **attributes))
        return outputs[0]

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, name: str, *dims: int, scale: float = 1.0, mean: float = 0.0) -> str:
        array = self.rng.standard_normal(dims) * scale + mean
        return self.constant(name, array.astype(helper.tensor_dtype_to_np_dtype(self.dtype)))

    def product(self, x: str, out: str, columns: int, rows: int) -> str:
        if self.bits == 16:
            return self.op("MatMul", [x, self.floats(f"{out}.weight", rows, columns, scale=rows**-0.5)], out)
        blocks = -(-rows // self.block)
        packed = self.rng.integers(0, 256, (columns, blocks, self.block * self.bits // 8), dtype=np.uint8)
        scales = self.floats(f"{out}.scales", columns, blocks, scale=0.002, mean=0.01)
        inputs = [x, self.constant(f"{out}.weight", packed), scales]
        if self.form.zero_points:
            width = -(-blocks * self.bits // 8)
            inputs.append(
                self.constant(f"{out}.zero_points", self.rng.integers(0, 256, (columns, width), dtype=np.uint8))
            )
        return self.op(
            "MatMulNBits", inputs, out, "com.microsoft", K=rows, N=columns, bits=self.bits, block_size=self.block,
            accuracy_level=4 if self.dtype == TensorProto.FLOAT else 0,
        )  # fmt: skip

    def layer(self, k: int, x: str, skip: str) -> tuple[str, str]:
        """x: the norm's result. Returns the next norm's result, and the sum that it normalized."""
        p = f"layers.{k}."
        attention = self.attention(k, p, self.projected(p, x))
        out = self.product(attention, p + "o", self.hidden, self.heads * self.size)
        x, skip = self.norm(skip, out, p + "post")
        gate, up = (self.product(x, p + n, self.inner, self.hidden) for n in ("gate", "up"))
        act = self.op("Mul", [gate, self.op("Sigmoid", [gate], p + "sigmoid")], p + "act")
        down = self.product(self.op("Mul", [act, up], p + "gated"), p + "down", self.hidden, self.inner)
        return self.norm(skip, down, p + "next")

    def projected(self, p: str, x: str) -> list[str]:
        """q, k and v, or the one product that holds them."""
        widths = {"q": self.heads * self.size, "k": self.groups * self.size, "v": self.groups * self.size}
        if self.form.packed:
            widths = {"qkv": sum(widths.values())}
        parts = [self.product(x, p + n, width, self.hidden) for n, width in widths.items()]
        if self.form.bias:
            parts = [
                self.op("Add", [part, self.floats(part + ".bias", width)], part + ".biased")
                for part, width in zip(parts, widths.values(), strict=True)
            ]
        if self.form.head_norms:
            parts[:2] = [self.normed_heads(part) for part in parts[:2]]
        if self.form.rotary == "outside":
            heads = (self.heads, self.groups)
            parts[:2] = [self.rotated(part, n) for part, n in zip(parts[:2], heads, strict=True)]
        return [*parts, "", ""][:3]

    def normed_heads(self, x: str) -> str:
        each = self.op("Reshape", [x, self.constant(x + ".each", np.array([0, 0, -1, self.size]))], x + ".heads")
        inputs = [each, self.floats(x + ".norm.weight", self.size, scale=0.1, mean=1.0)]
        normed = self.op("SimplifiedLayerNormalization", inputs, x + ".norm", axis=-1, epsilon=1e-5, stash_type=1)
        flat = self.constant(x + ".all", np.array([0, 0, -1]))
        return self.op("Reshape", [normed, flat], x + ".normed")

    def rotated(self, x: str, heads: int) -> str:
        inputs = [x, "position_ids", "cos_cache", "sin_cache"]
        return self.op("RotaryEmbedding", inputs, x + ".rotated", "com.microsoft", num_heads=heads, interleaved=0)

    def attention(self, k: int, p: str, parts: list[str]) -> str:
        caches = [f"past_key_values.{k}.{n}" for n in ("key", "value")]
        present = [f"present.{k}.{n}" for n in ("key", "value")]
        inside = self.form.rotary == "inside"
        tables = ["cos_cache", "sin_cache"] if inside else []
        return self.op(
            "GroupQueryAttention", [*parts, *caches, "lengths", "total", *tables],
            [p + "attention", *present], "com.microsoft", num_heads=self.heads, kv_num_heads=self.groups,
            scale=self.size**-0.5, do_rotary=int(inside), rotary_interleaved=0, local_window_size=-1, softcap=0.0,
        )  # fmt: skip

    def norm(self, skip: str, x: str, name: str) -> tuple[str, str]:
        weight = self.floats(name + ".weight", self.hidden, scale=0.1, mean=1.0)
        outputs = [name, "", "", name + ".sum"]
        self.op("SkipSimplifiedLayerNormalization", [skip, x, weight], outputs, "com.microsoft", epsilon=1e-5)
        return name, name + ".sum"

    def embedded(self) -> str:
        if self.bits == 16:
            return self.op("Gather", [self.floats("table", self.vocabulary, self.hidden), "input_ids"], "embedded")
        blocks = self.hidden // self.block
        table = self.rng.integers(0, 256, (self.vocabulary, self.hidden * self.bits // 8), dtype=np.uint8)
        inputs = [
            self.constant("table", table),
            "input_ids",
            self.floats("table.scales", self.vocabulary, blocks, scale=0.01),
        ]
        return self.op(
            "GatherBlockQuantized", inputs, "embedded", "com.microsoft", bits=self.bits, block_size=self.block,
            gather_axis=0, quantize_axis=1,
        )  # fmt: skip

    def model(self) -> onnx.ModelProto:
        self.op("ReduceSum", ["attention_mask", self.constant("one", np.array([1]))], "sums", keepdims=0)
        self.op("Cast", [self.op("Sub", ["sums", "one"], "last")], "lengths", to=TensorProto.INT32)
        self.op(
            "Gather", [self.op("Shape", ["attention_mask"], "mask_shape"), self.constant("at", np.array(1))], "count"
        )
        self.op("Cast", ["count"], "total", to=TensorProto.INT32)
        angles = np.outer(np.arange(_LONGEST), 10000.0 ** (-np.arange(self.size // 2) / (self.size // 2)))
        storage = helper.tensor_dtype_to_np_dtype(self.dtype)
        self.constant("cos_cache", np.cos(angles).astype(storage))
        self.constant("sin_cache", np.sin(angles).astype(storage))
        skip = self.embedded()
        weight = self.floats("first.weight", self.hidden, scale=0.1, mean=1.0)
        x = self.op("SimplifiedLayerNormalization", [skip, weight], "first", axis=-1, epsilon=1e-5, stash_type=1)
        for k in range(self.layers):
            x, skip = self.layer(k, x, skip)
        self.product(x, "logits", self.vocabulary, self.hidden)
        return helper.make_model(
            helper.make_graph(self.nodes, "genai", self.inputs(), self.outputs(), self.constants),
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10,
        )  # fmt: skip

    def inputs(self) -> list[onnx.ValueInfoProto]:
        ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
        mask = helper.make_tensor_value_info(
            "attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]
        )
        positions = helper.make_tensor_value_info("position_ids", TensorProto.INT64, ["batch_size", "sequence_length"])
        outside = [positions] if self.form.rotary == "outside" else []
        return [ids, mask, *outside, *self._caches("past_key_values", "past_sequence_length")]

    def outputs(self) -> list[onnx.ValueInfoProto]:
        dims = ["batch_size", "sequence_length", self.vocabulary]
        logits = helper.make_tensor_value_info("logits", self.dtype, dims)
        return [logits, *self._caches("present", "total_sequence_length")]

    def _caches(self, name: str, length: str) -> list[onnx.ValueInfoProto]:
        dims = ["batch_size", self.groups, length, self.size]
        return [
            helper.make_tensor_value_info(f"{name}.{k}.{part}", self.dtype, dims)
            for k in range(self.layers)
            for part in ("key", "value")
        ]
