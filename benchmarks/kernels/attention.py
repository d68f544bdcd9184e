"""Attention of many queries: our kernel, ONNX Runtime's operators, torch's SDPA and FlexAttention, after float64.

    python -m benchmarks.kernels.attention prepare DIR --arch sm_90        on any machine, without a GPU
    python -m benchmarks.kernels.attention run DIR --out OUT.json --flex 6  on the GPU: onnxruntime, torch; 100 s

Microseconds of one run among many in a CUDA graph, whose buffers are in rotation. Ours runs as a kernel of a session
also where the rule leaves the attention to ONNX Runtime; `rule` says which it takes. mha, gqa and sdpa_op are
MultiHeadAttention, GroupQueryAttention and the standard Attention, where they can say what the case asks for, if need
be by a mask of scores that holds bias and window; plain is the graph of products and Softmax. torch is the fastest of
its SDPA kernels. FlexAttention is compiled, for the first N cases that --flex allows.
"""

from __future__ import annotations

import argparse
import json
import lzma
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cases.attentions import ATTENTIONS, Attention
from benchmarks.support.arguments import command, named
from tests.support.wrong_bodies import with_wrong_bodies

_SEED, _LIMIT = 0, 4e-3  # relative error of a result's norm
_ROTATED = 64 << 20  # bytes of sets of buffers
Models = dict[str, tuple[str, list[str]]]  # form -> file, names of its inputs


def prepare(folder: pathlib.Path, arch: str, only: str) -> None:
    """The cases' models, and one library with the kernels of all."""
    import dataclasses
    from unittest import mock

    import onnx

    from cases.flash_attention import fused
    from onnxopt.artifact.folder import write_library
    from onnxopt.codegen import generate, kernels_json, nvrtc
    from onnxopt.fusion.region import Kernel

    folder.mkdir(parents=True)
    kernels: dict[str, Kernel] = {}
    listed: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(named(ATTENTIONS, only)):
        extended = _extended(case)
        taken = [region.kind.name for region in fused(extended).plan.regions] == ["flash_attention"]
        with mock.patch("onnxopt.costs.attention.pays", return_value=True):
            found = fused(extended)
        for kernel in found.kernels:
            *known, anywhere = kernels.get(kernel.name, kernel).variants  # the last one runs every call, slowly
            merged = {v.symbol: v for v in (*known, *kernel.variants[:-1], anywhere)}
            kernels[kernel.name] = dataclasses.replace(kernel, variants=tuple(merged.values()))
        models = {"ours": with_wrong_bodies(found.optimized), "plain": extended.model(), **_operators(case)}
        files = {}
        for form, model in models.items():
            files[form] = (f"{number}_{form}.onnx", [value.name for value in model.graph.input])
            onnx.save(model, folder / files[form][0])
        listed[case.name] = {"rule": taken, "models": files}
    fatbin = nvrtc.compile_cuda(generate.generate(list(kernels.values())), [arch])
    library = write_library(folder / "lib", kernels_json.to_json(list(kernels.values()), fatbin), fatbin)
    (folder / "lib" / f"{library.name}.xz").write_bytes(lzma.compress(library.read_bytes()))
    library.unlink()
    (folder / "cases.json").write_text(json.dumps(listed, indent=1))
    print(f"{len(listed)} cases, {len(kernels)} kernels, {len(fatbin)} bytes")


def _extended(case: Attention) -> Any:
    from cases.extended_attention import Extended

    bias = None if case.bias is None else case.bias[:2]
    return Extended(
        case.batch, case.tokens, case.tokens, case.heads, case.width, bias=bias, groups=case.groups,
        before=case.before, after=case.after, cap=case.cap, sunk=case.sinks,
        by_query=case.bias is None or case.bias[2],
    )  # fmt: skip


def _operators(case: Attention) -> dict[str, Any]:
    """Models of one operator of ONNX Runtime each, where it computes the case."""
    made: dict[str, Any] = {}
    if case.cap or case.sinks:
        if case.after == 0:
            made["gqa"] = _group_query(case)
        return made
    if case.of_keys == case.heads:
        masked = _mask_shape(case) is not None
        attributes = {"num_heads": case.heads, "unidirectional": int(case.after == 0 and not masked)}
        added = "mask" if masked else "bias" if case.bias else ""
        given = ["q", "k", "v", "", "", added] if added else ["q", "k", "v"]
        made["mha"] = _model(case, "MultiHeadAttention", "com.microsoft", given, attributes)
    if case.after == 0 and case.bias is None:
        made["gqa"] = _group_query(case)
    if case.before < 0 and (case.bias is None or case.after < 0):
        attributes = {"q_num_heads": case.heads, "kv_num_heads": case.of_keys, "is_causal": int(case.after == 0)}
        given = ["q", "k", "v", "bias"] if case.bias else ["q", "k", "v"]
        made["sdpa_op"] = _model(case, "Attention", "", given, attributes)
    return made


def _mask_shape(case: Attention) -> tuple[int, ...] | None:
    """Of a mask of scores, where an operator needs one that holds bias and window; None where it needs none."""
    by_sequence, by_head, by_query = case.bias or (False, False, True)
    if case.before < 0 and by_query and (case.bias is None or case.after < 0):
        return None
    return (case.batch if by_sequence else 1, case.heads if by_head else 1, case.tokens, case.tokens)


def _group_query(case: Attention) -> Any:
    attributes: dict[str, Any] = {"num_heads": case.heads, "kv_num_heads": case.of_keys}
    attributes |= {"local_window_size": case.before + 1} if case.before >= 0 else {}
    attributes |= {"softcap": case.cap} if case.cap else {}
    given = ["q", "k", "v", "", "", "lengths", "total"] + ["", "", "", "", "sinks"] * case.sinks
    return _model(case, "GroupQueryAttention", "com.microsoft", given, attributes)


def _model(case: Attention, op_type: str, domain: str, given: list[str], attributes: dict[str, Any]) -> Any:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    extended = _extended(case)
    shapes = extended.shapes()
    if "mask" in given:
        shapes = {k: v for k, v in shapes.items() if k != "bias"} | {"mask": _mask_shape(case) or ()}
    infos = [helper.make_tensor_value_info(k, TensorProto.FLOAT16, v) for k, v in shapes.items()]
    constants = {
        "lengths": np.full(case.batch, case.tokens - 1, np.int32), "total": np.array(case.tokens, np.int32),
        "sinks": extended.sinks(),
    }  # fmt: skip
    results = ["y", "present_k", "present_v"] if op_type == "GroupQueryAttention" else ["y"]  # which it wants
    node = helper.make_node(op_type, given, results, domain=domain, **attributes)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, [case.batch, case.tokens, case.heads * case.width])
    kept = [numpy_helper.from_array(v, k) for k, v in constants.items() if k in given]
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", infos, [y], kept)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


# --- on the machine with the GPU


def measure(case: Attention, folder: pathlib.Path, files: Models, library: str, flex: bool) -> dict[str, Any]:
    """Microseconds of every form that agrees with float64; what is in the way of the others."""
    import torch

    from benchmarks.support.gpu_timing import session, session_microseconds

    sets = [_inputs(case) for _ in range(_count(case))]
    wanted = _expected(case, sets[-1])
    shape = (case.batch, case.tokens, case.heads * case.width)
    outputs = [{"y": torch.empty(shape, device="cuda", dtype=torch.float16)} for _ in sets]
    row: dict[str, Any] = {}
    for form, (file, names) in files.items():
        given = [{name: x[name] for name in names} for x in sets]
        ops = library if form == "ours" else None

        def opened(stream: Any, path: str = str(folder / file), ops: str | None = ops) -> Any:
            return session(path, ops, "cuda", stream=stream)

        row[form] = _tried(
            lambda opened=opened, given=given: session_microseconds(opened, given, outputs), outputs[-1]["y"], wanted
        )
    for form, run in _of_torch(case, flex).items():
        results = [torch.empty(0)]
        row[form] = _tried(lambda run=run, results=results: _timed(run, sets, results), results, wanted)
    kernels = {k: v for k, v in row.items() if k.startswith("torch ") and isinstance(v, float)}
    best = min(kernels, key=lambda k: kernels[k], default="")
    row = {k: v for k, v in row.items() if not k.startswith("torch ")}
    return row | ({"torch": kernels[best], "torch_kernel": best[6:]} if best else {})


def _count(case: Attention) -> int:
    moved = 8 * case.batch * case.tokens * case.heads * case.width
    return max(1, min(8, _ROTATED // moved))


def _inputs(case: Attention) -> dict[str, Any]:
    import torch

    given: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    b, s = case.batch, case.tokens
    made = {"q": torch.randn(b, s, case.heads * case.width, **given)}
    made |= {name: torch.randn(b, s, case.of_keys * case.width, **given) for name in "kv"}
    if case.bias is not None:
        by_sequence, by_head, by_query = case.bias
        shape = (b if by_sequence else 1, case.heads if by_head else 1, s if by_query else 1, s)
        made["bias"] = torch.randn(shape, **given)
    if (shape := _mask_shape(case)) is not None:
        hidden, bias = _hidden(case), made.get("bias", torch.zeros(1, **given))
        made["mask"] = bias.expand(shape).clone()
        if hidden is not None:
            made["mask"].masked_fill_(hidden, -65504.0)
    return made


def _hidden(case: Attention) -> Any:
    """[S, T], where a query does not see a key; None where all do."""
    import torch

    if case.before < 0 and case.after < 0:
        return None
    at = torch.arange(case.tokens, device="cuda")
    apart = at[:, None] - at
    hidden = -apart > case.after if case.after >= 0 else torch.zeros_like(apart, dtype=torch.bool)
    return hidden | (apart > case.before) if case.before >= 0 else hidden


def _sinks(case: Attention) -> Any:
    import torch

    return torch.linspace(-1.0, 3.0, case.heads).half().double().cuda()


def _heads(case: Attention, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    b, s = case.batch, case.tokens
    q, k, v = (given[name].reshape(b, s, -1, case.width).transpose(1, 2) for name in "qkv")
    return q, k, v


def _expected(case: Attention, given: dict[str, Any]) -> Any:
    """The result in float64, of some sequences and queries at a time."""
    import torch

    q, k, v = _heads(case, given)
    repeats = case.heads // case.of_keys
    hidden, parts = _hidden(case), []
    for b in range(case.batch):
        keys, values = (x[b].double().repeat_interleave(repeats, 0) for x in (k, v))
        scores = q[b].double() @ keys.transpose(1, 2) / case.width**0.5
        if case.cap:
            scores = case.cap * torch.tanh(scores / case.cap)
        if "bias" in given:
            scores += given["bias"][b if case.bias and case.bias[0] else 0].double()
        if hidden is not None:
            scores.masked_fill_(hidden, float("-inf"))
        if case.sinks:
            scores = torch.cat([scores, _sinks(case)[:, None, None].expand(-1, case.tokens, 1)], -1)
        weights = scores.softmax(-1)[..., : case.tokens]
        parts.append((weights @ values).transpose(0, 1).reshape(case.tokens, -1))
    return torch.stack(parts)


def _of_torch(case: Attention, flex: bool) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """What torch computes the case by: kernels of SDPA, and FlexAttention."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if case.sinks:
        return {}
    made: dict[str, Callable[[dict[str, Any]], Any]] = {}
    hidden = _hidden(case)
    causal = case.before < 0 and case.after == 0 and case.bias is None
    shown = None if causal or hidden is None else ~hidden

    def sdpa(given: dict[str, Any], backend: Any) -> Any:
        q, k, v = _heads(case, given)
        with sdpa_kernel(backend):
            y = torch.nn.functional.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=given.get("mask", given.get("bias", shown)),
                is_causal=causal,
                enable_gqa=case.of_keys != case.heads,
            )
        return y.transpose(1, 2).reshape(case.batch, case.tokens, -1)

    if not case.cap:
        for name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
            backend = getattr(SDPBackend, name)
            made[f"torch {name.split('_')[0].lower()}"] = lambda x, b=backend: sdpa(x, b)
    if flex and case.bias is None:
        made["flex"] = _flex(case)
    return made


def _flex(case: Attention) -> Callable[[dict[str, Any]], Any]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def shown(b: Any, h: Any, q: Any, k: Any) -> Any:
        seen = q - k <= case.before if case.before >= 0 else q >= 0
        return seen & (k - q <= case.after) if case.after >= 0 else seen

    def capped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return case.cap * torch.tanh(score / case.cap)

    s = case.tokens
    block = None if _hidden(case) is None else create_block_mask(shown, None, None, s, s, device="cuda")
    compiled = torch.compile(flex_attention, dynamic=False)

    def run(given: dict[str, Any]) -> Any:
        q, k, v = _heads(case, given)
        y = compiled(
            q, k, v, score_mod=capped if case.cap else None, block_mask=block, enable_gqa=case.of_keys != case.heads
        )
        return y.transpose(1, 2).reshape(case.batch, s, -1)

    return run


def _timed(run: Callable[[dict[str, Any]], Any], sets: list[dict[str, Any]], results: list[Any]) -> float:
    import torch

    from benchmarks.support.gpu_timing import microseconds_in_graph

    run(sets[-1])  # compiles
    runs = [lambda x=x: results.__setitem__(0, run(x)) for x in sets]
    with torch.no_grad():
        return microseconds_in_graph(runs, torch.cuda.Stream())


def _tried(time: Callable[[], float], result: Any, wanted: Any) -> float | str:
    """The time of what agrees with float64; of what does not, or fails, a text."""
    import torch

    if isinstance(result, torch.Tensor):
        result.fill_(float("nan"))
    try:
        found = time()
        torch.cuda.synchronize()
        given = result[0] if isinstance(result, list) else result
        error = ((given.reshape(wanted.shape).double() - wanted).norm() / wanted.norm()).item()
    except Exception as problem:  # noqa: BLE001 - the other forms are worth having
        return f"{type(problem).__name__}: {problem}"[-160:].replace("\n", " ")
    return round(found, 2) if error < _LIMIT else f"wrong by {error:.1e}"


def run(folder: pathlib.Path, out: pathlib.Path | None, only: str, flexible: int, seconds: float) -> int:
    """1 where our kernel is wrong or does not run."""
    import tempfile

    import torch

    torch.manual_seed(_SEED)
    listed = json.loads((folder / "cases.json").read_text())
    work = tempfile.TemporaryDirectory()
    lib = pathlib.Path(work.name)
    for file in (folder / "lib").iterdir():
        data = file.read_bytes()
        (lib / file.name.removesuffix(".xz")).write_bytes(lzma.decompress(data) if file.suffix == ".xz" else data)
    rows: dict[str, Any] = {}
    begun = time.perf_counter()
    columns = ("ours", "mha", "gqa", "sdpa_op", "plain", "torch", "flex")
    print("|".join(("case", "rule", *columns)))
    for case in named(ATTENTIONS, only):
        if seconds and time.perf_counter() - begun > seconds:
            print(f"out of time before {case.name}")
            break
        flex = flexible > 0 and case.bias is None and not case.sinks
        flexible -= flex
        found = listed[case.name]
        row = measure(case, folder, found["models"], str(lib / "libonnxopt_ops.so"), flex)
        rows[case.name] = row | {"rule": "ours" if found["rule"] else "ORT"}
        times = [str(v) if isinstance(v := row.get(c, ""), float) else v[:24] for c in columns]
        print("|".join((case.name, rows[case.name]["rule"], *times)), flush=True)
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))
    failed = [name for name, row in rows.items() if not isinstance(row["ours"], float)]
    print(f"{time.perf_counter() - begun:.0f} s; " + (f"FAILED: {', '.join(failed)}" if failed else "ours all agree"))
    return 1 if failed else 0


def main() -> int:
    parser, (prepared, ran) = command(__doc__)
    ran.add_argument("--out", type=pathlib.Path, default=None, help="JSON, rewritten after every case")
    for verb in (prepared, ran):
        verb.add_argument("--only", default="", help="comma-separated parts of names")
    ran.add_argument("--flex", type=int, default=0, help="how many cases to compile FlexAttention for")
    ran.add_argument("--seconds", type=float, default=0, help="start no further case after this many")
    args: argparse.Namespace = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.only)
        return 0
    return run(args.folder, args.out, args.only, args.flex, args.seconds)


if __name__ == "__main__":
    sys.exit(main())
