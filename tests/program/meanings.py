"""Meanings of every kind with a schema, which together have each optional field, and values that break their limits."""

from __future__ import annotations

import dataclasses
from typing import cast

from cases.tables import TABLES
from onnxopt.fusion.core_growth import CoreKind
from onnxopt.kinds import KINDS as KERNEL_KINDS
from onnxopt.program import schema
from onnxopt.program.attention import AttentionVariant, CacheCodes, TokenAttention
from onnxopt.program.block import Block, BlockCopy, BlockStep, BlockVariant, Part
from onnxopt.program.convolution import (
    CodedConvolutionVariant,
    CodeScale,
    Convolution,
    ConvolutionCodes,
    DenseConvolutionVariant,
    DenseTile,
)
from onnxopt.program.core import Transform, TransformRead
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
from onnxopt.program.pool import Pool
from onnxopt.program.squeeze_excite import FactorsVariant, SqueezeExcite, SqueezeExciteLayer
from onnxopt.program.window import Depth, Window

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
OF_HALVES = Depthwise(
    inputs=F32 * 3, outputs=F32, channels=8, window=SAME, bias=2,
    epilogue=added("float32", "float32", TransformRead(0, "half"), of="float32"),
)  # fmt: skip
CODED = Convolution(
    ("int8", "int8", "int32", "uint8", "float32"), ("int8",), bias=2, residual=3, scale=4, activation="relu",
    window=SAME,
    codes=ConvolutionCodes(0.1, CodeScale(0.2), residual=CodeScale(0.1, 3.0), result=CodeScale(0.3, -128.0)),
)  # fmt: skip
FEW_CHANNELS = Convolution(F16 * 2, F16, window=Window((3, 3)))
TILE = DenseTile(channels=32, filters=64, products=2, across=16, parts=2)
CODED_BYTES = dataclasses.replace(
    CODED, inputs=("uint8", *CODED.inputs[1:]),
    codes=ConvolutionCodes(0.1, residual=CodeScale(0.1), result=CodeScale(0.3), zero=5.0),
)  # fmt: skip
_STATED: tuple[schema.Meaning, ...] = (
    Convolution(F16 * 4, F16, bias=2, residual=3, residual_last=True, activation="silu", window=SAME),
    Convolution(F32 * 4, F32, bias=2, slope=3, activation="prelu", window=Window((1, 1)), group=4),
    Convolution(F16 * 2, F16, window=Window((2, 2), (2, 2)), transposed=True, output_padding=(1, 0), activation="clip",
                activation_value=6.0),
    Convolution(F16 * 2, F16, window=Window((2, 2), (2, 2), depth=Depth(3, 2, 1, 1, 1)), transposed=True,
                depth_padding=1),
    Convolution(F16 * 2, F16, window=Window((3, 3), auto_pad="SAME_UPPER", depth=Depth(3, 2))),
    CODED, CODED_BYTES,
    Convolution(("int8", "int8", *F16 * 2), F16, bias=2, residual=3, window=SAME, codes=ConvolutionCodes(0.1)),
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
    Block(F32 * 4, F32, (96,), (
        BlockStep(Part(0, 0, 64, 64), 1, Part(4, 64, 16, 96), window=SAME, activation="prelu", slope=2),
    ), (BlockCopy(Part(0, 0, 64, 64), Part(4, 0, 64, 96)), BlockCopy(Part(3, 4, 16, 32), Part(4, 80, 16, 96)))),
    Gemm(F16 * 2, F16, transpose_b=True, rows=7, first_row=5),
    Gemm(F16 * 4, F16, bias=2, residual=3, residual_shape=True, transpose_b=True, activation="gelu", alpha=0.5),
    Gemm(F32 * 3, F32, bias=2, transpose_b=True, activation="silu"),
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
    OF_HALVES,
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
_CORES = {kind.name for kind in KERNEL_KINDS if isinstance(kind, CoreKind)} - {meaning.KIND for meaning in _STATED}
# Of other cores, those of the models in their tables of cases.
_KERNELS = [
    kernel
    for table in TABLES if table.kind in _CORES
    for cases in table.damaged.values()
    for kernel in table.fused(cases[0]).kernels
]  # fmt: skip
_POOLS = (
    Pool(F16, F16, "max", Window((2, 2), (2, 2), depth=Depth(3, 2, 2, 1, 2))),
    Pool(F16, F16, "average", Window((2, 2), (2, 2), auto_pad="SAME_UPPER", depth=Depth(3, 2))),
)
MEANINGS = (*(cast(schema.Meaning, kernel.program) for kernel in _KERNELS), *_POOLS, *_STATED)
EXPANDED, IMAGE, NORM = (next(m for m in MEANINGS if test(m)) for test in (
    lambda m: isinstance(m, Depthwise) and m.expansion, lambda m: isinstance(m, ImageConvolution),
    lambda m: isinstance(m, GroupNorm),
))  # fmt: skip
_DEEP = tuple(Window((3, 3), auto_pad="VALID", depth=depth) for depth in (Depth(2), Depth(2, front=1)))
# Meanings that break a rule which mutants break together with others, as programs have the inputs' dtypes, or which no
# mutant breaks, as they add no record.
BROKEN: tuple[schema.Meaning, ...] = (
    *(dataclasses.replace(meaning, window=deep) for meaning in (OF_MAP, IMAGE) for deep in _DEEP),
    *(Block(F16 * 2, F16, (8,), (BlockStep(Part(0, 0, 8, 8), 1, Part(2, 0, 8, 8), window=deep),)) for deep in _DEEP),
    dataclasses.replace(EXPANDED, inputs=F32 * 7, outputs=F32, prologue=None,
                        epilogue=added("float32", "float32", TransformRead(5, "channel"), TransformRead(6, "scalar"),
                                       of="float32")),
    dataclasses.replace(OF_HALVES, prologue=added("float32", "float32")),
    *(dataclasses.replace(CODED, **changed) for changed in (  # type: ignore[arg-type]
        {"codes": None}, {"group": 2}, {"outputs": ("int8",), "codes": dataclasses.replace(CODED.codes, result=None)},
        {"codes": dataclasses.replace(CODED.codes, residual=None)},
        *({"inputs": tuple(of if k == at else d for k, d in enumerate(CODED.inputs))} for at, of in (
            (1, "uint8"), (2, "int8"), (3, "int32"), (3, "float16"), (4, "int8"))),
    )),
    Convolution(("uint8", "int8"), F16, window=SAME, codes=ConvolutionCodes(0.1)),
    Convolution(("int8", "int8"), ("int8",), window=SAME), Convolution(F16 * 3, F16, scale=2, window=SAME),
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
    *((kernel.variants[0], cast(schema.Meaning, kernel.program)) for kernel in _KERNELS),
    (GroupNormVariant("f", "", 32, 8, 1, 128, columns=2, held=4, cluster=2), NORM),
    (GroupNormVariant("f", "", 32, 8, 1, 128, layout="split", columns=8, launch=1), NORM),
    (ImageConvolutionVariant("f", "", 32, 1, 1, 128, products=2, across=32, filters=16), IMAGE),
    (CodedConvolutionVariant("f", "", 32, 16, 1, 256), CODED_BYTES),
    (DenseConvolutionVariant("f", "", 32, 8, 1, 128, tile=TILE), FEW_CHANNELS),
    (BlockVariant("f", "", 32, 8, 1, 128, tile=TILE, step=1), next(m for m in MEANINGS if isinstance(m, Block))),
    (DepthwiseVariant("f", "", 32, 8, 1, 128, down=2, across=2), OF_MAP),
    (DepthwiseVariant("f", "", 32, 8, 1, 128, layout="banded", chunks=2, across=2, images=2), OF_MAP),
    (DepthwiseVariant("f", "", 32, 8, 1, 32, layout="walking", across=4), OF_MAP),
    (DepthwiseVariant("f", "", 32, 4, 1, 128, down=2, across=2), OF_HALVES),
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
    (CodedConvolutionVariant("f", "", 32, 16, 1, 256), dataclasses.replace(CODED, activation="silu")),
    (DenseConvolutionVariant("f", "", 32, 8, 1, 128, tile=TILE), dataclasses.replace(FEW_CHANNELS, group=2)),
    (BlockVariant("f", "", 32, 8, 1, 128, tile=TILE), next(
        m for m in MEANINGS if isinstance(m, Block) and m.dtype == "float32")),
    (DepthwiseVariant("f", "", 32, 1, 1, 32, layout="expanded", down=8, across=8, chunks=8), EXPANDED),
    (DepthwiseVariant("f", "", 32, 4, 1, 32, layout="walking", across=4), OF_HALVES),
    (FlashAttentionVariant("f", "", 32, 8, 1, 128),
     dataclasses.replace(_FLASH, width=68, values=68, q=Heads(0, 272, 0, 68))),
    (FlashAttentionVariant("f", "", 32, 8, 1, 128), dataclasses.replace(_FLASH, q=Heads(0, 260, 0, 64))),
    *((FlashAttentionVariant("f", "", 32, 8, 1, 384, warpgroups=FlashWarpgroups(2, True, False, 2, 1.5, 0.5)), meaning)
      for one in MEANINGS if isinstance(one, FlashAttention) and one.bias is not None
      for meaning in (one, dataclasses.replace(one, values=one.width))),
    (FlashAttentionVariant("f", "", 32, 8, 1, 384, warpgroups=FlashWarpgroups(2, True, False, 2, 1.5, 0.5)),
     dataclasses.replace(_FLASH, inputs=F32 * len(_FLASH.inputs), outputs=F32, codes=None)),
    (ActivationVariant("f", "", 32, 8, 1, 128), Gemm(F16 * 2, F16)),
    (TilesVariant("f", "", 32, 1, 1, 384), Gemm(F16 * 2, F16)),
    (TilesVariant("f", "", 32, 1, 1, 384), dataclasses.replace(_PRODUCT, transpose_a=True)),
    (TilesVariant("f", "", 32, 1, 1, 384),
     dataclasses.replace(_PRODUCT, inputs=F32 * len(_PRODUCT.inputs), outputs=F32, transpose_b=False)),
    (FewRowsVariant("f", "", 32, 8, 1, 128, rows=4), Gemm(F16 * 2, F16)),
)  # fmt: skip
KINDS = tuple(dict.fromkeys(meaning.KIND for meaning in MEANINGS))
