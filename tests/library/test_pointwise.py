"""The custom-op library's CPU kernels against numpy, and against the functions that ONNX Runtime inlines."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from onnx import helper

from onnxopt.program.dtypes import COMPUTE_DTYPES, DTYPES
from onnxopt.program.pointwise import PRIMITIVES, Instruction, Program
from tests.support.custom_ops import custom_ops_artifact as artifact
from tests.support.custom_ops import custom_ops_oracle as oracle

pytestmark = pytest.mark.usefixtures("library")
I = Instruction  # noqa: E741  programs are tables of these
F = "float32"


def kernel_session(folder, program: Program, shapes=None):
    """A session of one fused node with the library, whose function's body would fail."""
    library = artifact.write(folder, [artifact.kernel(program)])
    shapes = shapes or [None] * len(program.inputs)
    rows = list(zip(program.inputs, shapes, strict=True))
    body = artifact.wrong_body(*program.outputs)
    return artifact.session(artifact.model(body, rows, [(d, None) for d in program.outputs]), library)


def numbers(shape, dtype=F, seed=0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


# primitives


def test_oracle_covers_every_primitive():
    assert set(oracle.MEANINGS) | {"const", "cast", "narrow"} == set(PRIMITIVES)


@pytest.mark.parametrize(("op", "dtype"), oracle.cases())
def test_primitive(op, dtype, tmp_path):
    operands = oracle.samples(op, dtype, np.random.default_rng(0))
    program = artifact.one_op(op, oracle.operand_dtypes(op, dtype), oracle.result_dtype(op, dtype))
    session = kernel_session(tmp_path, program)
    forms = [operands]
    for k in range(len(operands) if len(operands) > 1 else 0):  # each operand in turn as one element
        forms += [[a[i : i + 1] if j == k else a for j, a in enumerate(operands)] for i in (0, 1, 5, 77, 500)]
    for form in forms:
        if oracle.divides_by_zero(op, dtype, form):
            with pytest.raises(Exception, match="integer division or modulo by zero"):
                artifact.run(session, form)
            form = [form[0], np.where(form[1] == 0, 1, form[1]).astype(dtype)]
        (got,) = artifact.run(session, form)
        want = oracle.expected(op, dtype, form)
        if got.dtype.kind != "f":
            np.testing.assert_array_equal(got, want)
        elif dtype == "float64":
            np.testing.assert_allclose(got, want, rtol=1e-15 * oracle.MEANINGS[op].ulp, atol=0)
        else:
            assert oracle.ulps(got, want).max() <= oracle.MEANINGS[op].ulp


@pytest.mark.parametrize("op", [op for op, m in oracle.MEANINGS.items() if m.ulp > 1])
def test_float32_accuracy_over_all_magnitudes(op, tmp_path):
    x = np.arange(0, 2**32, 16411, dtype=np.uint64).astype(np.uint32).view(F)
    (got,) = artifact.run(kernel_session(tmp_path, artifact.one_op(op, (F,), F)), [x])
    assert oracle.ulps(got, oracle.expected(op, F, [x])).max() <= oracle.MEANINGS[op].ulp


@pytest.mark.parametrize("to", sorted(COMPUTE_DTYPES))
@pytest.mark.parametrize("dtype", sorted(COMPUTE_DTYPES))
def test_cast(dtype, to, tmp_path):
    (x,) = oracle.samples("eq" if dtype == "bool" else "neg", dtype, np.random.default_rng(0))[:1]
    if dtype in oracle.FLOATS and to not in oracle.FLOATS and to != "bool":
        limits = np.iinfo("int32" if DTYPES[to].size < 4 else to)  # narrower ones take the low bits
        x = x[(x > float(limits.min)) & (x < float(limits.max))]
    with np.errstate(all="ignore"):
        wide = x.astype("int32") if dtype in oracle.FLOATS and np.dtype(to).kind in "iu" and DTYPES[to].size < 4 else x
        want = wide.astype(to)
    (got,) = artifact.run(kernel_session(tmp_path, artifact.one_op("cast", (dtype,), to)), [x])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("to", ["int32", "uint32", "int64", "uint64"])
def test_casting_floats_saturates(to, tmp_path):
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30], F)
    (got,) = artifact.run(kernel_session(tmp_path, artifact.one_op("cast", (F,), to)), [x])
    low, high = np.iinfo(to).min, np.iinfo(to).max
    np.testing.assert_array_equal(got, np.array([0, high, low, high, low], to))


@pytest.mark.parametrize("dtype", sorted(COMPUTE_DTYPES))
def test_constant(dtype, tmp_path):
    values = {"bool": [True, False], "float32": [1.5, np.inf, -np.inf, np.nan], "float64": [0.1, np.nan]}
    limits = [] if dtype in values else [np.iinfo(dtype).min, np.iinfo(dtype).max, 3]
    for k, value in enumerate(values.get(dtype, [int(v) for v in limits])):
        program = Program((F,), (dtype,), (I("const", dtype, (), value),), (1,), ((0,),), (0,))
        (got,) = artifact.run(kernel_session(tmp_path / str(k), program), [numbers((3, 5))])
        np.testing.assert_array_equal(got, np.full((3, 5), value, dtype))


# 16-bit floats


def test_every_float16_widens_exactly(tmp_path):
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    program = Program(("float16",), (F,), (), (0,), ((0,),), (0,))
    np.testing.assert_array_equal(artifact.run(kernel_session(tmp_path, program), [x])[0], x.astype(F))


@pytest.mark.parametrize("through", ["store", "narrow"])
def test_float16_rounds_to_nearest_even(through, tmp_path):
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(F)
    bits = np.arange(0, 2**32, 65537, dtype=np.uint64).astype(np.uint32).view(F)
    narrow = (I("narrow", F, (0,), None, "float16"),)
    code, output, result = ((), "float16", 0) if through == "store" else (narrow, F, 1)
    session = kernel_session(tmp_path, Program((F,), (output,), code, (result,), ((0,),), (0,)))
    with np.errstate(all="ignore"):
        ties = (halves[:-1] + halves[1:]) / 2
        x = np.concatenate([halves, np.nextafter(halves, np.float32(np.inf)), bits, ties])
        (got,) = artifact.run(session, [x])
        want = x.astype(np.float16).astype(F)
    np.testing.assert_array_equal(got.astype(F), want)


def test_bfloat16_rounds_to_nearest_even(tmp_path):
    x = np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32).view(F)
    bits = x.view(np.uint32).astype(np.uint64)
    want = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(F)
    want = np.where(np.isnan(x), np.float32(np.nan), want)
    narrow = I("narrow", F, (0,), None, "bfloat16")
    stored = Program(("bfloat16",), ("bfloat16",), (), (0,), ((0,),), (0,))
    for k, program in enumerate([Program((F,), (F,), (narrow,), (1,), ((0,),), (0,)), stored]):
        (got,) = artifact.run(kernel_session(tmp_path / str(k), program), [x if k == 0 else want])
        np.testing.assert_array_equal(got, want)


# shapes

GELU_CODE = (
    I("add", F, (0, 1)),
    I("const", F, (), 0.5**0.5),
    I("mul", F, (2, 3)),
    I("erf", F, (4,)),
    I("const", F, (), 1.0),
    I("add", F, (5, 6)),
    I("mul", F, (2, 7)),
)
GELU_BODY = [
    helper.make_node("Add", ["x0", "x1"], ["a"]),
    helper.make_node("Constant", [], ["r"], value_float=0.5**0.5),
    helper.make_node("Mul", ["a", "r"], ["b"]),
    helper.make_node("Erf", ["b"], ["e"]),
    helper.make_node("Constant", [], ["one"], value_float=1.0),
    helper.make_node("Add", ["e", "one"], ["f"]),
    helper.make_node("Mul", ["a", "f"], ["y0"]),
]
SHAPES = [
    ((), ()),
    ((1,), ()),
    ((7,), (7,)),
    ((0,), (0,)),
    ((3, 0, 5), (5,)),
    ((3, 0), (3, 1)),
    ((4, 1), (1, 5)),
    ((1, 1, 1), (1,)),
    ((5000,), ()),
    ((700, 300), (300,)),
    ((700, 300), (700, 1)),
    ((300, 5), (5,)),
    ((300, 5), (300, 1)),
    ((2, 3, 33, 33), (3, 1, 1)),
    ((2, 3, 5, 5), (3, 1, 1)),
    ((16, 1, 1, 31), (1, 4, 9, 31)),
    ((2, 1, 3, 1, 2, 1, 3, 1), (1, 2, 1, 3, 1, 2, 1, 3)),
    ((2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1), (1, 3, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2)),
    ((40, 64), (1, 64)),
    ((1, 2, 3), (4, 1, 1, 1)),
    ((3, 2000, 5), (2000, 1)),
    ((4096, 260), (260,)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_broadcasting_agrees_with_the_inlined_function(left, right, dtype, tmp_path):
    program = Program((dtype, dtype), (dtype,), GELU_CODE, (8,), ((0, 1),), (0,))
    library = artifact.write(tmp_path, [artifact.kernel(program)])
    cast = [helper.make_node("Cast", [f"h{k}"], [f"x{k}"], to=1) for k in range(2)]
    body = GELU_BODY if dtype == F else _in_float32(cast, GELU_BODY)
    for swapped in (False, True):
        a, b = (right, left) if swapped else (left, right)
        ranks = [[f"s{k}_{d}" for d in range(len(s))] for k, s in enumerate((a, b))]
        model = artifact.model(body, [(dtype, ranks[0]), (dtype, ranks[1])], [(dtype, None)])
        arrays = [numbers(a, dtype), numbers(b, dtype, seed=1)]
        (got,) = artifact.run(artifact.session(model, library), arrays)
        (want,) = artifact.run(artifact.session(model, None), arrays)
        assert got.shape == want.shape
        tolerance = 1e-3 if dtype == "float16" else 2e-6
        np.testing.assert_allclose(got.astype(F), want.astype(F), rtol=tolerance, atol=tolerance)


def _in_float32(casts, body):
    """The body between casts from and to float16."""
    renamed = {"x0": "w0", "x1": "w1", "y0": "wide"}
    inner = [
        helper.make_node(n.op_type, [renamed.get(i, i) for i in n.input], [renamed.get(o, o) for o in n.output])
        for n in body
    ]
    for new, old in zip(inner, body, strict=True):
        new.attribute.extend(old.attribute)
    before = [helper.make_node("Cast", [f"x{k}"], [f"w{k}"], to=1) for k in range(len(casts))]
    return [*before, *inner, helper.make_node("Cast", ["wide"], ["y0"], to=10)]


def test_outputs_of_different_shapes(tmp_path):
    code = (I("add", F, (0, 1)), I("mul", F, (3, 2)), I("neg", F, (3,)))
    program = Program((F, F, F), (F, F, F), code, (3, 4, 5), ((0, 1), (0, 1, 2), (0, 1)), (0, 0, 3))
    library = artifact.write(tmp_path, [artifact.kernel(program)])
    body = [
        helper.make_node("Add", ["x0", "x1"], ["y0"]),
        helper.make_node("Mul", ["y0", "x2"], ["y1"]),
        helper.make_node("Neg", ["y0"], ["n"]),
        helper.make_node("Constant", [], ["axis"], value_ints=[0]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["y2"]),
    ]
    for shapes in [
        ((4, 8), (8,), (3, 4, 8)),
        ((4, 1), (1, 6), (4, 6)),
        ((300, 2), (300, 1), (2,)),
        ((3, 3), (3,), (0, 3, 3)),
    ]:
        model = artifact.model(body, [(F, list(s)) for s in shapes], [(F, None)] * 3)
        arrays = [numbers(s, seed=k) for k, s in enumerate(shapes)]
        got = artifact.run(artifact.session(model, library), arrays)
        want = artifact.run(artifact.session(model, None), arrays)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_results_that_are_inputs_constants_and_each_other(tmp_path):
    code = (I("const", F, (), 2.0), I("mul", F, (0, 2)), I("add", F, (1, 2)))
    program = Program((F, F), (F,) * 5, code, (3, 3, 0, 4, 1), ((0, 1),) * 5, (0,) * 5)
    x, y = numbers((37, 300)), numbers((37, 1), seed=1)
    got = artifact.run(kernel_session(tmp_path, program), [x, y])
    column = np.broadcast_to(y, x.shape)
    for a, b in zip(got, [x * 2, x * 2, x, column + 2, column], strict=True):
        np.testing.assert_array_equal(a, b)


def test_long_program_reuses_memory(tmp_path):
    code = [I("add", F, (0, 1))]
    for k in range(400):
        code.append(I("mul" if k % 2 else "sub", F, (2 + k, k % 2)))
    program = Program((F, F), (F,), tuple(code), (len(code) + 1,), ((0, 1),), (0,))
    x, y = numbers((50, 1000)), np.clip(numbers((1000,), seed=1), -0.9, 0.9)
    want = x + y
    for k in range(400):
        want = want * y if k % 2 else want - x
    (got,) = artifact.run(kernel_session(tmp_path, program), [x, y])
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_agree_with_the_oracle(seed, tmp_path):
    rng = np.random.default_rng(seed)
    program = random_program(rng)
    domain = RANDOM_DOMAINS[seed % len(RANDOM_DOMAINS)]
    shapes = [tuple(d if rng.random() < 0.6 else 1 for d in domain) for _ in program.inputs]
    arrays = [(numbers(s, seed=k) * 9).astype(d) for k, (s, d) in enumerate(zip(shapes, program.inputs, strict=True))]
    values = list(arrays)
    for i in program.code:
        operands = [values[a] for a in i.args]
        values.append(np.float32(i.value) if i.op == "const" else oracle.MEANINGS[i.op].integers(*operands))
    got = artifact.run(kernel_session(tmp_path, program), arrays)
    for k, (array, result) in enumerate(zip(got, program.results, strict=True)):
        shape = np.broadcast_shapes(*(shapes[d] for d in program.depends[k]))
        np.testing.assert_array_equal(array, np.broadcast_to(values[result], shape))


RANDOM_DOMAINS = [(3000,), (70, 40), (40, 70), (9, 3, 250), (5, 260, 7), (2, 3, 4, 5, 6), (33, 300)]


def random_program(rng: np.random.Generator) -> Program:
    """Up to 40 exact instructions on float32 and bool; every output has its own shape."""
    inputs = [str(rng.choice([F, F, "bool"])) for _ in range(rng.integers(2, 6))]
    inputs[0] = F
    dtypes, code, reach = list(inputs), [], [{k} for k in range(len(inputs))]
    for _ in range(rng.integers(3, 40)):
        floats = [k for k, d in enumerate(dtypes) if d == F]
        bools = [k for k, d in enumerate(dtypes) if d == "bool"]
        op = str(rng.choice(["add", "sub", "mul", "min", "max", "neg", "lt", "and", "select", "const"]))
        arity = PRIMITIVES[op].arity
        if op in ("and", "select") and not bools:
            continue
        pool = [bools if op == "and" or (op == "select" and k == 0) else floats for k in range(arity)]
        args = tuple(int(rng.choice(p[-6:])) for p in pool)
        code.append(I(op, "bool" if op in ("lt", "and") else F, args, 1.5 if op == "const" else None))
        dtypes.append(code[-1].dtype)
        reach.append(set().union(*(reach[a] for a in args)))
    candidates = [k for k in range(len(dtypes)) if reach[k]]
    results = tuple(int(r) for r in rng.choice(candidates, size=min(4, len(candidates)), replace=False))
    depends = tuple(tuple(sorted(reach[r])) for r in results)
    return Program(tuple(inputs), tuple(dtypes[r] for r in results), tuple(code), results, depends, (0,) * len(results))


def test_sigmoid_is_recognized_without_changing_bits(tmp_path):
    code = (I("neg", F, (0,)), I("exp", F, (1,)), I("const", F, (), 1.0), I("add", F, (3, 2)), I("div", F, (3, 4)))
    program = Program((F,), (F, F), code, (5, 4), ((0,), (0,)), (0, 0))
    x = np.concatenate([np.linspace(-110, 110, 5001), [np.nan, np.inf, -np.inf, -0.0]]).astype(F)
    sigmoid, denominator = artifact.run(kernel_session(tmp_path, program), [x])
    np.testing.assert_array_equal(sigmoid, np.float32(1) / denominator)


def test_shapes_that_do_not_broadcast_are_an_error(tmp_path):
    session = kernel_session(tmp_path, artifact.one_op("add", (F, F), F), [["n"], ["m"]])
    with pytest.raises(Exception, match=r"do not broadcast for output 0: \[3\] \[4\]"):
        artifact.run(session, [numbers(3), numbers(4)])


def test_baseline_evaluator():
    """The evaluator for machines without AVX2, on machines that have it."""
    chosen = "test_primitive or 16 or random or every or broadcasting"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", chosen]
    done = subprocess.run(command, env={**os.environ, "ONNXOPT_CPU": "baseline"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
