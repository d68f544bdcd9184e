"""onnx schemas with shape inference for the operators that rewrite rules create: internal ones and com.microsoft's.

The internal operators live in DOMAIN. They never leave the room `graph`: rewrite/to_contrib.py and
rewrite/to_standard.py replace all of them.

    Sdpa(q, k, v, mask?, sinks?, left?; scale, causal, cap?, before?, after?, hidden?) -> y
        q (B, N, S, H), k (B, M, T, H), v (B, M, T, V), mask broadcasts to (B, N, S, T), y (B, N, S, V); query head n
        reads head n M // N of k and v. causal: query s reads keys up to s + T - S. sinks (N): a score of each head
        beside those of the keys, without a value. cap: of scores x in front of the mask, which become
        cap tanh(x / cap). before, after: where S = T and the mask says nothing else than that query s reads the keys
        from s - before to s + after, and adds `left`, which broadcasts as the mask does. hidden: what a query weighs
        from which the mask hides every key: "all" keys alike, alike those that one of two masks hides ("once"), or
        keys by their "scores".
    Rotary(x, cos, sin) -> y     x cos + (-x2, x1) sin over the halves x1, x2 of the last axis
        x, y (B, N, S, H), cos and sin (1, 1, S, H), whose halves are equal
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import onnx
from onnx.shape_inference import InferenceContext

DOMAIN = "onnxopt.graph.rewrite"
CONTRIB = "com.microsoft"
# i int, f float, is ints; as ONNX Runtime's ContribOperators.md has them.
_ATTRIBUTES = {
    "Sdpa": {"scale": "f", "causal": "i", "cap": "f", "before": "i", "after": "i", "hidden": "s"},
    "Rotary": {},
    "Attention": {
        "num_heads": "i", "scale": "f", "unidirectional": "i", "qkv_hidden_sizes": "is", "mask_filter_value": "f",
        "do_rotary": "i", "rotary_embedding_dim": "i", "past_present_share_buffer": "i",
    },
    "MultiHeadAttention": {
        "num_heads": "i", "scale": "f", "unidirectional": "i", "mask_filter_value": "f",
        "hidden": "s",  # until rewrite/attention/hidden_rows.py replaces it
    },
    "GroupQueryAttention": {
        "num_heads": "i", "kv_num_heads": "i", "scale": "f", "do_rotary": "i", "rotary_interleaved": "i",
        "local_window_size": "i", "softcap": "f", "smooth_softmax": "i", "kv_cache_bit_width": "i", "qk_output": "i",
        "causal": "i", "k_quant_type": "s", "v_quant_type": "s", "qk_norm_epsilon": "f", "sliding_window_cache": "i",
    },
    "RotaryEmbedding": {
        "num_heads": "i", "interleaved": "i", "rotary_embedding_dim": "i", "is_packed_batching": "i", "scale": "f",
    },
    "SkipLayerNormalization": {"epsilon": "f"},
    "SkipSimplifiedLayerNormalization": {"epsilon": "f"},
}  # fmt: skip
DOMAINS = (DOMAIN, CONTRIB)
_STATISTICS = (1, 2)  # outputs of norms behind a sum
_NAMES = ("float", "float16", "bfloat16", "double", "int32", "int64", "bool", "int8", "uint8", "float8e4m3fn")
_TYPES = [f"tensor({name})" for name in _NAMES]


@contextlib.contextmanager
def registered_in_onnx() -> Iterator[None]:
    """Within this context, onnx's shape inference knows the operators that rules create.

    onnx's registry belongs to the whole process, so the schemas are removed afterwards: its checker would otherwise
    hold the models of other code to them.
    """
    schemas = [
        _schema(DOMAIN, "Sdpa", _infer_sdpa, 6, 1),
        _schema(DOMAIN, "Rotary", _infer_first, 3, 1),
        _schema(CONTRIB, "Attention", _infer_attention, 7, 2),
        _schema(CONTRIB, "MultiHeadAttention", _infer_multi_head, 8, 3),
        _schema(CONTRIB, "GroupQueryAttention", _infer_group_query, 16, 4),
        _schema(CONTRIB, "RotaryEmbedding", _infer_first, 4, 1),
        _schema(CONTRIB, "SkipLayerNormalization", _infer_skip_norm, 5, 4, _STATISTICS),
        _schema(CONTRIB, "SkipSimplifiedLayerNormalization", _infer_skip_norm, 4, 4, _STATISTICS),
    ]
    missing = [schema for schema in schemas if not onnx.defs.has(schema.name, schema.domain)]
    for schema in missing:
        onnx.defs.register_schema(schema)
    try:
        yield
    finally:
        for schema in missing:
            onnx.defs.deregister_schema(schema.name, schema.since_version, schema.domain)


def _schema(
    domain: str,
    name: str,
    infer: Callable[[InferenceContext], None],
    inputs: int,
    outputs: int,
    in_float: Sequence[int] = (),
) -> onnx.defs.OpSchema:
    """in_float: outputs of float32, where the others have the first input's dtype."""
    parameter = onnx.defs.OpSchema.FormalParameter
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    kinds = {"i": onnx.defs.OpSchema.AttrType.INT, "f": onnx.defs.OpSchema.AttrType.FLOAT}
    kinds |= {"is": onnx.defs.OpSchema.AttrType.INTS, "s": onnx.defs.OpSchema.AttrType.STRING}
    letters = [f"T{k}" for k in range(inputs)]
    schema = onnx.defs.OpSchema(
        name, domain, 1,
        inputs=[parameter(f"x{k}", t, param_option=optional) for k, t in enumerate(letters)],
        outputs=[
            parameter(f"y{k}", "tensor(float)" if k in in_float else "T0", param_option=optional)
            for k in range(outputs)
        ],
        type_constraints=[(t, _TYPES, "") for t in letters],
        attributes=[onnx.defs.OpSchema.Attribute(a, kinds[k], required=False) for a, k in _ATTRIBUTES[name].items()],
    )  # fmt: skip
    schema.set_type_and_shape_inference_function(infer)
    return schema


def _dims(context: InferenceContext, index: int) -> list[onnx.TensorShapeProto.Dimension] | None:
    if index >= context.get_num_inputs():
        return None
    input_type = context.get_input_type(index)
    if input_type is None or not input_type.tensor_type.HasField("shape"):
        return None
    return list(input_type.tensor_type.shape.dim)


def _set(
    context: InferenceContext,
    output: int,
    dims: list[onnx.TensorShapeProto.Dimension] | None,
    like: int = 0,
    dtype: int | None = None,
) -> None:
    """Note the dims of an output. Its dtype is that of the input `like` where none is given."""
    source = context.get_input_type(like)
    if output >= context.get_num_outputs() or source is None:
        return
    output_type = onnx.TypeProto()
    output_type.tensor_type.elem_type = source.tensor_type.elem_type if dtype is None else dtype
    if dims is not None:
        output_type.tensor_type.shape.dim.extend(dims)
    context.set_output_type(output, output_type)


def _number(value: int) -> onnx.TensorShapeProto.Dimension:
    return onnx.TensorShapeProto.Dimension(dim_value=value)


def _attribute(context: InferenceContext, name: str) -> int:
    attribute = context.get_attribute(name)
    return int(attribute.i) if attribute is not None else 0


def _infer_first(context: InferenceContext) -> None:
    _set(context, 0, _dims(context, 0))


def _infer_skip_norm(context: InferenceContext) -> None:
    """Outputs: the norm, mean and inverse deviation of each row in float32, and the sum that was normalized."""
    x = _dims(context, 0)
    for output in (0, 3):
        _set(context, output, x)
    for output in _STATISTICS:
        _set(context, output, None if x is None else [*x[:-1], _number(1)], dtype=onnx.TensorProto.FLOAT)


def _infer_sdpa(context: InferenceContext) -> None:
    q, v = _dims(context, 0), _dims(context, 2)
    _set(context, 0, None if q is None or v is None else [*q[:3], v[3]])


def _infer_attention(context: InferenceContext) -> None:
    """(B, S, K), (K, 2 D + V), (2 D + V) -> (B, S, V)."""
    x, weight, sizes = _dims(context, 0), _dims(context, 1), context.get_attribute("qkv_hidden_sizes")
    dims = None
    if x is not None and weight is not None:
        dims = [*x[:2], _number(sizes.ints[2] if sizes is not None else weight[1].dim_value // 3)]
    _set(context, 0, dims)


def _infer_multi_head(context: InferenceContext) -> None:
    """(B, S, D), (B, T, D), (B, T, V) -> (B, S, V); packed (B, S, N, 3, H) -> (B, S, N H)."""
    q, k, v = (_dims(context, index) for index in range(3))
    dims = None
    if q is not None and len(q) == 5:
        dims = [*q[:2], _number(q[2].dim_value * q[4].dim_value)]
    elif q is not None and k is not None and len(k) == 5:
        dims = q
    elif q is not None and v is not None:
        dims = [*q[:2], v[2]] if len(v) == 3 else [*q[:2], _number(v[1].dim_value * v[3].dim_value)]
    _set(context, 0, dims)


def _infer_group_query(context: InferenceContext) -> None:
    """q (B, S, N H) with keys, or q, k and v packed as (B, S, (N + 2 M) H), -> (B, S, N H)."""
    q, k = _dims(context, 0), _dims(context, 1)
    heads, groups = _attribute(context, "num_heads"), _attribute(context, "kv_num_heads")
    dims = q
    if q is not None and k is None:
        dims = [*q[:2], _number(q[2].dim_value // (heads + 2 * groups) * heads)]
    _set(context, 0, dims)
    for output, cache in ((1, 3), (2, 4)):  # quantized where the past is
        held = cache < context.get_num_inputs() and context.get_input_type(cache) is not None
        _set(context, output, None, cache if held else 0)
