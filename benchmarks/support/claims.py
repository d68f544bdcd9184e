"""What stands today: a claim a row, its figure computed from the result files, for benchmarks/notes/README.md.

python -m benchmarks.support.claims     writes the table into the page anew
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.support import measured_models

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "benchmarks" / "notes" / "README.md"
BEGIN, END = "<!-- written by benchmarks/support/claims.py -->\n", "<!-- end of what is written -->\n"
_MODELS = """
Whole models of the README's picture, ms a run with a CUDA graph, float16, one NVIDIA H200 (`models.peers`,
`models.packed`, `models.networks`). "Its best option or optimizer" is the fastest of `prefer_nhwc` with
`fuse_conv_bias`, onnxscript's `ort_fusions` and transformers.optimizer, of those that were timed. `torch.compile` runs
its mode `reduce-overhead`, over channels_last where that is faster.

"""
_COMPILED = ("torch.compile reduce-overhead", "torch.compile channels_last", "torch.compile max-autotune")
_CALLS = ("h100", "h200", "more_h200", "forms_h200", "wide_h200", "alone_h200")
_UNSEEN = tuple(f"models/gpu_unseen_transformers_{call}.json" for call in _CALLS)
_ORT_OF_PEERS = (
    "ORT + CUDA graph",
    "ORT + CUDA graph, NHWC",
    "ORT after ort_fusions",
    "ORT after transformers.optimizer",
)


@dataclass(frozen=True)
class Claim:
    """results: paths below benchmarks/results, which `figure` gets as JSON, in order. date: of the newest."""

    claim: str
    results: tuple[str, ...]
    figure: Callable[..., str]
    benchmark: str
    date: str
    gpu: str = "H200"

    def computed(self) -> str:
        return self.figure(*(json.loads((RESULTS / path).read_text("utf-8")) for path in self.results))

    def row(self) -> str:
        files = ", ".join(f"`results/{path}`" for path in self.results)
        return f"| {self.claim} | {self.computed()} | {self.gpu} | {self.date} | {files} | `{self.benchmark}` |\n"


def figures() -> dict[str, str]:
    """Claim -> its figure, computed from the result files of today."""
    return {claim.claim: claim.computed() for claim in CLAIMS}


def mean(ratios: Iterable[float]) -> float:
    """Geometric."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms))


def models(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a file of `models.networks`, which may group them by the call."""
    for name, row in document.items():
        if isinstance(row, dict):
            if "onnxopt" in row and "ORT" in row:
                yield name, row
            else:
                yield from models(row)


def ratios(rows: Iterable[Mapping[str, Any]], peers: Sequence[str]) -> list[float]:
    """The fastest of these peers over onnxopt, of each row that has one of them and whose outputs agree."""
    agreeing = [row for row in rows if row.get("onnxopt agrees") is not False]
    times = [([row[peer] for peer in peers if isinstance(row.get(peer), float)], row["onnxopt"]) for row in agreeing]
    return [min(others) / ours for others, ours in times if others]


def _spread(numbers: Sequence[float], of: str) -> str:
    low, high = min(numbers), max(numbers)
    return f"{len(numbers)} {of}: {low:.2f} to {high:.2f} times as fast, {mean(numbers):.2f} in the geometric mean"


def _peers(peers: Sequence[str]) -> Callable[..., str]:
    def figure(*documents: Mapping[str, Any]) -> str:
        return _spread(ratios([row for document in documents for row in document.values()], peers), "models")

    return figure


def _unseen(peers: Sequence[str]) -> Callable[..., str]:
    """Of a model in several files, the last one's row counts."""

    def figure(*documents: Mapping[str, Any]) -> str:
        rows = {name.partition(" (")[0]: row for document in documents for name, row in models(document)}
        return _spread(ratios(rows.values(), peers), "models")

    return figure


def _sides(rows: Sequence[str], before: str, after: str) -> Callable[[Mapping[str, Any]], str]:
    """ms of both sides: the best round of each row."""

    def figure(document: Mapping[str, Any]) -> str:
        times = [document[row].get("ms", document[row]) for row in rows]
        both = [(ms[before]["best"], ms[after]["best"]) for ms in times]
        return "; ".join(f"{row} {one:.2f} and {two:.2f} ms" for row, (one, two) in zip(rows, both, strict=True))

    return figure


def _precision(document: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{name} {row['cuda_graph']['export']['best']:.2f} and {row['cuda_graph']['lowered']['best']:.2f} ms"
        for name, row in document.items()
    )


def _mixtures(document: Mapping[str, Any]) -> str:
    best = [(row["ORT"], row["onnxopt, CUDA graph"]) for layer in document.values() for row in layer.values()]
    return _spread([ort / ours for ort, ours in best], "cases")


def _beside(ours: str, peer: str) -> Callable[[Mapping[str, Any]], str]:
    """Cases of single kernels that have both times."""

    def figure(document: Mapping[str, Any]) -> str:
        pairs = [(row.get(peer), row.get(ours)) for row in document.values()]
        return _spread([a / b for a, b in pairs if isinstance(a, float) and isinstance(b, float)], "cases")

    return figure


def _attention(document: Mapping[str, Any]) -> str:
    """Where the rule takes our kernel, against the fastest of ONNX Runtime's operators and torch's kernels."""
    chosen = [row for row in document.values() if row["rule"] == "ours"]
    peers = ("plain", "mha", "sdpa_op", "gqa", "torch")
    best = [min(row[peer] for peer in peers if isinstance(row.get(peer), float)) for row in chosen]
    return _spread([peer / row["ours"] for peer, row in zip(best, chosen, strict=True)], "shapes")


def _predicted(document: Mapping[str, Any]) -> str:
    after, before = document["summary"]["after"], document["summary"]["before"]
    low, high = before["least"], before["greatest"]
    return f"{after['least']:.2f} to {after['greatest']:.2f} times after optimizing, {low:.2f} to {high:.2f} before"


def _chains(document: Mapping[str, Any]) -> str:
    return _spread([row["speedup"] for row in document["rows"].values()], "chains of 16 MB")


def _trained(document: Mapping[str, Any]) -> str:
    rows = document["rows"].values()
    faster = sum(row["ratio_band"][0] > max(1.0, row["band_AA"][1]) for row in rows)
    slower = sum(row["ratio_band"][1] < min(1.0, row["band_AA"][0]) for row in rows)
    return f"of {len(rows)} trained models {faster} faster by more than the noise, {slower} slower"


CLAIMS = (
    Claim(
        "transformers beside `torch.compile`",
        ("models/gpu_peers_h200.json",),
        _peers(_COMPILED),
        "models.peers",
        "2026-11-28",
    ),
    Claim(
        "transformers beside the best of ONNX Runtime",
        ("models/gpu_peers_h200.json",),
        _peers(_ORT_OF_PEERS),
        "models.peers",
        "2026-11-28",
    ),
    Claim(
        "convolution networks beside `torch.compile`",
        ("models/gpu_convolution_peers_h200.json",),
        _peers(_COMPILED),
        "models.peers",
        "2026-11-27",
    ),
    Claim(
        "convolution networks beside the best of ONNX Runtime",
        ("models/gpu_convolution_peers_h200.json",),
        _peers(_ORT_OF_PEERS),
        "models.peers",
        "2026-11-27",
    ),
    Claim(
        "transformers that nothing was tuned for, beside ONNX Runtime",
        _UNSEEN,
        _unseen(("ORT",)),
        "models.networks",
        "2026-11-28",
        "H200, H100",
    ),
    Claim(
        "the same beside `torch.compile`, where it was timed",
        _UNSEEN,
        _unseen(_COMPILED),
        "models.networks",
        "2026-11-28",
        "H200, H100",
    ),
    Claim(
        "convolution networks that nothing was tuned for, beside the best of ONNX Runtime",
        ("models/gpu_unseen_h200.json",),
        _peers(("ORT", "ORT, both options")),
        "models.networks",
        "2026-11-24",
    ),
    Claim(
        "transformers, convolution networks, speech, volumes, recommenders, beside the best of ONNX Runtime",
        ("models/gpu_networks_h200.json",),
        _peers(("ORT", "ORT, both options")),
        "models.networks",
        "2026-12-01",
    ),
    Claim(
        "the same beside the best of `torch.compile`, where it was timed",
        ("models/gpu_networks_h200.json",),
        _peers(("torch.compile reduce-overhead", "torch.compile channels_last", "torch.compile cuDNN attention")),
        "models.networks",
        "2026-12-01",
    ),
    Claim(
        "one decoding step with packed weights, ONNX Runtime and onnxopt",
        ("models/gpu_packed_h200.json",),
        _sides(("4 bits x 1", "8 bits x 1", "16 bits x 1"), "ORT", "onnxopt"),
        "models.packed",
        "2026-11-23",
    ),
    Claim(
        "products of 8-bit floats, float16 and float8",
        ("models/gpu_float8_h200.json",),
        _sides(("bert", "vit", "whisperenc", "llama"), "float16", "float8"),
        "models.float8",
        "2026-11-28",
    ),
    Claim(
        "`--precision float16`: the float16 export and the lowered float32 export",
        ("models/gpu_precision_h200.json",),
        _precision,
        "models.precision",
        "2026-11-23",
    ),
    Claim(
        "BERT-base in int8 QDQ, ONNX Runtime and onnxopt",
        ("models/gpu_quantized_h200.json",),
        _sides(("linear_layers",), "default", "onnxopt"),
        "models.quantized",
        "2026-11-23",
    ),
    Claim(
        "a layer of a mixture of experts, beside ONNX Runtime",
        ("models/gpu_mixtures_h200.json",),
        _mixtures,
        "models.mixtures",
        "2026-11-24",
    ),
    Claim(
        "rows (norms, softmax, means) beside ONNX Runtime",
        ("rows/gpu_rows_h200.json",),
        _beside("fused_us", "ort_us"),
        "kernels.rows",
        "2026-11-22",
    ),
    Claim(
        "rows beside Inductor",
        ("rows/gpu_rows_h200.json",),
        _beside("fused_us", "inductor_us"),
        "kernels.rows",
        "2026-11-22",
    ),
    Claim(
        "pointwise regions beside Inductor",
        ("pointwise/gpu_regions_h200.json",),
        _beside("fused_us", "inductor_us"),
        "kernels.regions",
        "2026-11-22",
    ),
    Claim(
        "attention where the rule takes our kernel, beside the best of ONNX Runtime and torch",
        ("attention/gpu_attention_h200.json",),
        _attention,
        "kernels.attention",
        "2026-11-28",
    ),
    Claim("measured over predicted times", ("models/predicted_h200.json",), _predicted, "cpu.predicted", "2026-11-28"),
    Claim(
        "chains on a CPU beside ONNX Runtime",
        ("cpu/cpu_chains.json",),
        _chains,
        "cpu.chains",
        "2026-11-21",
        "none, 2 cores",
    ),
    Claim(
        "trained models on a CPU beside ONNX Runtime",
        ("cpu/cpu_models.json",),
        _trained,
        "cpu.models",
        "2026-11-21",
        "none, 2 cores",
    ),
)


def table() -> str:
    head = "| claim | figure | GPU | date | result files | benchmark |\n|---|---|---|---|---|---|\n"
    return head + "".join(claim.row() for claim in CLAIMS)


def page(text: str) -> str:
    """The page with the table of today between its two marks."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + _MODELS + measured_models.table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
