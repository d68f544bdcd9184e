"""Index operators around norms: one fused kernel against a kernel for each part, and ONNX Runtime.

    python -m benchmarks.kernels.row_index_ops prepare DIR --arch sm_90      on any machine, without a GPU
    python -m benchmarks.kernels.row_index_ops run DIR --out FILE            on the GPU machine

`run` first compares both with the unchanged graph in float32. Many runs are captured in one CUDA graph and timed.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any
from unittest import mock

import numpy as np
import onnx
import torch

from benchmarks.support.arguments import add_device_and_out, command
from benchmarks.support.gpu_timing import copy_microseconds, library, poisoned, rotation, session, session_microseconds

_HALF = "int64[1] zero = {0}, int64[1] half = {64}, int64[1] all = {128}, int64[1] last = {-1}"
_ROTARY = (
    "ac = Mul(t, c) h = Slice(t, zero, half, last) k = Slice(t, half, all, last) nk = Neg(k) "
    "r = Concat<axis = -1>(nk, h) bs = Mul(r, s) y = Add(ac, bs)"
)
_QK = "v = Reshape(x, heads) n = RMSNormalization(v, g) t = Transpose<perm = [0, 2, 1, 3]>(n) "
_CONVNEXT = (
    "t = Transpose<perm = [0, 2, 3, 1]>(x) n = LayerNormalization(t, g, b) y = Transpose<perm = [0, 3, 1, 2]>(n)"
)


def _image(channels: int, side: int) -> tuple[str, str, str, str]:
    shape = f"float16[16,{channels},{side},{side}]"
    return f"{shape} x, float16[{channels}] g, float16[{channels}] b", f"{shape} y", _CONVNEXT, ""


def _windows(side: int, channels: int) -> tuple[str, str, str, str]:
    """The sum behind a block of MaxViT, which is read again, and its norm in the order of windows of 7x7."""
    shape, count = f"float16[16,{side},{side},{channels}]", (side // 7) ** 2
    return (
        f"{shape} x, {shape} r, float16[{channels}] g, float16[{channels}] b",
        f"{shape} z, float16[{16 * count},49,{channels}] y",
        "z = Add(x, r) n = LayerNormalization(z, g, b) s = Reshape(n, w) t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(s) "
        "y = Reshape(t, q)",
        f"int64[6] w = {{16, {side // 7}, 7, {side // 7}, 7, {channels}}}, "
        f"int64[3] q = {{{16 * count}, 49, {channels}}}",
    )


# name: inputs, outputs, body, constants
CASES: dict[str, tuple[str, str, str, str]] = {
    "q norm and rotary, 1x512x16x128": (
        "float16[1,512,2048] x, float16[128] g, float16[1,1,512,128] c, float16[1,1,512,128] s",
        "float16[1,16,512,128] y", _QK + _ROTARY, f"{_HALF}, int64[4] heads = {{0, 0, 16, 128}}",
    ),
    "q norm and rotary, 4x4096x16x128": (
        "float16[4,4096,2048] x, float16[128] g, float16[1,1,4096,128] c, float16[1,1,4096,128] s",
        "float16[4,16,4096,128] y", _QK + _ROTARY, f"{_HALF}, int64[4] heads = {{0, 0, 16, 128}}",
    ),
    "k norm, to heads, 4x4096x4x128": (
        "float16[4,4096,512] x, float16[128] g", "float16[4,4,4096,128] y",
        _QK.replace("t = ", "y = "), "int64[4] heads = {0, 0, 4, 128}",
    ),
    "k norm, expanded for 4 query heads": (
        "float16[4,2048,512] x, float16[128] g", "float16[4,4,4,2048,128] y",
        _QK + "u = Unsqueeze(t, two) y = Expand(u, e)",
        "int64[4] heads = {0, 0, 4, 128}, int64[1] two = {2}, int64[5] e = {4, 4, 4, 2048, 128}",
    ),
    "heads to tokens, norm, 8x12x512x64": (
        "float16[8,12,512,64] x, float16[768] g, float16[768] b", "float16[8,512,768] y",
        "t = Transpose<perm = [0, 2, 1, 3]>(x) v = Reshape(t, flat) y = LayerNormalization(v, g, b)",
        "int64[3] flat = {0, 0, 768}",
    ),
    "half of a product, norm, 16384x2048": (
        "float16[16384,4096] x, float16[2048] g", "float16[16384,2048] y, float16[16384,2048] z",
        "a, k = Split<axis = -1, num_outputs = 2>(x) y = RMSNormalization(a, g) q = Sigmoid(k) z = Mul(k, q)", "",
    ),
    "gated product and its mean, 16384x2048": (
        "float16[16384,4096] x", "float16[16384,1] y",
        "a, k = Split<axis = -1, num_outputs = 2>(x) q = Sigmoid(k) m = Mul(a, q) y = ReduceMean(m, last)",
        "int64[1] last = {-1}",
    ),
    "Swin: norm, shifted windows, 16x56x56x96": (
        "float16[16,56,56,96] x, float16[96] g, float16[96] b", "float16[1024,49,96] y",
        "n = LayerNormalization(x, g, b) r = Reshape(n, w) t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(r) "
        "y = Reshape(t, q)",
        "int64[6] w = {16, 8, 7, 8, 7, 96}, int64[3] q = {1024, 49, 96}",
    ),
    "ViT: class token, position, norm, 64x197x768": (
        "float16[64,196,768] x, float16[64,1,768] k, float16[1,197,768] p, float16[768] g, float16[768] b",
        "float16[64,197,768] y, float16[64,197,768] z",
        "a = Concat<axis = 1>(k, x) z = Add(a, p) y = LayerNormalization(z, g, b)", "",
    ),
    "MaxViT: sum, norm, windows, 16x56x56x64": _windows(56, 64),
    "MaxViT: sum, norm, windows, 16x28x28x128": _windows(28, 128),
    "MaxViT: sum, norm, windows, 16x14x14x256": _windows(14, 256),
    "MaxViT: sum, norm, windows, 16x7x7x512": _windows(7, 512),
    "softmax with a sink, 8x16x512x512": (
        "float16[8,16,512,512] x, float16[8,16,512,1] k", "float16[8,16,512,513] y",
        "a = Concat<axis = -1>(x, k) y = Softmax(a)", "",
    ),
    "part of padded scores, softmax, 8x16x512x512": (
        "float16[8,16,512,576] x", "float16[8,16,512,512] y", "a = Slice(x, zero, end, last) y = Softmax(a)",
        "int64[1] zero = {0}, int64[1] end = {512}, int64[1] last = {-1}",
    ),
    "ConvNeXt: norm between transposes, 96x56": _image(96, 56),
    "ConvNeXt: norm between transposes, 192x28": _image(192, 28),
    "ConvNeXt: norm between transposes, 384x14": _image(384, 14),
    "ConvNeXt: norm between transposes, 768x7": _image(768, 7),
}  # fmt: skip
_FORMS = ("joined", "apart", "original")


def _model(case: tuple[str, str, str, str]) -> onnx.ModelProto:
    inputs, outputs, body, constants = case
    header = '<ir_version: 10, opset_import: ["" : 23]>'
    return onnx.parser.parse_model(f"{header} g ({inputs}) => ({outputs}) <{constants}> {{ {body} }}")


def prepare(folder: pathlib.Path, arch: str) -> None:
    """Write every case's model in its three forms, and one library."""
    from benchmarks.support.collection import Collection
    from onnxopt.kinds.rowwise import merge

    folder.mkdir(parents=True)
    collection, described = Collection(), {}
    for k, (name, case) in enumerate(CASES.items()):
        model = _model(case)
        joined, plan = collection.optimize(model)
        with mock.patch.object(merge, "merge", lambda context, kind, regions: (list(regions), [])):
            apart, _ = collection.optimize(model)
        for form, found in zip(_FORMS, (joined, apart, model), strict=True):
            onnx.save(found, folder / f"{k}.{form}.onnx")
        described[name] = [len(joined.graph.node), len(apart.graph.node), len(model.graph.node)]
        print(name, described[name], [f"{r.op_type}: {r.reason}" for r in plan.refusals], flush=True)
    (folder / "nodes.json").write_text(json.dumps(described))
    collection.write_library(folder, [arch])


class _Case:
    """One case on one device."""

    def __init__(self, k: int, folder: pathlib.Path, device: str):
        self._at, self._folder, self._device = k, folder, device
        graph = onnx.load(folder / f"{k}.original.onnx").graph
        dims = [
            {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in rows}
            for rows in (graph.input, graph.output)
        ]
        self._dims, self._results = dims
        self.bytes = sum(2 * int(np.prod(d)) for rows in dims for d in rows.values())

    def _inputs(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        drawn = {name: torch.randn(d, generator=generator) for name, d in self._dims.items()}
        return {name: t.to(self._device, torch.float16) for name, t in drawn.items()}

    def _empty(self) -> dict[str, torch.Tensor]:
        return {name: poisoned(d, torch.float16, self._device) for name, d in self._results.items()}

    def _open(self, form: str, **options: Any) -> Any:
        ops = None if form == "original" else library(self._folder)
        return session(str(self._folder / f"{self._at}.{form}.onnx"), ops, self._device, **options)

    def error(self, form: str) -> float:
        """The largest difference from onnx's reference evaluator in float32, over 1 + |expected|."""
        from onnx.reference import ReferenceEvaluator

        from benchmarks.support.gpu_timing import bound

        inputs, outputs = self._inputs(0), self._empty()
        if self._device != "cpu":
            torch.cuda.synchronize()
        bound(self._open(form), inputs, outputs)()
        text = onnx.printer.to_text(onnx.load(self._folder / f"{self._at}.original.onnx"))
        wide = onnx.parser.parse_model(text.replace("float16[", "float["))
        expected = ReferenceEvaluator(wide).run(None, {k: v.float().cpu().numpy() for k, v in inputs.items()})
        pairs = zip(outputs.values(), expected, strict=True)
        return max(float((np.abs(f.float().cpu().numpy() - e) / (1 + np.abs(e))).max()) for f, e in pairs)

    def microseconds(self, form: str) -> float:
        sets = rotation(self.bytes, self._device, 16)
        inputs, outputs = [self._inputs(0) for _ in range(sets)], [self._empty() for _ in range(sets)]
        return session_microseconds(lambda stream: self._open(form, stream=stream), inputs, outputs)

    def copy(self) -> float:
        return copy_microseconds(self.bytes, rotation(self.bytes, self._device, 16))


def run(folder: pathlib.Path, device: str, out: pathlib.Path | None, forms: list[str], only: str) -> int:
    """Compare and time every case with `only` in its name; 0 if all agree."""
    rows: dict[str, Any] = {}
    for k, name in enumerate(json.loads((folder / "nodes.json").read_text())):
        if only and not any(part in name for part in only.split(",")):
            continue
        case = _Case(k, folder, device)
        row = rows[name] = {"MB": case.bytes / 1e6}
        try:
            row |= {f"{form} error": case.error(form) for form in _FORMS[:2]}
            if device != "cpu":
                row["copy"] = case.copy()
                row |= {form: case.microseconds(form) for form in forms}
                torch.cuda.empty_cache()
        except Exception as error:  # noqa: BLE001 - one case that fails must not cost the others their numbers
            row["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        print(f"{name:48} { ({k: v if isinstance(v, str) else round(v, 4) for k, v in row.items()}) }", flush=True)
        if out is not None:
            out.write_text(json.dumps(rows, indent=1))
    bad = [n for n, r in rows.items() if "failed" in r or not max(r["joined error"], r["apart error"]) < 1e-2]
    print(f"FAILED: {', '.join(bad)}" if bad else "all agree")
    return 1 if bad else 0


def main() -> int:
    parser, (_, ran) = command(__doc__)
    add_device_and_out(ran)
    ran.add_argument("--forms", nargs="+", default=list(_FORMS), choices=_FORMS, help="what to time")
    ran.add_argument("--only", default="", help="comma-separated parts of names")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch)
        return 0
    return run(args.folder, args.device, args.out, args.forms, args.only)


if __name__ == "__main__":
    sys.exit(main())
