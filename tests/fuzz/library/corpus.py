"""The corpus: kernel files of tiny models of every kind, with the shapes that their kernels are called with.

`python -m tests.fuzz.library.corpus` writes it anew, which a change of kernels.json's schema asks for. Each folder
holds the files of one kind. All share one fatbin of empty images.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import onnx_ir as ir

from cases import depthwise as depthwise_models
from cases import expanded_depthwise as expanded_models
from cases import experts as experts_models
from cases import flash_attention as flash_attention_models
from cases import group_norm as group_norm_models
from cases import image_convolution as image_convolution_models
from cases import squeeze_excite as squeeze_excite_models
from onnxopt.codegen import sealed_json
from tests.fuzz.library import kernel_files
from tests.support import graphs
from tests.support.kinds import block_graphs, convolution_graphs, packed_weights, pool_models
from tests.support.laid_out import laid_out

FOLDER = Path(__file__).with_name("corpus")
MEASURED_SCHEMA = 2  # of the files of MEASURED (custom_ops/kernel_file/measured/file.h)
MEASURED = {"launches.json": "pointwise", "gemm_algos.json": "gemm", "conv_plans.json": "convolution"}  # of which model
_ENDS = "int64[1] zero = {0}, int64[1] half = {4}, int64[1] all = {8}, int64[1] last = {-1}"
_HEADS = "int64[4] heads = {0, 0, 2, 8}"


@dataclasses.dataclass(frozen=True)
class Model:
    """A graph in onnx's text syntax, and the shapes of its inputs at each call."""

    inputs: str
    outputs: str
    body: str
    calls: tuple[tuple[kernel_files.Dims, ...], ...]
    constants: str = ""
    opset: int = 21

    def build(self) -> ir.Model:
        return graphs.graph(self.inputs, self.outputs, self.body, constants=self.constants, opset=self.opset)


MODELS = {
    "pointwise": Model(
        "float[N, 6, M] x, float[6, 1] c, float[M] b, int32[N, 6, M] k", "float[N, 6, M] y, int32[N, 6, M] q",
        "a = Mul(x, c)  s = Add(a, b)  g = Sigmoid(s)  y = Mul(s, g)  r = Mod(k, seven)  q = Div(k, three)",
        (((2, 6, 70), (6, 1), (70,), (2, 6, 70)), ((1, 6, 1), (6, 1), (1,), (1, 6, 1))),
        "int32 three = {3}, int32 seven = {7}",
    ),
    "half": Model(
        "float16[N, 64] x, float16[64] b, bool[N, 1] m", "float16[N, 64] y",
        "a = Add(x, b)  t = Tanh(a)  w = Where(m, t, x)  y = Mul(w, a)", (((5, 64), (64,), (5, 1)),),
    ),
    "rotary": Model(
        "float[N, 8] x, float[8] c", "float[N, 8] y, float[N, 8] z",
        "l = Slice(x, zero, half, one)  r = Slice(x, half, all, one)  m = Neg(r)  t = Concat<axis = 1>(m, l) "
        "y = Mul(t, c)  z = Tanh(y)", (((9, 8), (8,)),), f"{_ENDS}, int64[1] one = {{1}}",
    ),
    "padded": Model(
        "float[N, 3, 4, 5] x", "float[N, 4, 7, 6] y",
        "p = Pad(x, pads, fill)  t = Transpose<perm = [0, 2, 3, 1]>(p)  u = Transpose<perm = [0, 3, 1, 2]>(t) "
        "s = Exp(u)  y = Add(s, fill)", (((2, 3, 4, 5),),),
        "int64[8] pads = {0, 0, 2, 1, 0, 1, 1, 0}, float fill = {0.5}",
    ),
    "long": Model(
        "float[N, 600] a, float[N, 200] b", "float[N, 800] y",
        "r = Concat<axis = 1>(a, b)  m = Mod<fmod = 1>(r, three)  y = Exp(m)", (((3, 600), (3, 200)),),
        "float three = {3.5}",
    ),
    "transposed": Model(
        "float[N, 3, T, 8] x, float[8] b", "float[N, T, 3, 8] y",
        "t = Transpose<perm = [0, 2, 1, 3]>(x)  a = Add(t, b)  y = Sigmoid(a)", (((2, 3, 5, 8), (8,)),),
    ),
    "softmax": Model(
        "float[N, M] x, float[M] b", "float[N, M] y", "a = Add(x, b)  y = Softmax(a)",
        (((5, 33), (33,)), ((1, 3000), (3000,))),
    ),
    "norm": Model(
        "float16[N, T, 32] x, float16[N, T, 32] r, float16[32] g, float16[32] b", "float16[N, T, 32] y",
        "a = Add(x, r)  y = LayerNormalization(a, g, b)", (((2, 3, 32), (2, 3, 32), (32,), (32,)),),
    ),
    "groups": Model(
        "float[2, 6, 5, 4] x, float[6] g, float[6] b", "float[2, 6, 5, 4] y",
        "n = GroupNormalization<num_groups = 3>(x, g, b)  s = Sigmoid(n)  y = Mul(n, s)", (((2, 6, 5, 4), (6,), (6,)),),
    ),
    "strided": Model(
        "float[N, C, W] x", "float[N, 1, W] m, float[N, C, W] y",
        "m = ReduceMax(x, axis)  y = Sub(x, m)", (((2, 37, 6),),), "int64[1] axis = {1}",
    ),
    "joined": Model(
        "float[N, T, 16] x, float[8] g, float[N, 1, T, 8] c", "float[N, 2, T, 8] y",
        "v = Reshape(x, heads) n = RMSNormalization(v, g) t = Transpose<perm = [0, 2, 1, 3]>(n) "
        "ac = Mul(t, c) h = Slice(t, zero, half, last) k = Slice(t, half, all, last) nk = Neg(k) "
        "r = Concat<axis = -1>(nk, h) y = Add(ac, r)",
        (((2, 3, 16), (8,), (2, 1, 3, 8)),), f"{_ENDS}, {_HEADS}", 23,
    ),
    "scan": Model(
        "float[N, T, 3] x, float[3] g", "float[N, T, 3] y",
        "z = Mul(x, g)  s = CumSum<exclusive = 1, reverse = 1>(z, axis)  y = Add(s, g)", (((2, 50, 3), (3,)),),
        "int64 axis = {1}",
    ),
    "gemm": Model(
        "float[B, S, 8] x, float[B, S, 12] r, float[8, 12] w, float[12] b, float[12, 8] u",
        "float[B, S, 12] y, float[B, S, 8] z",
        "m = MatMul(x, w)  s = Add(m, b)  y = Add(s, r)  t = MatMul(y, u)  z = Relu(t)",
        (((2, 5, 8), (2, 5, 12), (8, 12), (12,), (12, 8)),),
    ),
    "codes": Model(
        "uint8[B, S, 8] x, uint8[B, 8, 12] k, float[12] b, float[B, S, 12] r", "float[B, S, 12] y",
        "one = DequantizeLinear(x, unit, z)  h = Cast<to = 10>(one)  n = Shape(h)  c = Reshape(x, n)  "
        "two = DequantizeLinear(k, unit, z)  i = Cast<to = 10>(two)  o = Shape(i)  d = Reshape(k, o)  "
        "f = DequantizeLinear(c, s, z)  g = DequantizeLinear(d, s, z)  m = MatMul(f, g)  a = Add(m, b)  y = Add(a, r)",
        (((2, 5, 8), (2, 8, 12), (12,), (2, 5, 12)),), "float unit = {1}, float s = {0.1}, uint8 z = {7}",
    ),
    "float8": Model(
        "float8e4m3fn[B, S, 16] x, float8e4m3fn[48, 16] k, float[B, S, 48] r", "float[B, S, 48] y",
        "c = Cast<to = 1>(x)  a = Mul(c, s)  d = Cast<to = 1>(k)  t = Transpose<perm = [1, 0]>(d)  b = Mul(t, s)  "
        "m = MatMul(a, b)  y = Add(m, r)",
        (((2, 5, 16), (48, 16), (2, 5, 48)), ((1, 3, 16), (48, 16), (1, 3, 48))), "float s = {0.1}",
    ),
    "gelu": Model(
        "float16[N, 16] x, float16[16, 24] w, float16[24] b, float16[24, 16] v", "float16[N, 16] y",
        "m = MatMul(x, w)  a = Add(m, b)  g = Gelu(a)  y = MatMul(g, v)",
        (((3, 16), (16, 24), (24,), (24, 16)), ((300, 16), (16, 24), (24,), (24, 16))),
    ),
    "parts": Model(
        "float16[N, 16] x, float16[24, 16] w, float16[24] b",
        "float16[N, 8] q, float16[N, 8] k, float16[N, 8] v",
        "t = Transpose<perm = [1, 0]>(w)  m = MatMul(x, t)  a = Add(m, b)"
        "  q, k, v = Split<axis = -1, num_outputs = 3>(a)",
        (((3, 16), (24, 16), (24,)), ((70, 16), (24, 16), (24,))),
    ),
}  # fmt: skip

DEPTHWISE = {
    "depthwise": depthwise_models.Case(
        (2, 9, 10, 16), pads=(1, 1, 1, 1), dtype="float16", in_front="bias_silu", behind="gelu_residual_scale",
        skip=True, known=False,
    ),
    "depthwise_strided": depthwise_models.Case(
        (2, 9, 10, 8), (5, 5), (2, 2), auto_pad="SAME_UPPER", in_front="relu6", behind="residual"
    ),
    "depthwise_walking": depthwise_models.Case(
        (1, 8, 19, 4), (7, 9), (1, 2), (1, 2), (3, 8, 2, 7), in_front="scale", behind="silu", known=False
    ),
    "depthwise_expanded": expanded_models.ExpandedCase(
        (2, 9, 10, 24), strides=(2, 2), pads=(1, 1, 1, 1), wide=40, in_front="bias_silu", behind="silu", known=False
    ),
}  # fmt: skip
GROUP_NORMS = {
    "group_norm": group_norm_models.Case(
        (2, 9, 10, 24), 4, "float16", "spelled_open", "bias_time_silu", "residual", known=False
    ),
    "group_norm_plain": group_norm_models.Case((1, 8, 8, 16), 16, form="instance", behind="scale_shift"),
}
SQUEEZE_EXCITES = {
    "squeeze_excite": squeeze_excite_models.Case((2, 9, 10, 16), 4, "float16", in_front=True, known=False),
    "squeeze_products": squeeze_excite_models.Case((2, 3, 4, 12), 5, depthwise=False, form="gemm", bias=False),
}
EXPERTS = experts_models.Case(3, 4, 2, 64, 32, "float16")
IMAGES = {
    "image_convolution": image_convolution_models.Case(
        (2, 3, 9, 10), 16, (3, 3), (2, 2), (1, 1, 1, 1), behind="prelu", appended=1, known=False
    ),
    "image_of_pixels": image_convolution_models.Case(
        (1, 2, 8, 11), 24, (2, 5), (1, 3), auto_pad="SAME_LOWER", dtype="bfloat16", behind="silu", planes=False
    ),
    "image_of_bytes": image_convolution_models.Case(
        (1, 3, 9, 7), 8, (3, 3), (2, 2), (1, 1, 1, 1), appended=1, front="normalize", image="uint8", known=False
    ),
}
ATTENTIONS = {
    "flash_attention": flash_attention_models.Case(4, 9, 9, 2, 24, layout="split", bias=(True, True), period=2),
    "flash_attention_apart": flash_attention_models.Case(
        2, 5, 20, 3, 16, 8, "bfloat16", "heads", causal=True, known=False
    ),
}
PACKED = {  # weights, and rows of each call
    "packed": (packed_weights.Weight(40, 80, zeros="codes"), (3, 70)),
    "packed_bytes": (packed_weights.Weight(24, 64, bits=8, group=16, zeros="floats"), (9,)),
}
POOLS = {
    "max_pool": pool_models.of("max", "float16", (3, 2), strides=(2, 1), pads=(1, 1, 1, 0), ceil_mode=True),
    "average_pool": pool_models.of("average", "float32", (3, 3), strides=(2, 2), auto_pad="SAME_LOWER"),
    "counted_pool": pool_models.of("average", "float32", (2, 3), pads=(0, 1, 1, 2), count_include_pad=True),
}
CONVOLUTIONS = {
    "convolution": convolution_graphs.Layer(
        pads=(1, 1, 1, 1), residual="before", activation="relu", dtype="float16", symbolic=("N", "H", "W")
    ),
    "grouped": convolution_graphs.Layer(
        kernel=(3, 2), strides=(2, 1), auto_pad="SAME_LOWER", group=4, activation="silu"
    ),
    "added_last": convolution_graphs.Layer(
        h=8, c=64, k=64, kernel=(2, 3), dilations=(2, 1), pads=(2, 1, 0, 1), residual="last", activation="silu",
        dtype="float16",
    ),
    "spread": convolution_graphs.Layer(
        kernel=(3, 2), strides=(2, 3), pads=(1, 0, 0, 1), output_padding=(1, 2), group=4, transposed=True,
        activation="relu", dtype="float16",
    ),
    "sloped": convolution_graphs.Layer(
        h=8, c=64, k=64, pads=(1, 1, 1, 1), residual="last", activation="prelu", dtype="float16"
    ),
    "bounded": convolution_graphs.Layer(h=8, c=64, k=64, pads=(1, 1, 1, 1), activation="clip", dtype="float16"),
}  # fmt: skip
BLOCK = block_graphs.Halves(n=1, h=3, w=4, c=8, half=32, depth=1)

LAUNCHES = [
    {"gpu": "NVIDIA H200", "size": "840", "microseconds": 3.1, "rule_microseconds": 3.4},
    {"gpu": "NVIDIA H100", "size": "165 in rows of 33", "microseconds": 2.5, "rule_microseconds": 2.75},
]  # fmt: skip
PRODUCTS: list[dict[str, Any]] = [
    {"gpu": gpu, "cublaslt": 130100, "product": "float32 m10 n12 k8 bias residual", "algorithm": [f"{k:016x}"] * 8,
     "microseconds": 9.1, "heuristic_microseconds": 9.9}
    for k, gpu in enumerate(("NVIDIA H200", "NVIDIA H100"))
]  # fmt: skip
PRODUCTS.append(
    {
        "gpu": "NVIDIA H200",
        "cublaslt": 130100,
        "about": "float32 m1 n12 k8 bias residual",
        "algorithms": [[f"{k:016x}"] * 8 for k in range(3)],
    }
)
PRODUCTS[0]["cudnn"] = {"version": 91900, "engine": 4, "knobs": [[3, 1], [11, 64]], "algorithm_microseconds": 9.6}
PLANS = [
    {"gpu": gpu, "cudnn": 91900, "engine": 4, "knobs": [[3, 1], [11, 64]], "microseconds": 9.1,
     "convolution": "float16 x 2x9x11x16 w 24x3x3x16 y 9x11 pads 1x1x1x1 residual bias relu",
     "heuristic_microseconds": 9.9}
    for gpu in ("NVIDIA H200", "NVIDIA H100")
] + [
    {"gpu": "NVIDIA H200", "cudnn": 91900, "engine": 7, "knobs": [[3, 2]],
     "about": "float16 x 1x16x16x16 w 24x3x3x16 y 16x16 pads 1x1x1x1 residual bias relu"}
]  # fmt: skip


def write() -> None:
    """Write the corpus anew."""
    made = {name: kernel_files.kernel_file(model.build(), model.calls) for name, model in MODELS.items()}
    made["attention"] = kernel_files.attention()
    made["attention_masked"] = kernel_files.masked_attention()
    made |= {name: kernel_files.depthwise(case) for name, case in DEPTHWISE.items()}
    made |= {name: kernel_files.group_norm(case) for name, case in GROUP_NORMS.items()}
    made |= {name: kernel_files.squeeze_excite(case) for name, case in SQUEEZE_EXCITES.items()}
    made["experts"] = kernel_files.experts(EXPERTS)
    made["experts_of_products"] = kernel_files.experts(EXPERTS, of_products=True)
    made |= {name: kernel_files.image_convolution(case) for name, case in IMAGES.items()}
    made |= {name: kernel_files.flash_attention(case) for name, case in ATTENTIONS.items()}
    made |= {name: kernel_files.packed(*case) for name, case in PACKED.items()}
    made["packed_gate"] = kernel_files.packed_gate()
    for name, pool in POOLS.items():
        made[name] = kernel_files.kernel_file(pool_models.model(pool), (((2, 9, 10, 8),), ((1, 3, 2, 3),)))
    made |= {name: kernel_files.convolution(layer) for name, layer in CONVOLUTIONS.items()}
    made["block"] = kernel_files.kernel_file(laid_out(BLOCK.model()), ((BLOCK.feeds()["x"].shape,),))
    (of_usual,) = (row for row in made["block"]["kernels"] if row["kind"] == "block")
    of_usual["usual"] = made["block"]["cases"][of_usual["name"]]
    for name, document in made.items():
        _write(str(document["kernels"][0]["kind"]), name, document)
    (FOLDER / "kernels.fatbin").write_bytes(kernel_files.FATBIN)
    kernel = made["pointwise"]["kernels"][0]
    known = {"kernel": kernel["name"], "symbol": kernel["variants"][-1]["symbol"]}
    for name, entries in zip(MEASURED, ([entry | known for entry in LAUNCHES], PRODUCTS, PLANS), strict=True):
        _write("measured", name.removesuffix(".json"), {"entries": entries, "schema": MEASURED_SCHEMA})


def _write(folder: str, name: str, document: dict[str, Any]) -> None:
    (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    (FOLDER / folder / f"{name}.json").write_text(sealed_json.seal(document))


@functools.cache
def originals() -> dict[str, dict[str, bytes]]:
    """The files beside a library, by the name of the model: kernels.json, the fatbin, and what was measured."""
    found = {}
    for path in sorted(FOLDER.glob("*/*.json"), key=lambda path: path.name):
        if path.parent.name == "measured":
            continue
        found[path.stem] = {
            "kernels.json": path.read_bytes(),
            "kernels.fatbin": (FOLDER / "kernels.fatbin").read_bytes(),
        }
    for name, model in MEASURED.items():
        found[model][name] = (FOLDER / "measured" / name).read_bytes()
    return found


if __name__ == "__main__":
    write()
