"""Every distinct conv layer: copy, torch channels_last, torch's fused cuDNN calls, cuBLASLt through torch. argv: out.json"""
import json, sys, torch, torch.nn.functional as F
from gpu import *
from layers import layers
torch.backends.cudnn.benchmark = True
H = torch.float16
cl = lambda t: t.permute(0, 3, 1, 2)
copies = {}
def copy_us(mb):
    n = max(1024, int(mb * 1e6 / 4)); key = round(n, -3)
    if key not in copies:
        k = rotation(4 * n); a, b = sets_of("x", H, (n,), k), sets_of("y", H, (n,), k)
        copies[key] = microseconds(lambda i: b[i].copy_(a[i]), k)
    return copies[key]
copy_gb = 2 * 2**30 / copy_us(2 * 2**30 / 1e6) / 1e3
a = torch.randn(8192, 8192, device="cuda", dtype=H); tflops = 2 * 8192**3 / microseconds(lambda i: torch.mm(a, a), 1, 8) / 1e6
print("copy GB/s", copy_gb, "TFLOP/s", tflops, torch.__version__, torch.backends.cudnn.version(), torch.cuda.get_device_name(), flush=True)
out = []
for L in layers():
    n, c, h, w = L["x"]; k, cg, kh, kw = L["w"]; _, _, oh, ow = L["y"]
    sets = rotation(L["mb"] * 1e6)
    xs = sets_of("x", H, (n, h, w, c), sets); ys = sets_of("y", H, (n, oh, ow, k), sets); rs = sets_of("r", H, (n, oh, ow, k), sets)
    ws = sets_of("w", H, (k, kh, kw, cg), sets); b = torch.randn(k, device="cuda", dtype=H)
    cx, cw, cr = [cl(t) for t in xs], [cl(t) for t in ws], [cl(t) for t in rs]
    pad = [max(L["p"][0], L["p"][2]), max(L["p"][1], L["p"][3])]; s = [L["s"]] * 2
    t = L["times"] = {"copy": copy_us(L["mb"]), "roofline": max(L["mb"] / copy_gb * 1e3, L["gflop"] / tflops * 1e3)}
    def time(name, run, sets=sets):
        try: t[name] = microseconds(run, sets)
        except Exception as e: t[name] = None; L.setdefault("refused", {})[name] = str(e)[:120]
    time("conv", lambda i: F.conv2d(cx[i], cw[i], None, s, pad, 1, L["g"]))
    if L["g"] == 1:
        time("conv_relu", lambda i: torch.cudnn_convolution_relu(cx[i], cw[i], b, s, pad, [1, 1], 1))
        if "add" in L["epi"]: time("conv_add_relu", lambda i: torch.cudnn_convolution_add_relu(cx[i], cw[i], cr[i], 1.0, b, s, pad, [1, 1], 1))
    if kh == kw == 1 and L["s"] == 1:
        m = n * h * w; rx = [x.view(m, c) for x in xs]; rw = [x.view(k, c).t() for x in ws]; rr = [r.view(m, k) for r in rs]; ry = [y.view(m, k) for y in ys]
        time("mm", lambda i: torch.mm(rx[i], rw[i], out=ry[i]))
        time("mm_bias", lambda i: F.linear(rx[i], rw[i].t(), b))
        time("mm_bias_relu", lambda i: torch._addmm_activation(b, rx[i], rw[i], use_gelu=False))
        if "add" in L["epi"]: time("mm_add", lambda i: torch.addmm(rr[i], rx[i], rw[i]))
    out.append(L)
    del cx, cw, cr
    json.dump(dict(copy_gb=copy_gb, tflops=tflops, layers=out), open(sys.argv[1], "w"))
total = {}
for L in out:
    for m, cnt in L["models"].items():
        for name in ("roofline", "conv", "conv_relu"):
            total.setdefault((m, L["g"] > 1, L["w"][2] == 1), {}).setdefault(name, 0.0)
            total[(m, L["g"] > 1, L["w"][2] == 1)][name] += (L["times"].get(name) or 0) * cnt
for k, v in total.items(): print(k, {a: round(b) for a, b in v.items()})
