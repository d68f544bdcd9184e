"""The chart and the sentence of the documentation's front page: networks on one NVIDIA H200 beside both peers' best.

`python docs/generate.py` writes docs/images/networks-light.svg, networks-dark.svg and docs/site/front.md with them.
"""

from __future__ import annotations

import html
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.support import claims

RESULT = claims.RESULTS / "models" / "gpu_networks_h200.json"
ORT = ("ORT", "ORT, both options")
TORCH = ("torch.compile reduce-overhead", "torch.compile channels_last", "torch.compile cuDNN attention")
SCHEMES = {  # colours by class, on the site's own background
    "light": {"text": "#1f2328", "small": "#59636e", "ort": "#8c959f", "torch": "#d4a72c", "one": "#0969da"},
    "dark": {"text": "#f0f6fc", "small": "#a8b1bb", "ort": "#7d8590", "torch": "#c69026", "one": "#4493f8"},
}
GROUPS = ("open", "catalogue", "further")  # of the benchmark: what the chart shows, few enough to read
_NAMES = {
    "bert_f32": "BERT, float32", "catalogue_bert": "BERT-base, float32", "catalogue_convnext": "ConvNeXt, float32",
    "catalogue_llama": "Llama, float32", "catalogue_vit": "ViT-B, float32", "conformer": "Conformer",
    "convbert": "ConvBERT", "dit": "DiT", "dlrm": "DLRM", "dlrm_f32": "DLRM, float32", "ecg_resnet": "ECG ResNet",
    "gru": "GRU", "hifigan": "HiFi-GAN", "lstm": "LSTM", "mmdit": "MMDiT", "mpt": "MPT", "nafnet": "NAFNet",
    "pointnet": "PointNet", "r2plus1d_18": "R(2+1)D-18", "resnet3d_18": "3D ResNet-18", "rrdb": "RRDB",
    "swin_f32": "Swin, float32", "unet1d": "1D U-Net", "unet3d": "3D U-Net", "vgg16_bn": "VGG-16",
    "vit_f32": "ViT, float32", "xlnet": "XLNet",
}  # fmt: skip
_WIDTH, _LEFT, _TOP, _BAR, _GAP = 500, 130, 66, 13, 7


@dataclass(frozen=True)
class Network:
    """ort, torch: the fastest of the peer's options over onnxopt; above 1 the peer takes longer."""

    name: str
    ort: float
    torch: float


def networks(groups: Collection[str] | None = GROUPS) -> list[Network]:
    """Those of some groups, or all, that were timed with both peers, the largest gain over ONNX Runtime first."""
    rows = json.loads(RESULT.read_text("utf-8"))
    ratios = {n: (claims.ratios([row], ORT), claims.ratios([row], TORCH)) for n, row in rows.items()}
    every = [
        Network(_NAMES.get(name, name), *ort, *torch)
        for name, (ort, torch) in ratios.items()
        if ort and torch and (groups is None or rows[name]["group"] in groups)
    ]
    return sorted(every, key=lambda network: -network.ort)


def sentence() -> str:
    """All networks of the result file, in Markdown."""
    rows = list(json.loads(RESULT.read_text("utf-8")).values())
    ort, torch = claims.ratios(rows, ORT), claims.ratios(rows, TORCH)
    return (
        f"On one NVIDIA H200, **{len(ort)} networks run {claims.mean(ort):.1f} times as fast** as in ONNX Runtime with "
        f"its own best options, in the geometric mean ({min(ort):.2f} to {max(ort):.2f}). The {len(torch)} that were "
        f"timed with `torch.compile` as well run {claims.mean(torch):.1f} times as fast as there ({min(torch):.2f} to "
        f"{max(torch):.2f})."
    )


def chart(scheme: str) -> str:
    """An SVG: of each network, how many times as long as onnxopt both peers take. scheme: of SCHEMES."""
    rows = networks()
    scale = (_WIDTH - _LEFT - 36) / max(max(row.ort, row.torch) for row in rows)
    bottom = _TOP + len(rows) * (2 * _BAR + _GAP)
    one = _LEFT + scale
    parts = [*_head(scheme, bottom), *_legend()]
    for k, row in enumerate(rows):
        y = _TOP + k * (2 * _BAR + _GAP)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + _BAR + 4}" text-anchor="end">{html.escape(row.name)}</text>')
        for kind, ratio, top in (("ort", row.ort, y), ("torch", row.torch, y + _BAR)):
            parts += _bar(kind, ratio, top, scale)
    parts.append(f'<path class="one" d="M{one:.1f} {_TOP - 6}V{bottom - _GAP + 4}"/>')
    return "\n".join([*parts, "</svg>\n"])


_TITLE = "Time of a run, in multiples of onnxopt's"


def _head(scheme: str, height: int) -> Iterator[str]:
    colours = SCHEMES[scheme]
    rules = [f".{kind} {{ fill: {colours[kind]} }}" for kind in ("small", "ort", "torch")]
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        f'role="img" aria-label="{_TITLE}">'
    )
    yield f"<style>\ntext {{ font: 14px system-ui, sans-serif; fill: {colours['text']} }}"
    yield f".title {{ font-weight: 600; font-size: 16px }} .small {{ font-size: 13px }} {' '.join(rules)}"
    yield f".one {{ stroke: {colours['one']}; stroke-width: 2 }}\n</style>"


def _legend() -> Iterator[str]:
    yield f'<text class="title" x="4" y="18">{_TITLE}</text>'
    x = 4
    for kind, label, width in (("ort", "ONNX Runtime's best", 166), ("torch", "torch.compile's best", 164)):
        yield f'<rect class="{kind}" x="{x}" y="33" width="11" height="11"/>'
        yield f'<text class="small" x="{x + 17}" y="43">{label}</text>'
        x += width
    yield f'<path class="one" d="M{x + 6} 31V46"/><text class="small" x="{x + 17}" y="43">onnxopt = 1</text>'


def _bar(kind: str, ratio: float, y: int, scale: float) -> Sequence[str]:
    width = ratio * scale
    return (
        f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR - 1}"/>',
        f'<text class="small" x="{_LEFT + width + 4:.1f}" y="{y + 10.5}">{ratio:.2f}</text>',
    )
