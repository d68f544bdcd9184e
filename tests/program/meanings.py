"""Meanings of every kind with a schema, which together have each optional field, and values that break their limits."""

from __future__ import annotations

import ast
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onnxopt.program import fields, schema
from onnxopt.program.attention import AttentionVariant, CacheCodes, TokenAttention
from onnxopt.program.block import Block, BlockStep, Part
from onnxopt.program.convolution import Convolution
from onnxopt.program.core import Transform, TransformField, TransformRead
from onnxopt.program.depthwise import Depthwise, DepthwiseVariant, Expansion
from onnxopt.program.dtypes import DTYPES
from onnxopt.program.experts import Experts, ExpertsVariant
from onnxopt.program.flash_attention import (
    AttentionCodes,
    FlashAttention,
    FlashAttentionVariant,
    FlashWarpgroups,
    Heads,
)
from onnxopt.program.gemm import (
    ActivationVariant,
    FewRowsVariant,
    Gemm,
    PackedIntegers,
    PackedVariant,
    TilesVariant,
    WidenVariant,
)
from onnxopt.program.group_norm import GroupNorm, GroupNormVariant
from onnxopt.program.image_convolution import ImageConvolution, ImageConvolutionVariant
from onnxopt.program.pointwise import Instruction, Program
from onnxopt.program.pool import Pool, PoolVariant
from onnxopt.program.squeeze_excite import FactorsVariant, SqueezeExcite, SqueezeExciteLayer
from onnxopt.program.window import Window

F16, F32 = ("float16",), ("float32",)


def identity(result: str, operands: int = 1) -> Program:
    """A program that adds up its float32 operands and stores `result`."""
    code = tuple(Instruction("add", "float32", (max(k - 1, 0) and operands + k - 2, k)) for k in range(1, operands))
    last = operands + len(code) - 1
    if result != "float32":
        code, last = (*code, Instruction("narrow", "float32", (last,), None, result)), last + 1
    return Program(F32 * operands, (result,), code, (last,), (tuple(range(operands)),), (0,))


def added(first: str, result: str, *reads: TransformRead, of: str = "float16") -> Transform:
    """A transform that adds what it reads, of dtype `of`, to what passes through."""
    program = identity(result, 1 + len(reads))
    if first == "uint8":  # of one read
        code = (Instruction("cast", "float32", (0,), None), Instruction("add", "float32", (2, 1)))
        program = dataclasses.replace(
            program, code=(*code, Instruction("narrow", "float32", (3,), None, result)), results=(4,)
        )
    return Transform(dataclasses.replace(program, inputs=(first, *(of for _ in reads))), reads)


def read_as(variant: schema.Variant, meaning: Gemm) -> bool:
    """Whether the library reads an entry point of this product as one of the variant's class."""
    if meaning.packed is not None:
        return isinstance(variant, PackedVariant)
    if isinstance(variant, ActivationVariant | TilesVariant):
        return meaning.activates_apart
    if isinstance(variant, FewRowsVariant):
        return meaning.transpose_b
    return isinstance(variant, WidenVariant) and meaning.has_float8_operands


SAME = Window((3, 3), pads=(1, 1, 1, 1))
OF_MAP = Depthwise(
    inputs=F16 * 3, outputs=F16, channels=16, window=SAME, bias=2, epilogue=added("float32", "float16"),
)  # fmt: skip
MEANINGS: tuple[schema.Meaning, ...] = (
    Pool(F16, F16, "max", Window((3, 3), (2, 2), pads=(1, 1, 1, 1)), ceil_mode=True),
    Pool(F32, F32, "average", Window((2, 2), auto_pad="SAME_UPPER"), count_include_pad=True),
    Convolution(F16 * 4, F16, bias=2, residual=3, residual_last=True, activation="silu", window=SAME),
    Convolution(F32 * 4, F32, bias=2, slope=3, activation="prelu", window=Window((1, 1)), group=4),
    Convolution(F16 * 2, F16, window=Window((2, 2), (2, 2)), transposed=True, output_padding=(1, 0), activation="clip",
                activation_value=6.0),
    Block(F16 * 5, F16, (96,), (
        BlockStep(Part(0, 0, 64, 64), 1, Part(5, 0, 64, 96), bias=2, window=SAME, activation="relu"),
        BlockStep(Part(5, 32, 32, 96), 3, Part(5, 64, 32, 96), bias=4, residual=Part(0, 32, 32, 64), window=SAME),
    )),
    Block(F16 * 3, F16 * 2, (32, 16, 8), (
        BlockStep(Part(0, 0, 64, 64), 1, Part(5, 0, 8, 8), window=Window((1, 1))),
        BlockStep(Part(5, 0, 8, 8), 2, Part(3, 0, 32, 32), window=Window((1, 1), (2, 2))),
        BlockStep(Part(0, 8, 16, 64), 2, Part(4, 0, 16, 16), window=Window((1, 1)), activation="leaky_relu",
                  activation_value=0.1),
    )),
    Gemm(F16 * 4, F16, bias=2, residual=3, residual_shape=True, transpose_b=True, activation="gelu", alpha=0.5),
    Gemm(("float16", "uint8", "float16", "uint8", "float16"), F16, bias=4, transpose_b=True, gate="silu",
         packed=PackedIntegers(4, 32, 2, 3)),
    Gemm((*F16, "uint8", *F16 * 2), F16, transpose_b=True, packed=PackedIntegers(2, 32, 2, 3)),
    Gemm(("float8e4m3fn",) * 2 + ("float32",) * 2, F32, bias=2, transpose_b=True, unread=(3,)),
    Gemm(F32 * 2, F32 * 3),
    TokenAttention(F16 * 3, F16 * 3, 8, 2, 64, 0.125),
    TokenAttention((*F16 * 6, "int64"), F16 * 3, 8, 2, 64, 0.125, 0, 1, 2, 3, 4, 5, 5, 6),
    TokenAttention((*F16 * 3, "int8", "int8", "float32"), (*F16, "int8", "int8"), 8, 4, 16, 0.25, 0, 1, 2, 3, 4,
                   codes=CacheCodes(5, 5, "channel", "head", by_reciprocal=True)),
    FlashAttention(F16 * 3, F16, 8, 8, 64, 32, 0.125, Heads(0, 1536, 0, 64), Heads(0, 1536, 512, 64),
                   Heads(0, 1536, 1024, 32), bias=1, sinks=2, cap=30.0, before=64, after=0),
    FlashAttention(F16 * 3, F16, 4, 2, 64, 64, 0.125, Heads(0, 256, 0, 64), Heads(1), Heads(2),
                   codes=AttentionCodes(0.05, -128.0, 127.0)),
    OF_MAP,
    Depthwise(inputs=F16 * 7, outputs=F16, channels=64, window=SAME, bias=2, expansion=Expansion(3, 16, 4),
              prologue=added("float16", "float16", TransformRead(5, "channel")),
              epilogue=added("float32", "float16", TransformRead(6, "scalar"))),
    Depthwise(inputs=F32 * 3, outputs=F32, channels=6, window=Window((5, 5), (2, 2), auto_pad="SAME_LOWER"),
              epilogue=added("float32", "float32", TransformRead(2, "element"), of="float32")),
    ImageConvolution(inputs=("uint8", *F16 * 4), outputs=F16, channels=3, weight_channels=4, filters=32, planes=True,
                     window=Window((3, 3), (2, 2)), bias=2,
                     prologue=added("uint8", "float16", TransformRead(3, "channel")),
                     epilogue=added("float32", "float16", TransformRead(4, "scalar"))),
    GroupNorm(inputs=F16 * 5, outputs=F16, channels=64, groups=8, epsilon=1e-5,
              prologue=added("float16", "float32", TransformRead(1, "sample", 128, 64)),
              epilogue=added("float32", "float16", TransformRead(2, "group"), TransformRead(3, "channel"),
                             TransformRead(4, "element"))),
    SqueezeExcite(F16 * 5, F16, 16, 4, 16, SqueezeExciteLayer(1, identity("float16"), 2),
                  SqueezeExciteLayer(3, identity("float16"), 4)),
    SqueezeExcite(F16 * 5, F16 * 2, 16, 4, 16, SqueezeExciteLayer(3, identity("float16")),
                  SqueezeExciteLayer(4, identity("float16")), None, OF_MAP),
    Experts((*F16, "int64", "float32", *F16 * 4), F16, 8, 2, 64, 128, identity("float16", 2), 5, 6, interleaved=True),
    Experts((*F32, "int64", *F32 * 4), F32, 4, 1, 32, 64, identity("float32"), second_bias=5),
)  # fmt: skip
EXPANDED, IMAGE, NORM = (next(m for m in MEANINGS if test(m)) for test in (
    lambda m: isinstance(m, Depthwise) and m.expansion, lambda m: isinstance(m, ImageConvolution),
    lambda m: isinstance(m, GroupNorm),
))  # fmt: skip
# Meanings that break a rule which mutants break together with others, as programs have the inputs' dtypes.
BROKEN: tuple[schema.Meaning, ...] = (
    dataclasses.replace(EXPANDED, inputs=F32 * 7, outputs=F32, prologue=None,
                        epilogue=added("float32", "float32", TransformRead(5, "channel"), TransformRead(6, "scalar"),
                                       of="float32")),
    dataclasses.replace(IMAGE, window=Window((1, 1))),
    dataclasses.replace(IMAGE, outputs=F32, epilogue=added("float32", "float32", TransformRead(4, "scalar"))),
    dataclasses.replace(IMAGE, inputs=("uint8", *F16 * 3, "float32"),
                        epilogue=added("float32", "float16", TransformRead(4, "scalar"), of="float32")),
    dataclasses.replace(NORM, channels=2048, groups=1, prologue=None),
    SqueezeExcite((*F16 * 3, *F32 * 2), F16, 16, 4, 16, SqueezeExciteLayer(1, identity("float16"), 2),
                  SqueezeExciteLayer(3, identity("float16"), 4)),
)  # fmt: skip
# Rules that no file breaks, as JSON leaves the field out there.
IN_PYTHON_ALONE = {("tokens", "is above 1 without a mask")}
# Entry points, and the meanings of their kernels.
VARIANTS: tuple[tuple[schema.Variant, schema.Meaning], ...] = (
    (PoolVariant("f", "", 32, 8, 1, 128, waits=True, down=2, across=2), MEANINGS[0]),
    (GroupNormVariant("f", "", 32, 8, 1, 128, columns=2, held=4, cluster=2), NORM),
    (GroupNormVariant("f", "", 32, 8, 1, 128, layout="split", columns=8, launch=1), NORM),
    (ImageConvolutionVariant("f", "", 32, 1, 1, 128, products=2, across=32, filters=16), IMAGE),
    (DepthwiseVariant("f", "", 32, 8, 1, 128, down=2, across=2), OF_MAP),
    (DepthwiseVariant("f", "", 32, 8, 1, 128, layout="banded", chunks=2, across=2, images=2), OF_MAP),
    (DepthwiseVariant("f", "", 32, 8, 1, 32, layout="walking", across=4), OF_MAP),
    (DepthwiseVariant("f", "", 32, 2, 1, 32, layout="expanded", down=8, across=8, chunks=4), EXPANDED),
    (ExpertsVariant("f", "", 32, 1, 1, 128, rows=16, columns=32, depth=64), MEANINGS[-1]),
    (FactorsVariant("f", "", 32, 1, 2, 128), MEANINGS[-4]),
    (AttentionVariant("f", "", 32, 1, 1, 128, stages=1, registers=True), next(
        m for m in MEANINGS if isinstance(m, TokenAttention) and m.mask is not None and m.codes is None)),
    *((variant, meaning) for meaning in MEANINGS if isinstance(meaning, Gemm) for variant in (
        FewRowsVariant("f", "", 32, 16 // DTYPES[meaning.operands].size, 1, 128, rows=4, columns=2),
        WidenVariant("f", "", 32, 8, 1, 128), PackedVariant("f", "", 32, 16, 1, 128, rows=4, columns=8),
        ActivationVariant("f", "", 32, 8, 1, 128), TilesVariant("f", "", 32, 1, 1, 384),
    ) if read_as(variant, meaning)),
    (FlashAttentionVariant("f", "", 32, 8, 1, 128, access=16), next(
        m for m in MEANINGS if isinstance(m, FlashAttention) and m.width == m.values)),
    (FlashAttentionVariant("f", "", 32, 8, 1, 384, warpgroups=FlashWarpgroups(2, True, False, 2, 1.5, 0.5)), next(
        m for m in MEANINGS if isinstance(m, FlashAttention) and m.width == m.values)),
)  # fmt: skip
_FLASH = next(m for m in MEANINGS if isinstance(m, FlashAttention) and m.width == m.values)
_PRODUCT = next(m for m in MEANINGS if isinstance(m, Gemm) and m.activates_apart)
# Entry points that break a rule by their kernels' meanings.
BROKEN_VARIANTS: tuple[tuple[schema.Variant, schema.Meaning], ...] = (
    (DepthwiseVariant("f", "", 32, 1, 1, 32, layout="expanded", down=8, across=8, chunks=8), EXPANDED),
    (FlashAttentionVariant("f", "", 32, 8, 1, 128),
     dataclasses.replace(_FLASH, width=68, values=68, q=Heads(0, 272, 0, 68))),
    (FlashAttentionVariant("f", "", 32, 8, 1, 128), dataclasses.replace(_FLASH, q=Heads(0, 260, 0, 64))),
    *((FlashAttentionVariant("f", "", 32, 8, 1, 384, warpgroups=FlashWarpgroups(2, True, False, 2, 1.5, 0.5)), meaning)
      for one in MEANINGS if isinstance(one, FlashAttention) and one.bias is not None
      for meaning in (one, dataclasses.replace(one, values=one.width))),
    (ActivationVariant("f", "", 32, 8, 1, 128), Gemm(F16 * 2, F16)),
    (TilesVariant("f", "", 32, 1, 1, 384), Gemm(F16 * 2, F16)),
    (TilesVariant("f", "", 32, 1, 1, 384), dataclasses.replace(_PRODUCT, transpose_a=True)),
    (FewRowsVariant("f", "", 32, 8, 1, 128, rows=4), Gemm(F16 * 2, F16)),
)  # fmt: skip
KINDS = tuple(dict.fromkeys(meaning.KIND for meaning in MEANINGS))


def damaged(meaning: schema.Record) -> Iterator[tuple[str, Any]]:
    """Paths in a meaning's JSON, and values there that break the limits of the field alone; `...` for no such key."""
    if not isinstance(meaning, schema.Meaning):
        yield from _damaged(meaning, "", 0)
        return
    for dtypes in ("inputs", "outputs"):
        yield from ((dtypes, value) for value in (..., "float16", [], ["half"], [7], ["float16"] * 99))
    yield from _damaged(meaning, "", len(meaning.inputs))


def _damaged(record: schema.Record, prefix: str, inputs: int) -> Iterator[tuple[str, Any]]:
    for name, field in record.schema().items():
        value, path = getattr(record, name), prefix + (field.key or name)
        if value is None or (field.beside and getattr(record, field.beside) is None) or (field.omit and not value):
            continue
        if not (field.optional or field.omit or field.beside):
            yield path, ...
        yield from ((path, wrong) for wrong in _wrong(field, value, inputs))
        if isinstance(field, fields.Nested):
            yield from _damaged(value, f"{path}.", inputs)
        if isinstance(field, TransformField):
            for k, one in enumerate(value.reads):
                yield from _damaged(one, f"{path}.reads.{k}.", inputs)
        if isinstance(field, fields.Several):
            for k, one in enumerate(value):
                yield from _damaged(one, f"{path}.{k}.", inputs)


def _wrong(field: fields.Field, value: Any, inputs: int) -> list[Any]:
    match field:
        case fields.Integer():
            multiples = [field.low + 1] if field.multiple > 1 else []
            return [field.low - 1, field.high + 1, 2**64, 0.5, "1", None, [1], *multiples]
        case fields.Integers(count=None):
            return [[field.high + 1], [field.low - 1], [field.low] * (field.max_count + 1), 1, ["1"]]
        case fields.Integers():
            return [list(value)[1:], [*value, 1], [field.low - 1, *value[1:]], [field.high + 1, *value[1:]], 1]
        case fields.Number():
            halves = [0.5] if field.whole else []
            low = field.low if field.above else -abs(field.low) * 2 - 1
            return ["1", None, float(field.high) * 2, low, *halves]
        case fields.Choice():
            return ["nonsense", "", 7, None]
        case fields.Flag():
            return [1, "true", None]
        case fields.Operand():
            return [inputs, -1, 0.5, "0", None]
        case fields.Unread():
            return [[inputs], [-1], 3]
        case fields.Several():
            return [[], [7], 7, {}]
        case _:
            return [7, None, []]


Path = tuple[str | int, ...]  # to a record of a meaning: names of fields, positions in tuples
RANDOM, PER_RULE = 150, 40  # mutants of a meaning, and more of each rule
_STORED = ("float16", "float32", "bfloat16", "uint8", "int64", "float8e4m3fn")


def mutants(meaning: schema.Meaning, seed: int) -> Iterator[schema.Meaning]:
    """The meaning with some of its fields at or beside their limits, of the right types: any one to three fields, and
    those that a rule reads, for each rule."""
    for k in range(RANDOM):
        rng, changed = random.Random(f"{seed} {meaning.KIND} {k}"), meaning
        for _ in range(rng.randint(1, 3)):
            changed = _mutant(changed, meaning, rng)
        if _is_whole(changed):
            yield changed
    for path, record in _records(meaning):
        for at, rule in enumerate(record.RULES):
            rng = random.Random(f"{seed} {meaning.KIND} {path} {at}")
            for _ in range(PER_RULE):
                changed = _replaced(meaning, path, lambda one, text=rule.holds, r=rng: _directed(one, text, meaning, r))
                if _is_whole(changed):
                    yield changed


def variant_mutants(variant: schema.Variant, meaning: schema.Meaning, seed: int) -> Iterator[schema.Variant]:
    """The entry point with one to three fields at or beside their limits, and with those that a rule reads."""
    for k in range(RANDOM):
        rng, changed = random.Random(f"{seed} {type(variant)} {k}"), variant
        for _ in range(rng.randint(1, 3)):
            changed = _mutant(changed, meaning, rng)
        yield changed
    for at, rule in enumerate(variant.RULES):
        rng = random.Random(f"{seed} {type(variant)} {at}")
        yield from (_directed(variant, rule.holds, meaning, rng) for _ in range(PER_RULE))


def rules(record: type[schema.Record], prefix: str = "") -> Iterator[tuple[str, str]]:
    """What `problem` returns for each rule of a record and of the records in it, without positions in tuples."""
    yield from ((prefix + rule.field, rule.problem) for rule in record.RULES)
    for name, field in record.schema().items():
        if isinstance(field, fields.Operand) and field.same_as:
            yield prefix + name, f"has another dtype than {field.same_as}"
        if isinstance(field, fields.Nested | fields.Several) and not issubclass(field.record, schema.Meaning):
            yield from rules(field.record, f"{prefix}{name}.")


def _records(record: schema.Record, path: Path = ()) -> Iterator[tuple[Path, schema.Record]]:
    yield path, record
    for name, field in record.schema().items():
        value = getattr(record, name)
        if isinstance(field, fields.Nested) and value is not None:
            yield from _records(value, (*path, name))
        elif isinstance(field, fields.Several):
            for k, one in enumerate(value):
                yield from _records(one, (*path, name, k))


def _replaced(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    first, *rest = path
    if isinstance(value, tuple):
        return tuple(_replaced(one, tuple(rest), change) if k == first else one for k, one in enumerate(value))
    return dataclasses.replace(value, **{first: _replaced(getattr(value, str(first)), tuple(rest), change)})


def _directed(record: Any, text: str, meaning: schema.Meaning, rng: random.Random) -> Any:
    """The record with some of the fields that a rule reads at or beside the rule's own numbers and names."""
    nodes = [*ast.walk(ast.parse(text, mode="eval"))]
    names = {n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n, ast.Name | ast.Attribute)}
    constants = tuple(n.value for n in nodes if isinstance(n, ast.Constant))
    computed = {field.name for field in dataclasses.fields(record) if not field.init}
    for name in sorted(names & {"inputs", "outputs"}):
        if isinstance(record, schema.Meaning) and rng.random() < 0.5:
            record = _retyped(record, name, rng, tuple(c for c in constants if c in _STORED))
    for name, field in _fields_of(record).items():
        value = getattr(record, name)
        if name not in names or rng.random() < 0.4:
            continue
        if isinstance(field, fields.Nested) and value is not None and rng.random() < 0.8:
            changed = _directed(value, text, meaning, rng)
        else:
            changed = _other(field, value, meaning, rng, constants)
        record = dataclasses.replace(record, **{n: v for n, v in [(name, changed)] if n not in computed})
        if name in computed:
            object.__setattr__(record, name, changed)
    return record


def _retyped(meaning: schema.Meaning, name: str, rng: random.Random, more: tuple[str, ...] = ()) -> schema.Meaning:
    """One of the inputs or outputs is of another dtype, or all inputs and outputs that were of its dtype."""
    stored = list(getattr(meaning, name))
    at, dtype = rng.randrange(len(stored)), rng.choice((*_STORED, *more, meaning.outputs[0]))
    if rng.random() < 0.5:
        old = stored[at]
        both = {n: tuple(dtype if d == old else d for d in getattr(meaning, n)) for n in ("inputs", "outputs")}
        return dataclasses.replace(meaning, **both)
    stored[at] = dtype
    return dataclasses.replace(meaning, **{name: tuple(stored)})


def _is_whole(record: schema.Record) -> bool:
    """Whether JSON has every field that is not the default."""
    for name, field in record.schema().items():
        value = getattr(record, name)
        if field.beside and getattr(record, field.beside) is None and value != getattr(type(record), name):
            return False
        inner = value.reads if isinstance(value, Transform) else value
        parts = inner if isinstance(inner, tuple) else (inner,)
        if not all(_is_whole(part) for part in parts if isinstance(part, schema.Record)):
            return False
    return True


@dataclasses.dataclass(frozen=True)
class OneOf(fields.Field):
    """One of some numbers, of an entry point."""

    numbers: tuple[int, ...]


def _fields_of(record: schema.Record) -> Mapping[str, fields.Field]:
    """The schema, and of an entry point also what all kinds' entry points have."""
    if not isinstance(record, schema.Variant):
        return record.schema()
    threads, unroll = OneOf((1, 32, 33, 64, 96, 128, 384, 1024)), OneOf((1, 2, 4, 8))
    index, vector = OneOf((32, 64)), OneOf((1, 2, 4, 8, 16, 32))
    return {**record.schema(), "threads": threads, "unroll": unroll, "index": index, "vector": vector}


def _mutant(record: Any, meaning: schema.Meaning, rng: random.Random) -> Any:
    own = _fields_of(record)
    names = [name for name in own if not isinstance(own[name], fields.Code)]
    if isinstance(record, schema.Meaning) and rng.random() < 0.2:
        return _retyped(record, rng.choice(("inputs", "outputs")), rng)
    name = rng.choice(names)
    if name not in {f.name for f in dataclasses.fields(record) if f.init}:
        return record
    value = _other(own[name], getattr(record, name), meaning, rng)
    return dataclasses.replace(record, **{name: value})


def _other(
    field: fields.Field, value: Any, meaning: schema.Meaning, rng: random.Random, constants: tuple[Any, ...] = ()
) -> Any:
    """Another value of a field. constants: of a rule that reads it."""
    numbers = [c + d for c in constants if type(c) in (int, float) for d in (-1, 0, 1)]
    if field.optional and rng.random() < 0.3:
        return None
    match field:
        case fields.Integer():
            near = [value + d for d in (-1, 1)] if value is not None else []
            limits = [field.low, field.low + 1, field.low + field.multiple, field.high]
            choices = [*limits, *numbers] if numbers and rng.random() < 0.6 else [*limits, 8, 32, *near]
            return rng.choice([n for n in choices if n >= 0])
        case OneOf():
            return rng.choice(field.numbers)
        case fields.Integers():
            several, near = list(value), [n for n in numbers if field.low <= n <= field.high]
            if several:
                several[rng.randrange(len(several))] = rng.choice((field.low, field.low + 1, 2, 3, *near))
            return tuple(several[:-1] if field.count is None and rng.random() < 0.3 else several)
        case fields.Number():
            return float(rng.choice((0.0, 1.0, -1.0, 0.5, field.low, field.high)))
        case fields.Choice():
            return rng.choice((*field.names, *(c for c in constants if c in field.names)))
        case fields.Flag():
            return not value
        case fields.Operand():
            return rng.randrange(len(meaning.inputs))
        case fields.Unread():
            return tuple(rng.sample(range(len(meaning.inputs)), rng.randint(0, 1)))
        case TransformField() if value is not None and value.reads:
            at = rng.randrange(len(value.reads))
            reads = (_mutant(one, meaning, rng) if k == at else one for k, one in enumerate(value.reads))
            return dataclasses.replace(value, reads=tuple(reads))
        case fields.Nested() if value is not None:
            return _mutant(value, meaning, rng)
        case fields.Several():
            at = rng.randrange(len(value))
            return tuple(_mutant(one, meaning, rng) if k == at else one for k, one in enumerate(value))
    return value
