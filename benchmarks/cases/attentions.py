"""Attentions of many queries, by what bounds them: lengths, masks, biases, odd heads."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Attention:
    """q [B, S, N H], k and v [B, S, M H] in float16. bias: (by sequence, by head, by query), each or the same for all.

    before, after: keys around its own that a query sees, -1 for all. cap: of scores, 0 for none. sinks: one for each
    head.
    """

    batch: int
    heads: int
    tokens: int
    width: int
    groups: int = 0
    bias: tuple[bool, bool, bool] | None = None
    before: int = -1
    after: int = -1
    cap: float = 0.0
    sinks: bool = False

    @property
    def of_keys(self) -> int:
        return self.groups or self.heads

    @property
    def name(self) -> str:
        heads = f"{self.heads}" if self.of_keys == self.heads else f"{self.heads}/{self.groups}"
        parts = [f"{self.batch} x {heads}, {self.tokens}, {self.width}"]
        if self.bias is not None:
            which = [name for name, each in zip(("sequence", "head", "query"), self.bias, strict=True) if each]
            parts.append(f"bias by {' '.join(which)}")
        if self.after == 0:
            parts.append("causal")
        if self.before >= 0:
            parts.append(f"window {self.before}")
        parts += [f"cap {self.cap:g}"] * (self.cap > 0) + ["sinks"] * self.sinks
        return ", ".join(parts)


_MASK, _POSITIONS = (True, False, False), (False, True, True)  # of padding; of relative positions
ATTENTIONS = (
    *(Attention(b, 12, s, 64) for b, s in ((64, 16), (32, 64), (16, 128), (8, 256))),
    Attention(1024, 3, 49, 32, bias=(False, True, True)),
    Attention(4, 12, 1024, 64, before=64, after=64),
    Attention(1, 64, 1024, 64, 8, before=127, after=0, sinks=True),
    Attention(1, 8, 1024, 256, 4, after=0, cap=50.0),
    *(Attention(b, 16, s, 128, 8, after=0) for b, s in ((8, 128), (4, 256), (2, 512))),
    *(Attention(4, 8, 256, width) for width in (40, 80, 160)),
    Attention(1, 64, 1024, 64, 8, after=0, sinks=True),
    Attention(1, 8, 1024, 256, 4, before=511, after=0),
    Attention(1, 8, 256, 256, 4, after=0, cap=50.0),
    *(Attention(b, 12, s, 64, before=64, after=64) for b, s in ((8, 512), (1, 4096))),
    *(Attention(b, 12, s, 64) for b, s in ((8, 197), (8, 512), (4, 1024))),
    Attention(1, 16, 4096, 64),
    *(Attention(b, 16, s, 128, 8, after=0) for b, s in ((8, 64), (1, 2048))),
    *(Attention(b, n, s, 64) for b, n, s in ((16, 12, 197), (4, 8, 1500), (2, 12, 2048), (8, 12, 384))),
    *(Attention(1, n, 512, 64, m, after=0) for n, m in ((32, 8), (12, 12))),
    *(Attention(b, 16, s, 128) for b, s in ((4, 256), (1, 2048))),
    Attention(256, 6, 64, 32, bias=(False, True, True)),
    *(Attention(b, 12, s, 64, bias=k) for b, s in ((16, 128), (8, 256), (8, 512)) for k in (_MASK, _POSITIONS)),
    Attention(16, 12, 197, 64, bias=_POSITIONS),
    Attention(4, 12, 256, 128, bias=_MASK),
    *(Attention(4, 8, 1024, width) for width in (20, 24)),
    *(Attention(b, 12, s, 64, bias=_MASK) for b, s in ((2, 2048), (1, 4096))),
    *(Attention(b, 12, s, 64, bias=_MASK, before=64, after=64) for b, s in ((8, 512), (4, 1024), (1, 4096))),
    *(Attention(b, 16, s, 128, bias=_MASK, after=0) for b, s in ((8, 128), (2, 512), (1, 2048), (1, 4096))),
    Attention(2, 16, 1024, 64, bias=(False, True, False), after=0),
    *(Attention(1, 16, s, 128, 8, after=0) for s in (4096, 8192)),
    *(Attention(4, 8, 512, width, after=0) for width in (40, 80, 96, 160, 192, 256)),
    *(Attention(4, 8, 512, width, bias=_MASK) for width in (40, 80, 96, 160, 192, 256)),
    *(Attention(1, 8, 4096, width) for width in (40, 80, 96, 160, 192, 256)),
)  # fmt: skip
