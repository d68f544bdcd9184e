"""Times of whole models and their peers on one NVIDIA H200, from the result files: the README's picture and a table.

`python docs/generate.py` draws docs/images/measured.svg.
"""

from __future__ import annotations

import html
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "models"
_PEERS, _NETWORKS = "gpu_peers_h200.json", "gpu_convolution_peers_h200.json"
_PACKED, _UNSEEN = "gpu_packed_h200.json", "gpu_unseen_h200.json"
_MODELS = (  # name, result file, row
    ("BERT-base, 8 x 128 tokens", _PEERS, "bert"),
    ("ViT-base, 16 images of 224", _PEERS, "vit"),
    ("Whisper encoder of 6 layers, 4 x 3000", _PEERS, "whisperenc"),
    ("Llama, 8 layers of 2048, 1 x 512 tokens", _PEERS, "llama"),
    ("the same Llama, 1 token, a cache of 512", _PEERS, "llama_decode"),
    ("the same with weights of 8 bits", _PACKED, "8 bits x 1"),
    ("the same with weights of 4 bits", _PACKED, "4 bits x 1"),
    ("Swin-tiny, 16 images of 224", _UNSEEN, "swin_tiny_patch4_window7_224"),
    ("ResNet50, 32 images of 224", _NETWORKS, "resnet50"),
    ("detector like YOLOv8, 8 images of 640", _NETWORKS, "csp_detector"),
    ("ConvNeXt-tiny, 16 images of 224", _NETWORKS, "convnext"),
    ("EfficientNet-B0, 32 images of 224", _NETWORKS, "efficientnet"),
    ("UNet2DCondition, 4 x 4 x 32 x 32", _NETWORKS, "unet"),
)
_PLAIN = ("ORT + CUDA graph", "ORT")
_OPTIONS = ("ORT + CUDA graph, NHWC", "ORT, both options", "ORT after ort_fusions", "ORT after transformers.optimizer")
_TORCH = ("torch.compile reduce-overhead", "torch.compile channels_last")


@dataclass(frozen=True)
class Measured:
    """ms a run, None where a peer was not timed. best: the fastest of ONNX Runtime's options and offline optimizers."""

    name: str
    ort: float
    best: float | None
    torch: float | None
    onnxopt: float


def _times(row: Mapping[str, Any]) -> dict[str, float]:
    """By label; `models.packed` keeps the rounds of each side below "ms"."""
    sides = {label: side["best"] for label, side in row.get("ms", {}).items()}
    return sides or {label: ms for label, ms in row.items() if isinstance(ms, float)}


def _least(times: Mapping[str, float], labels: Sequence[str]) -> float | None:
    return min((times[label] for label in labels if label in times), default=None)


def measured() -> Iterator[Measured]:
    for name, file, key in _MODELS:
        times = _times(json.loads((RESULTS / file).read_text("utf-8"))[key])
        plain = next(times[label] for label in _PLAIN if label in times)
        yield Measured(name, plain, _least(times, _OPTIONS), _least(times, _TORCH), times["onnxopt"])


def table() -> str:
    """ms of each model, for benchmarks/notes/README.md."""
    lines = ["| model | ORT | ORT, its best option or optimizer | torch.compile | onnxopt |", "|---|---|---|---|---|"]
    for row in measured():
        cells = ["" if ms is None else f"{ms:.2f}" for ms in (row.ort, row.best, row.torch)]
        lines.append(f"| {row.name} | {' | '.join(cells)} | **{row.onnxopt:.2f}** |")
    return "\n".join(lines) + "\n"


_WIDTH, _LEFT, _BAR, _GAP, _TOP = 820, 290, 11, 12, 58
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e }
.onnxopt { fill: #0969da } .torch { fill: #d4a72c } .best { fill: #8c959f } .title { font-weight: 600 }
@media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .small { fill: #9198a1 } .back { fill: #0d1117 } }
.back { fill: #ffffff } @media (prefers-color-scheme: dark) { .back { fill: #0d1117 } }"""
_BARS = (
    ("onnxopt", "onnxopt"),
    ("torch", "torch.compile, reduce-overhead"),
    ("best", "ORT, its best option or optimizer"),
)


def picture() -> str:
    """An SVG: of each model, how many times as fast as plain ONNX Runtime onnxopt and its peers are."""
    rows = list(measured())
    scale = (_WIDTH - _LEFT - 50) / max(row.ort / row.onnxopt for row in rows)
    y, parts = _TOP, list(_legend())
    for row in rows:
        ratios = [(kind, row.ort / ms) for kind, ms in _bars(row)]
        height = len(ratios) * _BAR
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y + height / 2 + 4:g}" text-anchor="end">{html.escape(row.name)}</text>'
        )
        for kind, ratio in ratios:
            width = ratio * scale
            parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 1}"/>')
            parts.append(f'<text class="small" x="{_LEFT + width + 5:.1f}" y="{y + 9}">{ratio:.2f}</text>')
            y += _BAR
        y += _GAP
    one = _LEFT + scale
    line = f'<path d="M{one:.1f} {_TOP - 6}V{y - _GAP + 4}" stroke="#8c959f" stroke-dasharray="3 3"/>'
    size = f'width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_TITLE}">\n<style>\n{_STYLE}\n</style>'
    )
    back = f'<rect class="back" width="{_WIDTH}" height="{y}"/>'
    return "\n".join([head, back, *parts, line, "</svg>\n"])


_TITLE = "Times as fast as ONNX Runtime: float16, CUDA graphs, one NVIDIA H200"


def _bars(row: Measured) -> Iterator[tuple[str, float]]:
    for kind, ms in (("onnxopt", row.onnxopt), ("torch", row.torch), ("best", row.best)):
        if ms is not None:
            yield kind, ms


def _legend() -> Iterator[str]:
    yield f'<text class="title" x="10" y="20">{_TITLE}</text>'
    x = 10
    for kind, label in _BARS:
        yield f'<rect class="{kind}" x="{x}" y="32" width="10" height="10"/>'
        yield f'<text class="small" x="{x + 15}" y="41">{label}</text>'
        x += 30 + 6 * len(label)
    yield f'<text class="small" x="{x}" y="41">dashed: ORT = 1</text>'
