"""Exported by torch: norm and rotary embedding of queries and keys as one kernel each, shared heads in attention."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxopt import pipeline
from tests.support.fusing import cpu_kernels_forced

torch = pytest.importorskip("torch")

_HEADS, _GROUPS, _SIZE = 4, 2, 32


class Block(torch.nn.Module):
    """Attention as Qwen3 has it: each head of q and k is normalized, then turned."""

    def __init__(self) -> None:
        super().__init__()
        self.q = torch.nn.Linear(64, _HEADS * _SIZE, bias=False)
        self.k, self.v = (torch.nn.Linear(64, _GROUPS * _SIZE, bias=False) for _ in range(2))
        self.q_weight, self.k_weight = (torch.nn.Parameter(torch.linspace(0.5, 1.5, _SIZE)) for _ in range(2))
        angle = torch.arange(16)[:, None] * 10000.0 ** (-torch.arange(0, _SIZE, 2) / _SIZE)
        angle = torch.cat((angle, angle), -1)
        self.register_buffer("cos", angle.cos()[None, None].half())
        self.register_buffer("sin", angle.sin()[None, None].half())

    def heads(self, x, weight):
        x = x.view(*x.shape[:2], -1, _SIZE)
        if weight is not None:
            wide = x.float()
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            x = weight * wide.half()
        return x.transpose(1, 2)

    def turned(self, x):
        first, second = x[..., : _SIZE // 2], x[..., _SIZE // 2 :]
        return x * self.cos + torch.cat((-second, first), -1) * self.sin

    def forward(self, x):
        q, k = self.turned(self.heads(self.q(x), self.q_weight)), self.turned(self.heads(self.k(x), self.k_weight))
        v = self.heads(self.v(x), None)
        k, v = (t[:, :, None].expand(-1, -1, 2, -1, -1).reshape(t.shape[0], _HEADS, -1, _SIZE) for t in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.usefixtures("library")
def test_norm_rotary_and_groups(tmp_path: Path) -> None:
    x = torch.randn(2, 16, 64).half()
    program = torch.onnx.export(Block().eval().half(), (x,), dynamo=True, opset_version=20, verbose=False)
    program.save(tmp_path / "block.onnx")
    with cpu_kernels_forced():
        manifest = pipeline.optimize(tmp_path / "block.onnx", tmp_path / "artifact", archs=()).manifest
    assert manifest.left_out == ()
    assert manifest.verify.status == "passed"
    rows = [set(k.ops) for k in manifest.kernels if k.kind == "rowwise"]
    assert len(rows) == 2
    assert all({"ReduceMean", "Slice", "Neg", "Concat"} <= ops for ops in rows)
    (attention,) = [k for k in manifest.kernels if k.kind == "flash_attention"]
    assert "Expand" in attention.ops, "its kernel reads the keys and values that queries share where they lie"
    assert not any("Expand" in ops for ops in rows)
