"""The report's plots as SVG text: a roofline, distributions of latency, and figures over sizes.

Drawn in a box of 420 units, so that its 12-unit letters can be read at 360 px. Colours come from the page's style
sheet.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

_WIDTH, _HEIGHT = 420, 300
_MARGIN_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 408, 26, 258
_ROOFS_END = 318  # right of it stand the GPUs' names
_LINE = 13.0  # between two labels
_LETTER, _GAP = 7.0, 8.0  # width of a digit, and what stays free between two numbers of an axis
_LABELLED = 15.0  # percent of the width that a part of a stacked bar takes to hold its share
_LONGEST_TAIL = 1.25  # of the slowest 95th percentile: what lies beyond is cut off, and said


@dataclasses.dataclass(frozen=True)
class Roof:
    """A GPU: bytes/s that its memory moves, and float32 instructions/s (a fused multiply-add counts as one).

    measured: the driver's names of this GPU where the report has measurements on it.
    """

    name: str
    bandwidth: float
    instructions: float
    measured: tuple[str, ...] = ()

    def at(self, intensity: float) -> float:
        """Instructions/s that a kernel of so many instructions a byte can reach."""
        return min(self.instructions, self.bandwidth * intensity)


@dataclasses.dataclass(frozen=True)
class Point:
    """A kernel: instructions a byte, and the instructions/s it was measured at (None: drawn on the roof)."""

    name: str
    intensity: float
    rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Curve:
    """A distribution: values at equal steps of probability, from the least to the greatest."""

    name: str
    quantiles: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Line:
    """Figures above 0 by size, sizes from 1 on ascending."""

    name: str
    points: tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a stacked bar. kind: the class that colours it. text: the value as people read it."""

    name: str
    kind: str
    value: float
    text: str


Scale = Callable[[float], float]


def roofline(roofs: Sequence[Roof], points: Sequence[Point]) -> Markup:
    """Roofs of some GPUs, the first drawn strongest, and the kernels: on its roof, or where they were measured."""
    first = roofs[0]
    low, high = _decades([p.intensity for p in points] + [first.instructions / first.bandwidth])
    slowest = min([r.at(low) for r in roofs] + [p.rate for p in points if p.rate])
    bottom, top = _decades([slowest, *(r.at(high) for r in roofs)])
    x, y = _log_scale(low, high, _MARGIN_LEFT, _ROOFS_END), _log_scale(bottom, top, _BOTTOM, _TOP)
    parts = [
        *_x_axis(x, _powers(low, high), "float32 instructions a byte", _power_text),
        *_y_axis(y, _powers(bottom, top), "instructions a second", _rate_text, _ROOFS_END),
    ]
    for k, roof in reversed(list(enumerate(roofs))):
        ridge = min(max(roof.instructions / roof.bandwidth, low), high)
        line = " ".join(f"{x(i):.1f},{y(roof.at(i)):.1f}" for i in (low, ridge, high))
        parts.append(f'<polyline class="roof{" first" if k == 0 else ""}" points="{line}"/>')
    parts += _labels([(y(r.at(high)), r.name.removeprefix("GeForce ")) for r in roofs], roofs[0].name)
    parts += [_circle(point, first, x, y) for point in points]
    return _svg(parts, f"Roofline of {first.name} with {len(points)} kernels")


def _circle(point: Point, roof: Roof, x: Scale, y: Scale) -> str:
    rate = point.rate or roof.at(point.intensity)
    kind = "measured" if point.rate else "predicted"
    share = f", {rate / roof.at(point.intensity):.0%} of the roof" if point.rate else ""
    title = Markup("<title>{}</title>").format(f"{point.name}: {kind}{share}")
    return f'<circle class="{kind}" cx="{x(point.intensity):.1f}" cy="{y(rate):.1f}" r="4.5">{title}</circle>'


def distribution(curves: Sequence[Curve], unit: str) -> Markup:
    """Share of runs that took at most so long, a curve each."""
    limit = _LONGEST_TAIL * max(c.quantiles[int(0.95 * (len(c.quantiles) - 1))] for c in curves)
    low = min(c.quantiles[0] for c in curves)
    high = min(limit, max(c.quantiles[-1] for c in curves))
    ticks = _nice_ticks(low, high)
    low, high = ticks[0], ticks[-1]
    x, y = _linear_scale(low, high, _MARGIN_LEFT, _RIGHT), _linear_scale(0.0, 1.0, _BOTTOM, _TOP)
    parts = [
        *_x_axis(x, ticks, f"{unit} a run", lambda v: f"{v:g}"),
        *_y_axis(y, [0.0, 0.25, 0.5, 0.75, 1.0], "share of runs", lambda v: f"{v:.0%}"),
    ]
    for k, curve in enumerate(curves):
        steps = len(curve.quantiles) - 1
        inside = [(q, n / steps) for n, q in enumerate(curve.quantiles) if q <= high]
        line = " ".join(f"{x(q):.1f},{y(share):.1f}" for q, share in inside)
        parts.append(f'<polyline class="curve c{k}" points="{line}"/>')
    return _svg(parts, f"Distribution of {unit} a run: {', '.join(c.name for c in curves)}")


def stacked(parts: Sequence[Part], whole: float, summary: str) -> Markup:
    """One bar of parts side by side, of which `whole` would fill the width; a part that is wide enough has its share.

    Places are shares of the width, so that the letters keep their size on every screen.
    """
    drawn, left, total = [], 0.0, sum(part.value for part in parts)
    for part in parts:
        width = 100 * part.value / whole
        share = f"{part.value / total:.0%}"
        title = Markup("<title>{}: {}, {}</title>").format(part.name, part.text, share)
        drawn.append(
            f'<rect class="part {part.kind}" x="{left:.3f}%" width="{width:.3f}%" height="100%">{title}</rect>'
        )
        if width >= _LABELLED:
            drawn.append(f'<text x="{left + width / 2:.3f}%" y="50%" dy=".35em" text-anchor="middle">{share}</text>')
        left += width
    head = Markup('<svg class="stack" role="img" aria-label="{}">').format(summary)
    return head + Markup("".join(drawn)) + Markup("</svg>")


def over_sizes(lines: Sequence[Line], name: str, unit: str) -> Markup:
    """Lines over one logarithmic axis of sizes, from 0 on upwards. name: of the sizes."""
    sizes = [size for size, _ in lines[0].points]
    ticks = _nice_ticks(0.0, max(figure for line in lines for _, figure in line.points))
    x, y = _log_scale(sizes[0], sizes[-1], _MARGIN_LEFT + 8, _RIGHT - 8), _linear_scale(0.0, ticks[-1], _BOTTOM, _TOP)
    parts = [
        *_x_axis(x, _apart(sizes, x), name, lambda v: f"{v:,.0f}"),
        *_y_axis(y, ticks, unit, _short),
    ]
    for k, line in enumerate(lines):
        drawn = " ".join(f"{x(size):.1f},{y(figure):.1f}" for size, figure in line.points)
        parts.append(f'<polyline class="curve c{k}" points="{drawn}"/>')
        for size, figure in line.points:
            title = Markup("<title>{}</title>").format(f"{line.name}, {name} {size:,}: {figure:,.4g} {unit}")
            parts.append(f'<circle class="dot d{k}" cx="{x(size):.1f}" cy="{y(figure):.1f}" r="4">{title}</circle>')
    return _svg(parts, f"{unit} by {name}: {', '.join(line.name for line in lines)}")


def _apart(sizes: Sequence[int], x: Scale) -> list[float]:
    """Those sizes whose numbers do not overlap on the axis: from the greatest down."""
    positions: list[float] = []
    for size in reversed(sizes):
        if not positions or x(positions[-1]) - x(size) >= _LETTER * len(f"{positions[-1]:,.0f}") + _GAP:
            positions.append(size)
    return positions[::-1]


def _short(value: float) -> str:
    """A number in at most five letters: 12,000 as 12k."""
    for limit, factor, suffix in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit:
            return f"{value / factor:g}{suffix}"
    return f"{value:g}"


def _labels(ends: Sequence[tuple[float, str]], first: str) -> list[str]:
    """Names right of the roofs' ends, from the top down, pushed apart where they would overlap."""
    parts, lowest = [], -math.inf
    for y, name in sorted(ends):
        lowest = max(y + 4, lowest + _LINE)
        parts.append(_text(_ROOFS_END + 5, lowest, name, "start", "first" if name == first else "other"))
    return parts


def _svg(parts: Sequence[str], summary: str) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(_WIDTH, _HEIGHT, summary)
    return head + Markup("\n".join(parts)) + Markup("</svg>")


def _x_axis(x: Scale, ticks: Sequence[float], title: str, text: Callable[[float], str]) -> list[str]:
    parts = [f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>' for t in ticks]
    parts += [_text(x(t), _BOTTOM + 16, text(t), "end" if t == ticks[-1] else "middle") for t in ticks]
    return [*parts, _text((x(ticks[0]) + x(ticks[-1])) / 2, _HEIGHT - 6, title, "middle")]


def _y_axis(
    y: Scale, ticks: Sequence[float], title: str, text: Callable[[float], str], right: float = _RIGHT
) -> list[str]:
    parts = [f'<line class="grid" x1="{_MARGIN_LEFT}" x2="{right}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>' for t in ticks]
    parts += [_text(_MARGIN_LEFT - 5, y(t) + 4, text(t), "end") for t in ticks]
    return [*parts, _text(2, _TOP - 13, title, "start")]


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"' + (f' class="{kind}"' if kind else "")
    return f"<text {attributes}>{Markup.escape(text)}</text>"


def _log_scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda v: start + (end - start) * math.log(v / low) / math.log(high / low)


def _linear_scale(low: float, high: float, start: float, end: float) -> Scale:
    return lambda v: start + (end - start) * (v - low) / (high - low)


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around the values, at least two decades."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return 10.0**low, 10.0 ** max(high, low + 2)


def _powers(low: float, high: float) -> list[float]:
    return [10.0**k for k in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _power_text(value: float) -> str:
    return f"{value:g}"


def _rate_text(value: float) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:g} {prefix}"
    return f"{value:g}"


def _nice_ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers that enclose low and high."""
    span = max(high - low, 1e-3 * high, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(f * power for f in (1, 2, 5, 10) if span / (f * power) <= 6)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(k * step, 12) for k in range(first, max(last, first + 1) + 1)]
