"""Small products of one tensor become Slices of one product, where our kernels read the Slices in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxopt.graph.passes.unique_names import UniqueNamesPass
from onnxopt.graph.rewrite.products import shared_operand
from onnxopt.graph.rewrite.rule_sets import Scope
from onnxopt.graph.rewrite.weights import Joiner
from onnxopt.graph.shapes.infer import infer

HALF = onnx.TensorProto.FLOAT16


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[object]], arrays: dict[str, np.ndarray], dtype: int = HALF
) -> ir.Model:
    infos = [helper.make_tensor_value_info(k, dtype, v) for k, v in inputs.items()]
    results = [name for node in nodes for name in node.output if name.startswith("y")]
    outputs = [helper.make_tensor_value_info(name, dtype, None) for name in results]
    constants = [numpy_helper.from_array(v, k) for k, v in arrays.items()]
    graph = helper.make_graph(nodes, "g", infos, outputs, constants)
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)]
    model = ir.serde.deserialize_model(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    infer(model).write()
    return model


def _merge(model: ir.Model, folder: Path, gpu: bool = False) -> int:
    return shared_operand.merge(model, Joiner(folder), Scope(model.graph, infer(model), gpu=gpu))


def _evaluated(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(ReferenceEvaluator(ir.to_proto(model)).run(None, feeds))


def _embeddings(form: str) -> ir.Model:
    rng = np.random.default_rng(0)
    arrays = {"inner": np.array([2, 3])}
    nodes = []
    for k, channels in enumerate((16, 8, 24)):
        weight = rng.standard_normal((channels, 32)).astype(np.float16)
        arrays[f"w{k}"] = weight if form == "Gemm" else weight.T.copy()
        if k != 1:
            arrays[f"b{k}"] = rng.standard_normal(channels).astype(np.float16)
        if form == "Gemm":
            operands = ["t", f"w{k}", *([f"b{k}"] if k != 1 else [])]
            nodes.append(helper.make_node("Gemm", operands, [f"p{k}"], transB=1))
        else:
            nodes.append(helper.make_node("MatMul", ["t", f"w{k}"], [f"m{k}" if k != 1 else "p1"]))
            if k != 1:
                nodes.append(helper.make_node("Add", [f"m{k}", f"b{k}"], [f"p{k}"]))
        nodes.append(helper.make_node("Unsqueeze", [f"p{k}", "inner"], [f"e{k}"]))
        nodes.append(helper.make_node("Add", [f"x{k}", f"e{k}"], [f"y{k}"]))
    maps = {f"x{k}": ["N", c, 4, 4] for k, c in enumerate((16, 8, 24))}
    return _model(nodes, {"t": ["N", 32], **maps}, arrays)


@pytest.mark.parametrize("form", ["Gemm", "MatMul"])
def test_embeddings(form: str, tmp_path: Path) -> None:
    model = _embeddings(form)
    rng = np.random.default_rng(1)
    feeds = {"t": rng.standard_normal((2, 32)).astype(np.float16)}
    feeds |= {f"x{k}": rng.standard_normal((2, c, 4, 4)).astype(np.float16) for k, c in enumerate((16, 8, 24))}
    expected = _evaluated(model, feeds)
    assert _merge(model, tmp_path) == 1
    ir.passes.common.RemoveUnusedNodesPass()(model)
    UniqueNamesPass()(model)
    assert [n.op_type for n in model.graph if n.op_type in (form, "Slice")] == [form, *["Slice"] * 3]
    for found, y in zip(_evaluated(model, feeds), expected, strict=True):
        np.testing.assert_allclose(found.astype(np.float32), y.astype(np.float32), rtol=4e-3, atol=4e-2)


def _modulations(cut: str = "Split", layers: int = 2, rows: int = 2, dtype: int = HALF) -> ir.Model:
    """Layers that scale and shift tokens by parts of a Gemm of one tensor. cut: how it is cut."""
    rng, half = np.random.default_rng(0), helper.tensor_dtype_to_np_dtype(dtype)
    arrays: dict[str, np.ndarray] = {"one": np.array([1]), "last": np.array([-1]), "number": np.array(1, half)}
    arrays |= {f"n{n}": np.array([n]) for n in (0, 8, 16, 24)}
    nodes = []
    for k in range(layers):
        arrays |= {f"w{k}": rng.standard_normal((24, 32)).astype(half), f"b{k}": rng.standard_normal(24).astype(half)}
        nodes.append(helper.make_node("Gemm", ["t", f"w{k}", f"b{k}"], [f"p{k}"], transB=1))
        parts = [f"{name}{k}" for name in "ijk"]
        if cut == "views":
            nodes.append(helper.make_node("Unsqueeze", [f"p{k}", "one"], [f"v{k}"]))
            nodes.append(helper.make_node("Split", [f"v{k}"], [f"{p}e" for p in parts], axis=-1, num_outputs=3))
        elif cut == "Split":
            nodes.append(helper.make_node("Split", [f"p{k}"], parts, axis=1, num_outputs=3))
        else:
            nodes += [
                helper.make_node("Slice", [f"p{k}", f"n{n}", f"n{n + 8}", "last"], [p])
                for n, p in zip((0, 8, 16), parts, strict=True)
            ]
        if cut != "views":
            nodes += [helper.make_node("Unsqueeze", [p, "one"], [f"{p}e"]) for p in parts]
        nodes += [
            helper.make_node("Add", [f"i{k}e", "number"], [f"s{k}"]),
            helper.make_node("Mul", [f"x{k}", f"s{k}"], [f"m{k}"]),
            helper.make_node("Add", [f"m{k}", f"j{k}e"], [f"h{k}"]),
            helper.make_node("Mul", [f"h{k}", f"k{k}e"], [f"y{k}"]),
        ]
    return _model(nodes, {"t": [rows, 32], **{f"x{k}": [rows, 5, 8] for k in range(layers)}}, arrays, dtype)


@pytest.mark.parametrize("dtype", [HALF, onnx.TensorProto.FLOAT])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("cut", ["Split", "views", "Slice"])
def test_modulations(cut: str, layers: int, dtype: int, tmp_path: Path) -> None:
    model = _modulations(cut, layers, dtype=dtype)
    rng, half = np.random.default_rng(1), helper.tensor_dtype_to_np_dtype(dtype)
    feeds = {i.name: rng.standard_normal([int(d) for d in i.shape]).astype(half) for i in model.graph.inputs}
    expected = _evaluated(model, feeds)
    assert _merge(model, tmp_path) == (layers > 1)
    ir.passes.common.RemoveUnusedNodesPass()(model)
    UniqueNamesPass()(model)
    assert [n.op_type for n in model.graph if n.op_type in ("Gemm", "Split", "Slice")] == [
        "Gemm",
        *["Slice"] * 3 * layers,
    ]
    for found, y in zip(_evaluated(model, feeds), expected, strict=True):
        np.testing.assert_allclose(found.astype(np.float32), y.astype(np.float32), rtol=2e-2, atol=2e-1)


def test_modulations_of_many_rows_and_those_that_are_not_repeated_stay_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _modulations()
    for value in model.graph.inputs:
        if value.name != "t":
            value.shape = ir.Shape([2, 1, 8])
    for value in (v for node in model.graph for v in node.outputs):
        value.shape = None
    infer(model).write()
    assert _merge(model, tmp_path) == 0
    monkeypatch.setattr(shared_operand, "_MAX_BYTES", 2 * 24 * 32 * 2)
    model = _modulations(layers=5)
    assert _merge(model, tmp_path) == 2  # and one alone
    ir.passes.common.RemoveUnusedNodesPass()(model)
    assert [node.op_type for node in model.graph].count("Gemm") == 3
    assert _merge(_modulations(rows=65), tmp_path) == 0  # results are larger than weights


def _attentions(keys: int, layers: int = 2, width: int = 16) -> ir.Model:
    """Layers whose keys and values are products of one tensor z; the values have a bias."""
    rng = np.random.default_rng(0)
    arrays, nodes = {}, []
    for k in range(layers):
        for name in "kv":
            arrays[f"w{name}{k}"] = rng.standard_normal((24, 2 * width)).astype(np.float16)
        arrays[f"b{k}"] = rng.standard_normal(2 * width).astype(np.float16)
        nodes += [
            helper.make_node("MatMul", ["z", f"wk{k}"], [f"k{k}"]),
            helper.make_node("MatMul", ["z", f"wv{k}"], [f"m{k}"]),
            helper.make_node("Add", [f"b{k}", f"m{k}"], [f"v{k}"]),
            helper.make_node("MultiHeadAttention", [f"q{k}", f"k{k}", f"v{k}"], [f"y{k}"], domain="com.microsoft",
                             num_heads=2, name=f"mha{k}"),
        ]  # fmt: skip
    queries = {f"q{k}": ["B", 10, 2 * width] for k in range(layers)}
    return _model(nodes, {"z": ["B", keys, 24], **queries}, arrays)


def test_keys_and_values(tmp_path: Path) -> None:
    model = _attentions(77)
    feeds = {"z": np.random.default_rng(1).standard_normal((2, 77, 24)).astype(np.float16)}
    expected = [_read(model, name, feeds) for name in ("k0", "v0", "k1", "v1")]
    assert _merge(model, tmp_path) == 1
    ir.passes.common.RemoveUnusedNodesPass()(model)
    UniqueNamesPass()(model)
    assert [n.op_type for n in model.graph] == ["MatMul", "Add", *["Slice"] * 4, *["MultiHeadAttention"] * 2]
    read = [v for n in model.graph if n.op_type == "MultiHeadAttention" for v in n.inputs[1:3]]
    for value, y in zip(read, expected, strict=True):
        found = _read(model, str(value.name), feeds)
        np.testing.assert_allclose(found.astype(np.float32), y.astype(np.float32), rtol=4e-3, atol=4e-2)


def test_queries_and_keys_of_a_tensor_that_values_are_not_of(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {f"w{name}": rng.standard_normal((24, 32)).astype(np.float16) for name in "qkv"}
    nodes = [
        helper.make_node("Add", ["x", "p"], ["s"]),
        *(helper.make_node("MatMul", ["x" if name == "v" else "s", f"w{name}"], [name]) for name in "qkv"),
        helper.make_node("MultiHeadAttention", list("qkv"), ["y"], domain="com.microsoft", num_heads=2),
    ]
    model = _model(nodes, {"x": ["B", 50, 24], "p": [1, 50, 24]}, arrays)
    feeds = {k: rng.standard_normal((n, 50, 24)).astype(np.float16) for k, n in (("x", 2), ("p", 1))}
    expected = [_read(model, name, feeds) for name in "qkv"]
    assert _merge(model, tmp_path) == 1
    ir.passes.common.RemoveUnusedNodesPass()(model)
    UniqueNamesPass()(model)
    assert sorted(n.op_type for n in model.graph) == ["Add", "MatMul", "MatMul", "MultiHeadAttention", "Slice", "Slice"]
    attention = next(n for n in model.graph if n.op_type == "MultiHeadAttention")
    for value, y in zip(attention.inputs, expected, strict=True):
        np.testing.assert_allclose(_read(model, str(value.name), feeds), y, rtol=4e-3, atol=4e-2)


def _divided(
    batch: object = "B", rows: int = 10, last: str = "Softmax", shape: tuple[int, ...] = (0, 0, 2, 6)
) -> ir.Model:
    """Points and weights of a deformable attention: two products of one tensor whose columns are divided by Reshapes.

    last: what reads the second one, `shape`: which it has then.
    """
    rng = np.random.default_rng(0)
    arrays = {"wp": rng.standard_normal((16, 24)), "bp": rng.standard_normal(24), "ww": rng.standard_normal((16, 12))}
    constants: dict[str, np.ndarray] = {k: v.astype(np.float16) for k, v in arrays.items()}
    constants |= {
        "of_points": np.array([0, 0, 2, 6, 2]),
        "of_weights": np.array(shape),
        "half": np.array(0.5, np.float16),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "wp"], ["m"]),
        helper.make_node("Add", ["m", "bp"], ["p"]),
        helper.make_node("Reshape", ["p", "of_points"], ["points"]),
        helper.make_node("Mul", ["points", "half"], ["y0"]),
        helper.make_node("MatMul", ["x", "ww"], ["w"]),
        helper.make_node("Reshape", ["w", "of_weights"], ["weights"]),
        helper.make_node(last, ["weights"], ["y1"]),
    ]
    return _model(nodes, {"x": [batch, rows, 16]}, constants)


def test_products_whose_columns_are_divided(tmp_path: Path) -> None:
    model = _divided()
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 10, 16)).astype(np.float16)}
    expected = _evaluated(model, feeds)
    assert _merge(model, tmp_path, gpu=True) == 1
    ir.passes.common.RemoveUnusedNodesPass()(model)
    UniqueNamesPass()(model)
    assert [n.op_type for n in model.graph] == [
        "MatMul",
        "Add",
        "Slice",
        "Slice",
        "Reshape",
        "Mul",
        "Reshape",
        "Softmax",
    ]
    for found, y in zip(_evaluated(model, feeds), expected, strict=True):
        np.testing.assert_allclose(found.astype(np.float32), y.astype(np.float32), rtol=4e-3, atol=4e-2)


@pytest.mark.parametrize(
    ("model", "gpu"),
    [
        (_divided(), False),  # ONNX Runtime copies parts
        (_divided(1, 1 << 20), True),  # fills a GPU
        (_divided(last="Transpose"), True),  # which no kernel takes in
        (_divided(shape=(-1, 5, 12)), True),  # rows are divided, not columns
    ],
)
def test_products_that_gain_nothing_stay_apart(model: ir.Model, gpu: bool, tmp_path: Path) -> None:
    assert _merge(model, tmp_path, gpu) == 0


def _read(model: ir.Model, name: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """A value that an attention reads."""
    proto = ir.to_proto(model)
    kept = [n for n in proto.graph.node if n.op_type != "MultiHeadAttention"]
    del proto.graph.node[:], proto.graph.output[:]
    proto.graph.node.extend(kept)
    proto.graph.output.append(helper.make_tensor_value_info(name, HALF, None))
    missing = {i.name: np.zeros((2, 10, 32), np.float16) for i in proto.graph.input if i.name not in feeds}
    (found,) = ReferenceEvaluator(proto).run(None, {**feeds, **missing})
    return np.asarray(found)


def _cached(form: str, size: int = 8) -> ir.Model:
    """q, k and v of a step of a decoder, whose values go behind a cache or into it. size: of k's heads."""
    rng = np.random.default_rng(0)
    arrays = {
        f"w{n}": rng.standard_normal((24, c)).astype(np.float16) for n, c in (("q", 32), ("k", 2 * size), ("v", 16))
    }
    arrays |= {"bv": rng.standard_normal(16).astype(np.float16), "hq": np.array([0, 0, 4, 8])}
    arrays |= {"hk": np.array([0, 0, 2, size]), "hv": np.array([0, 0, 2, 8])}
    arrays["slots"] = np.array([[1], [4], [2]])
    swapped = [0, 2, 1, 3] if form == "Concat" else [1, 0, 2, 3]
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [f"p{n}"]) for n in "qkv"]
    nodes += [
        helper.make_node("Add", ["pv", "bv"], ["sv"]),
        *(helper.make_node("Reshape", [f"{'s' if n == 'v' else 'p'}{n}", f"h{n}"], [f"y{n}"]) for n in "qk"),
        helper.make_node("Reshape", ["sv", "hv"], ["v"]),
        helper.make_node("Transpose", ["v"], ["tv"], perm=swapped),
    ]
    if form == "Concat":
        nodes.append(helper.make_node("Concat", ["cache", "tv"], ["yv"], axis=2))
    else:
        nodes.append(helper.make_node("ScatterND", ["cache", "slots", "tv"], ["yv"]))
    cache = ["B", 2, "P", 8] if form == "Concat" else [6, "B", 2, 8]
    return _model(nodes, {"x": ["B", 3, 24], "cache": cache}, arrays)


@pytest.mark.parametrize("form", ["Concat", "ScatterND"])
def test_queries_keys_and_values_behind_a_cache(form: str, tmp_path: Path) -> None:
    model = _cached(form)
    rng = np.random.default_rng(1)
    cache = (2, 2, 5, 8) if form == "Concat" else (6, 2, 2, 8)
    feeds = {"x": rng.standard_normal((2, 3, 24)).astype(np.float16), "cache": np.ones(cache, np.float16)}
    expected = _evaluated(model, feeds)
    assert _merge(model, tmp_path) == 1
    ir.passes.common.RemoveUnusedNodesPass()(model)
    UniqueNamesPass()(model)
    assert [n.op_type for n in model.graph if n.op_type in ("MatMul", "Slice")] == ["MatMul", *["Slice"] * 3]
    for found, y in zip(_evaluated(model, feeds), expected, strict=True):
        np.testing.assert_allclose(found.astype(np.float32), y.astype(np.float32), rtol=4e-3, atol=4e-2)


def test_without_a_cache_or_with_other_heads_they_stay_apart(tmp_path: Path) -> None:
    assert _merge(_cached("Concat", size=16), tmp_path) == 0
    model = _cached("Concat")
    (concat,) = (n for n in model.graph if n.op_type == "Concat")
    concat.attributes["axis"] = ir.AttrInt64("axis", 3)
    assert _merge(model, tmp_path) == 0


def _prepared(keys: int = 77, other: str = "x") -> ir.Model:
    """q and k whose halves are swapped and normalized on their way to an attention. other: what v is projected of."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {f"w{n}": rng.standard_normal((24, 32)).astype(np.float16) for n in "qkv"}
    arrays |= {f"b{n}": rng.standard_normal(32).astype(np.float16) for n in "qv"}
    arrays |= {"heads": np.array([0, 0, 2, 16]), "flat": np.array([0, 0, 32]), "two": np.array(2.0, np.float16)}
    nodes = [helper.make_node("MatMul", [other if n == "v" else "x", f"w{n}"], [f"m{n}"]) for n in "qkv"]
    nodes += [helper.make_node("Add", [f"m{n}", f"b{n}"], [f"p{n}"]) for n in "qv"]
    for n, value in (("q", "pq"), ("k", "mk")):
        nodes += [
            helper.make_node("Reshape", [value, "heads"], [f"h{n}"]),
            helper.make_node("Split", [f"h{n}"], [f"a{n}", f"c{n}"], axis=3, num_outputs=2),
            helper.make_node("Concat", [f"c{n}", f"a{n}"], [f"s{n}"], axis=3),
            helper.make_node("Mul", [f"s{n}", "two"], [f"t{n}"]),
            helper.make_node("Reshape", [f"t{n}", "flat"], [n]),
        ]
    nodes.append(
        helper.make_node("MultiHeadAttention", ["q", "k", "pv"], ["y"], domain="com.microsoft", num_heads=2, name="mha")
    )
    inputs: dict[str, list[object]] = {"x": ["B", keys, 24]} | ({other: ["B", keys, 24]} if other != "x" else {})
    return _model(nodes, inputs, arrays)


def test_heads_that_are_prepared(tmp_path: Path) -> None:
    model = _prepared()
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 77, 24)).astype(np.float16)}
    expected = [_read(model, name, feeds) for name in ("q", "k", "pv")]
    assert _merge(model, tmp_path) == 1
    ir.passes.common.RemoveUnusedNodesPass()(model)
    UniqueNamesPass()(model)
    assert [n.op_type for n in model.graph if n.op_type in ("MatMul", "Slice")] == ["MatMul", *["Slice"] * 3]
    (attention,) = (n for n in model.graph if n.op_type == "MultiHeadAttention")
    for value, y in zip(attention.inputs, expected, strict=True):
        assert value is not None
        found = _read(model, str(value.name), feeds)
        np.testing.assert_allclose(found.astype(np.float32), y.astype(np.float32), rtol=4e-3, atol=4e-2)


def _streams(last: str = "z") -> ir.Model:
    """Joint attention of x and z, with six products, more keys than our kernel takes. last: what values are also of."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {"flat": np.array([0, 0, 32])}
    nodes = []
    for n in "qkv":
        for x in ("x", last if n == "v" else "z"):
            arrays |= {
                f"w{n}{x}": rng.standard_normal((24, 32)).astype(np.float16),
                f"b{n}{x}": np.ones(32, np.float16),
            }
            nodes.append(helper.make_node("MatMul", [x, f"w{n}{x}"], [f"m{n}{x}"]))
            nodes.append(helper.make_node("Add", [f"m{n}{x}", f"b{n}{x}"], [f"p{n}{x}"]))
        nodes.append(helper.make_node("Concat", [f"p{n}x", f"p{n}{last if n == 'v' else 'z'}"], [n], axis=1))
    nodes.append(
        helper.make_node("MultiHeadAttention", [*"qkv"], ["y"], domain="com.microsoft", num_heads=2, name="mha")
    )
    sizes = {"x": 1000, "z": 50, last: 50}
    return _model(nodes, {name: ["B", size, 24] for name, size in sizes.items()}, arrays)


def test_products_of_two_streams(tmp_path: Path) -> None:
    model = _streams()
    rng = np.random.default_rng(1)
    feeds = {x: rng.standard_normal((2, n, 24)).astype(np.float16) for x, n in (("x", 1000), ("z", 50))}
    expected = [_read(model, name, feeds) for name in "qkv"]
    assert _merge(model, tmp_path) == 2
    ir.passes.common.RemoveUnusedNodesPass()(model)
    UniqueNamesPass()(model)
    names = [n.op_type for n in model.graph]
    assert (names.count("MatMul"), names.count("Slice"), names.count("Concat")) == (2, 6, 3)
    for name, y in zip("qkv", expected, strict=True):
        np.testing.assert_allclose(_read(model, name, feeds), y, rtol=4e-3, atol=4e-2)


@pytest.mark.parametrize(
    "model",
    [_streams("other"), _prepared(other="z"), _prepared(keys=1025)],
    ids=["values of another tensor", "of two tensors", "many keys"],
)
def test_heads_that_are_prepared_otherwise_stay_apart(model: ir.Model, tmp_path: Path) -> None:
    assert _merge(model, tmp_path) == 0


def test_more_keys_than_our_kernel_takes_stay_apart(tmp_path: Path) -> None:
    assert _merge(_attentions(1025), tmp_path) == 0


def test_a_product_that_others_read_stays(tmp_path: Path) -> None:
    model = _attentions(77, layers=1)
    value = next(v for n in model.graph for v in n.outputs if v.name == "k0")
    model.graph.outputs.append(value)
    assert _merge(model, tmp_path) == 0  # one is left
    model = _embeddings("Gemm")
    for node in list(model.graph):
        if node.op_type == "Unsqueeze":
            model.graph.outputs.append(node.outputs[0])
    assert _merge(model, tmp_path) == 0
