"""Regions to measure: those that onnxopt finds in exported models, at the shapes that they have there, and chains."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import math
import pathlib
import tempfile
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir
from onnx import helper

from benchmarks.cases.chains import ONNX_DTYPES, Chain
from benchmarks.cases.gpu_chains import CHAINS
from benchmarks.support import skeletons

MODELS = ("bert", "vit", "llama", "convnext", "efficientnet", "unet", "whisperenc")
_LARGEST = 9  # regions of one model, those that move most
_OPSET = 20


@dataclasses.dataclass(frozen=True)
class Case:
    """A region as a model of its own. group: for the table."""

    name: str
    group: str
    model: onnx.ModelProto


def from_models(names: tuple[str, ...] = MODELS) -> Iterator[Case]:
    """Different pointwise regions with static shapes of the skeletons in .gpu/."""
    from benchmarks.support.fusing import fuse
    from onnxopt.graph import normalize, read
    from onnxopt.kinds.pointwise.kind import POINTWISE

    seen: set[str] = set()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "source.onnx"
            onnx.save(skeletons.original(name), path)
            model = normalize.normalize(read.load(path).model).model
            plan = fuse(model)
            cases = []
            for region in plan.regions:
                if region.kind is not POINTWISE:
                    continue
                proto = _model(region, plan.shapes, model.opset_imports)
                if proto is None:
                    continue
                key = _key(proto)
                if key not in seen:
                    seen.add(key)
                    cases.append((region.traffic.bytes_after or 0, proto, region))
        cases.sort(key=lambda c: -c[0])
        for k, (_, proto, region) in enumerate(cases[:_LARGEST]):
            ops = "".join(n.op_type for n in region.nodes[:3])
            yield Case(f"{name}_{k}_{ops}", f"model {name}", proto)
        del model, plan, cases
        gc.collect()


def _key(model: onnx.ModelProto) -> str:
    """What a region computes, whatever its values are called."""
    names: dict[str, str] = {}
    rows = []
    for value in (*model.graph.input, *model.graph.output):
        names.setdefault(value.name, str(len(names)))
        rows.append((names[value.name], value.type.SerializeToString()))
    constants = {t.name: t.raw_data for t in model.graph.initializer}
    for node in model.graph.node:
        for value_name in (*node.input, *node.output):
            names.setdefault(value_name, str(len(names)))
        operands = [constants.get(i, names[i]) for i in node.input]
        rows.append((node.op_type, operands, [a.SerializeToString() for a in node.attribute]))
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def _model(region: object, shapes: object, opsets: dict[str, int]) -> onnx.ModelProto | None:
    """The region's nodes as a model; None where a shape is symbolic."""
    infos: dict[str, onnx.ValueInfoProto] = {}
    for value in (*region.inputs, *region.outputs):  # type: ignore[attr-defined]
        dims, dtype = shapes.dims(value), shapes.dtype(value)  # type: ignore[attr-defined]
        if dims is None or dtype is None or any(not isinstance(d, int) for d in dims):
            return None
        infos[value.name] = helper.make_tensor_value_info(value.name, _element_type(dtype.name), list(dims))
    nodes = [ir.serde.serialize_node(n) for n in region.nodes]  # type: ignore[attr-defined]
    produced = {v.name for n in region.nodes for v in n.outputs}  # type: ignore[attr-defined]
    held: dict[str, onnx.TensorProto] = {}
    for node in region.nodes:  # type: ignore[attr-defined]
        for value in node.inputs:
            if value is None or value.name in infos or value.name in produced or value.name in held:
                continue
            held[value.name] = ir.serde.serialize_tensor(ir.Tensor(value.const_value.numpy(), name=value.name))
    graph = helper.make_graph(
        nodes, "region", [infos[v.name] for v in region.inputs], [infos[v.name] for v in region.outputs],  # type: ignore[attr-defined]
        list(held.values()),
    )  # fmt: skip
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items() if domain == ""]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _element_type(dtype: str) -> int:
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    return int(getattr(onnx.TensorProto, names.get(dtype, dtype.upper())))


_AT_256MB = (
    "add_relu", "fma_tanh_scale", "swiglu_residual", "bias_gelu_residual", "affine_relu_residual",
    "channel_affine_hardswish", "squeeze_excite", "masked_scores", "masked_where", "odd_size", "odd_bias",
    "two_outputs",
)  # fmt: skip
_AT_16MB = ("swiglu_residual", "bias_gelu_residual", "channel_affine_hardswish", "masked_scores", "odd_bias")
_AT_1MB = (
    "add_relu", "fma_tanh_scale", "swiglu_residual", "bias_gelu_residual", "squeeze_excite", "masked_scores",
    "odd_bias",
    "two_outputs",
)  # fmt: skip


def chains() -> Iterator[Case]:
    """The chains of benchmarks/cases/gpu_chains.py with tensors of about 256 MB, 16 MB and 1 MB."""
    by_name = {c.name: c for c in CHAINS}
    for label, size, names in (
        ("256MB", 256 << 20, _AT_256MB),
        ("16MB", 16 << 20, _AT_16MB),
        ("1MB", 1 << 20, _AT_1MB),
    ):
        for name in names:
            yield Case(f"{name}_{label}", f"chain {label}", resized(by_name[name], size).model())


def resized(chain: Chain, size: int) -> Chain:
    """The chain with its first dim changed so that a tensor of its shape has about `size` bytes."""
    element = 2 if "16" in chain.dtype else 4
    first = chain.shape[0]
    wanted = max(1, round(size / element / math.prod(chain.shape[1:])))

    def changed(shape: tuple[int, ...]) -> tuple[int, ...]:
        whole = len(shape) == len(chain.shape) and shape[0] == first
        return (wanted, *shape[1:]) if whole else shape

    sides = {k: (changed(v[0]), v[1]) if v and isinstance(v[-1], str) else changed(v) for k, v in chain.sides.items()}
    return dataclasses.replace(chain, shape=changed(chain.shape), sides=sides)


def spelled() -> Iterator[Case]:
    """Index operations that the skeletons lack: window partition and shift, gated products, layout moves."""
    for name, group, inputs, outputs, body, constants in _SPELLED:
        yield Case(name, group, _parsed(inputs, outputs, body, constants))


_ROLL = (
    "a1 = Slice(t, s3, big, ax1)  a2 = Slice(t, s0, s3, ax1)  a = Concat<axis=1>(a1, a2)  "
    "b1 = Slice(a, s3, big, ax2)  b2 = Slice(a, s0, s3, ax2)  b = Concat<axis=2>(b1, b2)  "
)
_SPELLED = (
    (
        "swin_shift_and_partition", "index", "float16[64, 56, 56, 96] x, float16[96] scale",
        "float16[64, 8, 8, 7, 7, 96] y",  # not [4096, 49, 96]: ONNX Runtime copies a view that is bound as an output
        f"t = Mul(x, scale)  {_ROLL} r = Reshape(b, s6)  y = Transpose<perm=[0,1,3,2,4,5]>(r)",
        "int64[1] s3 = {3}, int64[1] s0 = {0}, int64[1] big = {9223372036854775807}, int64[1] ax1 = {1}, "
        "int64[1] ax2 = {2}, int64[6] s6 = {64, 8, 7, 8, 7, 96}",
    ),
    (
        "swin_reverse_and_add", "index", "float16[4096, 49, 96] w, float16[64, 3136, 96] x", "float16[64, 3136, 96] y",
        "r = Reshape(w, s6)  p = Transpose<perm=[0,1,3,2,4,5]>(r)  q = Reshape(p, s3d)  y = Add(x, q)",
        "int64[6] s6 = {64, 8, 8, 7, 7, 96}, int64[3] s3d = {64, 3136, 96}",
    ),
    (
        "glu_split_silu", "index", "float16[4096, 16384] x", "float16[4096, 8192] y",
        "g, u = Split<axis=1, num_outputs=2>(x)  s = Sigmoid(g)  a = Mul(g, s)  y = Mul(a, u)", "",
    ),
    (
        "qkv_split_heads", "index", "float16[32, 512, 2304] x",
        "float16[32, 12, 512, 64] q, float16[32, 12, 512, 64] k, float16[32, 12, 512, 64] v",
        "a, b, c = Split<axis=2, num_outputs=3>(x)  a4 = Reshape(a, s)  b4 = Reshape(b, s)  c4 = Reshape(c, s)  "
        "q = Transpose<perm=[0,2,1,3]>(a4)  k = Transpose<perm=[0,2,1,3]>(b4)  v = Transpose<perm=[0,2,1,3]>(c4)",
        "int64[4] s = {32, 512, 12, 64}",
    ),
    (
        "nchw_to_nhwc_bias_relu", "transpose", "float16[64, 192, 56, 56] x, float16[192] b",
        "float16[64, 56, 56, 192] y",
        "t = Transpose<perm=[0,2,3,1]>(x)  a = Add(t, b)  y = Relu(a)", "",
    ),
    (
        "nhwc_to_nchw_scale_add", "transpose", "float16[64, 56, 56, 192] x, float16[192] g, float16[64, 192, 56, 56] r",
        "float16[64, 192, 56, 56] y", "s = Mul(x, g)  t = Transpose<perm=[0,3,1,2]>(s)  y = Add(r, t)", "",
    ),
    (
        "transpose_gelu_float32", "transpose", "float[8192, 8192] x", "float[8192, 8192] y",
        "g = Gelu(x)  y = Transpose<perm=[1,0]>(g)", "",
    ),
    (
        "transpose_odd", "transpose", "float16[8191, 8193] x, float16[8193, 8191] z", "float16[8193, 8191] y",
        "t = Transpose<perm=[1,0]>(x)  y = Add(t, z)", "",
    ),
    (
        "space_to_depth_relu", "transpose", "float16[8, 64, 256, 256] x", "float16[8, 256, 128, 128] y",
        "d = SpaceToDepth<blocksize=2>(x)  y = Relu(d)", "",
    ),
    (
        "rgb_to_nhwc", "transpose", "float16[64, 3, 224, 224] x", "float16[64, 224, 224, 3] y",
        "t = Transpose<perm=[0,2,3,1]>(x)  y = Relu(t)", "",
    ),
    (
        "nhwc_to_nchw_7x7", "transpose", "float16[16, 7, 7, 768] x, float16[768] g, float16[16, 768, 7, 7] r",
        "float16[16, 768, 7, 7] y", "s = Mul(x, g)  t = Transpose<perm=[0,3,1,2]>(s)  y = Add(r, t)", "",
    ),
    (
        "nhwc_bias_relu_256MB", "nhwc", "float16[128, 56, 56, 384] x, float16[384] b", "float16[128, 56, 56, 384] y",
        "a = Add(x, b)  y = Relu(a)", "",
    ),
    (
        "masked_odd_columns", "4-d broadcast", "float16[16, 12, 500, 501] x, float16[16, 1, 1, 501] m",
        "float16[16, 12, 500, 501] y", "a = Abs(x)  y = Add(a, m)", "",
    ),
    (
        "pad_and_add", "index", "float16[32, 256, 56, 56] x, float16[32, 256, 58, 58] z", "float16[32, 256, 58, 58] y",
        "p = Pad(x, pads)  r = Relu(p)  y = Add(r, z)", "int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}",
    ),
    (
        "depth_to_space_silu", "index", "float16[8, 256, 128, 128] x", "float16[8, 64, 256, 256] y",
        "d = DepthToSpace<blocksize=2, mode=\"CRD\">(x)  s = Sigmoid(d)  y = Mul(d, s)", "",
    ),
)  # fmt: skip


_DTYPES = ("bfloat16", "float32", "float64", "int64", "int32", "int8", "uint8")
_KINDS = {  # of broadcasts: shapes of x and of the other operand, N to be chosen; nodes
    "contiguous": ("[N, 4096]", "[N, 4096]", "a = Add(x, z)  y = Max(a, z)"),
    "contiguous_odd": ("[N, 4099]", "[N, 4099]", "a = Add(x, z)  y = Max(a, z)"),
    "bias": ("[N, 4096]", "[4096]", "a = Add(x, z)  y = Max(a, z)"),
    "bias_odd": ("[N, 4099]", "[4099]", "a = Add(x, z)  y = Max(a, z)"),
    "channel": ("[N, 64, 64, 64]", "[64, 1, 1]", "a = Add(x, z)  y = Max(a, z)"),
    "nhwc": ("[N, 56, 56, 384]", "[384]", "a = Add(x, z)  y = Max(a, z)"),
    "turned": ("[4096, N]", "[4096]", "a = Transpose(x)  b = Add(a, z)  y = Max(b, z)"),
    "turned_odd": ("[4099, N]", "[4099]", "a = Transpose(x)  b = Add(a, z)  y = Max(b, z)"),
}
_MASKED = {
    "bool_mask": ("float16[N, 4096] x, bool[N, 4096] m", "float16[N, 4096] y", "a = Where(m, x, zero)  y = Relu(a)"),
    "bool_mask_of_rows": ("float[N, 4096] x, bool[N, 1] m", "float[N, 4096] y", "a = Where(m, x, zero)  y = Relu(a)"),
    "bool_result": ("float16[N, 4096] x, bool[N, 4096] m", "bool[N, 4096] y", "a = Greater(x, zero)  y = And(a, m)"),
}


def sized(kind: str, dtypes: Iterable[str], label: str, size: int) -> Iterator[Case]:
    """A region of each of these dtypes, whose operand x has about `size` bytes."""
    shape, other, body = _KINDS[kind]
    for dtype in dtypes:
        rest = math.prod(int(n) for n in shape.strip("[]").split(", ") if n != "N")
        wanted = max(1, size // _bytes(dtype) // rest)
        rows = wanted | 1 if "odd" in kind else wanted
        name = {"float32": "float", "float64": "double"}.get(dtype, dtype)
        dims = shape.replace("N", str(rows))
        result = "[" + ", ".join(reversed(dims.strip("[]").split(", "))) + "]" if "turned" in kind else dims
        text = f"{name}{dims} x, {name}{other} z".replace("N", str(rows))
        yield Case(f"{kind}_{dtype}_{label}", "dtype", _parsed(text, f"{name}{result} y", body))


def dtypes() -> Iterator[Case]:
    """Every dtype with every kind of broadcast, tensors of about 256 MB."""
    for kind in _KINDS:
        yield from sized(kind, _DTYPES, "256MB", 256 << 20)
    for kind, (inputs, outputs, body) in _MASKED.items():
        rows = (256 << 20) // (4 if "float[" in inputs else 2) // 4096
        zero = f"{inputs.split('[')[0]} zero = {{0}}"
        yield Case(kind, "dtype", _parsed(inputs.replace("N", str(rows)), outputs.replace("N", str(rows)), body, zero))


def _bytes(dtype: str) -> int:
    return onnx.helper.tensor_dtype_to_np_dtype(ONNX_DTYPES[dtype]).itemsize


def _parsed(inputs: str, outputs: str, body: str, constants: str = "") -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["" : {_OPSET}]> g ({inputs}) => ({outputs}) <{constants}> {{ {body} }}'
    return onnx.parser.parse_model(text)


def all_cases() -> Iterator[Case]:
    yield from spelled()
    yield from chains()
    yield from from_models()
    yield from dtypes()


def element_name(value: onnx.ValueInfoProto) -> str:
    """The dtype of a graph's input or output by its numpy-like name."""
    wanted = value.type.tensor_type.elem_type
    return next(name for name, number in ONNX_DTYPES.items() if number == wanted)
