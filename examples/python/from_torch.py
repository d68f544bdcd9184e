"""A module of PyTorch in, a session of ONNX Runtime out: python from_torch.py ARTIFACT"""

from __future__ import annotations

import sys

import torch

import onnxopt

layer = torch.nn.TransformerEncoderLayer(64, 4, activation="gelu", batch_first=True, norm_first=True)
module = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
x = torch.randn(2, 16, 64)
artifact = onnxopt.optimize(module, sys.argv[1], example_inputs=x, dynamic_shapes=({0: torch.export.Dim("batch")},))
session = artifact.session()

x = torch.randn(5, 16, 64)
(y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
with torch.no_grad():
    print(f"largest difference from PyTorch: {(torch.from_numpy(y) - module(x)).abs().max().item():.2g}")
