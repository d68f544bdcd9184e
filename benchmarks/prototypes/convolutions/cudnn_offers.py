"""What cuDNN's heuristic offers for ResNet50's stem, mode by mode: engine, numerical notes, run-time compiled, workspace, time."""
import torch
from gpu import *
from cudnn_graph import *

def notes(config):
    e = Descriptor(D_ENGINE); n = ctypes.c_int64(); array = (ctypes.c_void_p * 1)(e.p)
    lib.cudnnBackendGetAttribute(config.p, 300, T_DESC, ctypes.c_int64(1), ctypes.byref(n), array)
    found = (ctypes.c_int * 16)(); count = ctypes.c_int64()
    lib.cudnnBackendGetAttribute(e.p, 1303, T_NUMERICAL, ctypes.c_int64(16), ctypes.byref(count), found)
    return list(found[:count.value])

for c in (3, 4):
    x, w, y = (32, c, 224, 224), (64, c, 7, 7), (32, 112, 112, 64)
    conv = Conv(x, w, 2, (3, 3, 3, 3), steps=["bias", "relu"])
    half = dict(device="cuda", dtype=torch.float16)
    buffers = [{X: torch.randn(32 * 224 * 224 * c, **half), W: torch.randn(64 * 49 * c, **half), Y: torch.empty(y, **half), BIAS: torch.randn(64, **half)} for _ in range(3)]
    for mode in (3, 1, 2):
        for k, config in enumerate(conv.configs(mode)[:8]):
            try: plan = conv.plan(config)
            except Refused as e: print(c, "mode", mode, k, "notes", notes(config), e); continue
            us = microseconds(Runner(conv, plan, buffers), 3, launches=9, repeats=3)
            print(c, "mode", mode, k, "engine", plan.engine, "notes", notes(config), "compiled", plan.runtime, "workspace MB", round(plan.workspace / 2**20, 1), "us", round(us, 1), flush=True)
