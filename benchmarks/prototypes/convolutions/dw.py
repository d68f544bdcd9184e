"""Check every depthwise variant against float64, then time those that fit each shape. argv: out.json [only check]"""
import ctypes, json, os, sys, torch, torch.nn.functional as F
from gpu import *
HERE = os.path.dirname(os.path.abspath(__file__))
rows = json.load(open(f"{HERE}/kernels.json")); mod = Module(f"{HERE}/kernels.cubin")
DT = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
ACT = {"silu": F.silu, "relu6": F.relu6, "gelu": F.gelu, "none": lambda x: x, "relu": F.relu}

class Divisor(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in ("divisor", "multiplier", "shift")]
def divisor(d):
    shift = (d - 1).bit_length(); return Divisor(d, ((1 << 32) * ((1 << shift) - d) // d + 1) & 0xffffffff, shift)
class Params(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("x", "weight", "y", "sums")] + [(n, ctypes.c_int) for n in
        ("batch", "height", "width", "channels", "out_height", "out_width", "pad_top", "pad_left", "tiles")] + [("per_image", Divisor), ("per_row", Divisor), ("pad", ctypes.c_int), ("before", ctypes.c_uint64), ("after", ctypes.c_uint64)]
SMS = 132
KEPT = {}

for r in rows:
    r["smem"] = mod.number("smem_" + r["name"]) if r["kind"] == "banded" else 0
    if r["smem"] > 232448: print("too much shared memory", r["name"], r["smem"]); continue
    r["f"] = mod.kernel(r["name"], r["smem"])
    blocks = ctypes.c_int(); check(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(blocks), r["f"], r.get("threads", 32 * r.get("warps", 1)), ctypes.c_size_t(r["smem"]))); r["occ"] = blocks.value
rows = [r for r in rows if 'f' in r and (not os.environ.get("EVERY") or rows.index(r) % int(os.environ["EVERY"]) == 0)]
cdiv = lambda a, b: -(-a // b)

def out_size(h, k, s, d, p): return (h + sum(p) - (k - 1) * d - 1) // s + 1

def prepare(r, x, w, bias, pre, y, pads, sums=None, waves=1):
    n, h, wd, c = x.shape; _, oh, ow, _ = y.shape
    if r["kind"] == "banded":
        th, tw = r["down"] * 16 // r["across"] // r["images"], 8 * r["across"]
        across, per_image = cdiv(ow, tw), cdiv(ow, tw) * cdiv(oh, th); total = per_image * cdiv(n, r["images"])
        cb = cdiv(c, 8 * r["chunks"]); threads = r["warps"] * 32
        # as many blocks as run at once, or all; each takes as many tiles as the others
        share = max(1, int(waves * SMS * r["occ"]) // cb) if waves and not r['once'] else total
        each = cdiv(total, share); grid = (cb, cdiv(total, each), 1)
    else:
        across = cdiv(ow, r["across"]); threads = r["threads"]; grid = (cdiv(c // r["v"] * across, threads), cdiv(oh, r["down"]), n)
        per_image = grid[1] * across; total = per_image * n
    if not r['sums']: sums = None
    if sums is not None: sums = torch.full((n, per_image, c), float("nan"), device="cuda")
    if r['kind'] == 'direct': w = KEPT.setdefault(w.data_ptr(), (w, w.permute(1, 2, 0).contiguous()))[1]
    p = Params(x.data_ptr(), w.data_ptr(), y.data_ptr(), sums.data_ptr() if sums is not None else 0, n, h, wd, c, oh, ow, pads[0], pads[2], total, divisor(per_image), divisor(across), 0,
               pre.data_ptr() if r["before"] else 0, bias.data_ptr())
    return (lambda: launch(r["f"], grid, threads, r["smem"], p)), sums

def reference(r, x, w, bias, pre, pads):
    t = x.double().permute(0, 3, 1, 2)
    if r["before"]: t = ACT[r["before"]](t + pre.double()[None, :, None, None]).to(x.dtype).double()
    t = F.pad(t, (pads[2], pads[3], pads[0], pads[1]))
    t = F.conv2d(t, w.double()[:, None], bias.double(), stride=r["s"], dilation=r["d"], groups=x.shape[3])
    return ACT[r["after"]](t).permute(0, 2, 3, 1)

torch.manual_seed(0)
bad, worst = 0, {}
LIMIT = {"f16": 6e-4, "bf16": 5e-3, "f32": 2e-5}
for r in rows:
    k, s, d = r["k"], r["s"], r["d"]; dt = DT[r["dt"]]; e = (k - 1) * d // 2
    cases = [(2, 19, 23, 40, (e, e, e, e)), (3, 2, 3, 72, (e, e + 1, e + 1, e)), (1, 33, 70, 16, (0, 1, 1, 0) if k == 3 and d == 1 else (e, e, e, e)), (2, 14, 14, 104, (e, e, e, e))]
    if not r["aligned"]: cases += [(2, 11, 13, 37, (e, e, e, e)), (1, 5, 6, 3, (e + 1, e, e, e + 1))]
    for n, h, wd, c, pads in cases:
      for waves in ((0, 1) if not r.get("once", True) else (0,)):
          if r["kind"] == "direct" and c % r["v"]: continue
          oh, ow = out_size(h, k, s, d, pads[:2]), out_size(wd, k, s, d, pads[2:])
          if oh < 1 or ow < 1: continue
          x = torch.randn(n, h, wd, c, device="cuda").to(dt); w = (torch.randn(c, k, k, device="cuda") / k).to(dt)
          bias, pre = torch.randn(c, device="cuda").to(dt), torch.randn(c, device="cuda").to(dt)
          y = torch.full((n, oh, ow, c), float("nan"), device="cuda", dtype=dt)
          guard = torch.full((4096,), 7.0, device="cuda", dtype=dt)
          go, sums = prepare(r, x, w, bias, pre, y, pads, True, waves and .02); go(); torch.cuda.synchronize()
          ref = reference(r, x, w, bias, pre, pads)
          err = ((y.double() - ref).norm() / (ref.norm() + 1e-3 * ref.numel() ** .5)).item()
          total = ref.sum((1, 2)); serr = 0 if sums is None else ((sums.double().sum(1) - total).norm() / (ref.abs().sum((1, 2)).norm() + 1e-3)).item()
          key = (r["kind"], r["dt"]); worst[key] = max(worst.get(key, (0, 0)), (err, serr))
          if not (err < LIMIT[r["dt"]] and serr < 1e-3):
              bad += 1
              if bad < 30: print("WRONG", r["name"], (n, h, wd, c), pads, err, serr)
              r["wrong"] = True
print("kernels", len(rows), "wrong cases", bad, {"/".join(k): tuple(f"{v:.1e}" for v in e) for k, e in worst.items()}, flush=True)
if len(sys.argv) > 2: sys.exit()

def copy_us(nbytes):
    n = max(2, nbytes // 2 // 2) // 2 * 2
    k = rotation(nbytes); a, b = sets_of("x", torch.float16, (n,), k), sets_of("y", torch.float16, (n,), k)
    return microseconds(lambda i: b[i].copy_(a[i]), k)

SHAPES = [("f16", 3, 1, 64, 112, 32), ("f16", 3, 1, 32, 112, 32), ("f16", 3, 1, 64, 56, 144), ("f16", 3, 1, 32, 56, 144), ("f16", 3, 1, 64, 14, 384), ("f16", 3, 1, 32, 14, 480), ("f16", 3, 1, 32, 7, 1152), ("f16", 3, 1, 1, 56, 144),
  ("f16", 3, 2, 64, 112, 96), ("f16", 3, 2, 32, 112, 96), ("f16", 3, 1, 64, 28, 192), ("f16", 3, 1, 64, 28, 144), ("f16", 3, 1, 64, 14, 576), ("f16", 3, 2, 32, 28, 240),
  ("f16", 5, 1, 32, 28, 240), ("f16", 5, 1, 128, 28, 240), ("f16", 5, 1, 32, 14, 480), ("f16", 5, 1, 32, 14, 672), ("f16", 5, 1, 32, 7, 1152), ("f16", 5, 2, 32, 56, 144), ("f16", 5, 2, 32, 14, 672),
  ("f16", 7, 1, 16, 56, 96), ("f16", 7, 1, 16, 28, 192), ("f16", 7, 1, 16, 14, 384), ("f16", 7, 1, 16, 7, 768),
  ("f32", 3, 1, 32, 112, 32), ("f32", 3, 1, 32, 56, 144), ("f32", 3, 1, 32, 14, 480), ("f32", 3, 2, 32, 112, 96), ("f32", 5, 1, 32, 28, 240), ("f32", 5, 1, 32, 14, 672), ("f32", 5, 2, 32, 56, 144), ("f32", 7, 1, 16, 56, 96), ("f32", 7, 1, 16, 28, 192), ("f32", 7, 1, 16, 14, 384), ("f32", 7, 1, 16, 7, 768)]
if os.environ.get("ONLY"): SHAPES = [s for s in SHAPES if s[0] == os.environ["ONLY"]]
result = []
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
for dtn, k, s, n, hw, c in SHAPES:
    dt = DT[dtn]; e = (k - 1) // 2; size = torch.finfo(dt).bits // 8
    pads = (e, e, e, e) if s == 1 else (e - 1, e, e - 1, e) if os.environ.get("SAME") else (e, e, e, e)
    oh = out_size(hw, k, s, 1, pads[:2]); nb = size * n * c * (hw * hw + oh * oh)
    sets = rotation(nb); xs, ys = sets_of("x", dt, (n, hw, hw, c), sets), sets_of("y", dt, (n, oh, oh, c), sets)
    w = (torch.randn(c, k, k, device="cuda") / k).to(dt); bias = torch.randn(c, device="cuda").to(dt)
    cp = copy_us(nb); times = {}
    for r in rows:
        if (r["dt"], r["k"], r["s"], r["d"], r["after"], r["before"]) != (dtn, k, s, 1, "silu", r["before"]) or r["name"].endswith("sums") or r.get("wrong") : continue
        runs = [prepare(r, xs[i], w, bias, bias, ys[i], pads)[0] for i in range(sets)]
        times[r["name"]] = microseconds(lambda i: runs[i](), sets)
        if not r.get("once", True):
            runs = [prepare(r, xs[i], w, bias, None, ys[i], pads, None, 0)[0] for i in range(sets)]
            times[r["name"] + "/1"] = microseconds(lambda i: runs[i](), sets)
    tx = [x.permute(0, 3, 1, 2) for x in xs]; tw = w[:, None].contiguous(memory_format=torch.channels_last)
    try: torch_us = microseconds(lambda i: F.conv2d(tx[i], tw, None, stride=s, padding=e, groups=c), sets)
    except Exception as error: torch_us = None; print(error)
    if not times: continue
    best = sorted(times.items(), key=lambda kv: kv[1])
    result.append(dict(dt=dtn, k=k, s=s, n=n, hw=hw, c=c, mb=nb / 1e6, copy=cp, torch=torch_us, times=times))
    print(f"{dtn} k{k} s{s} {n}x{hw}x{hw}x{c} {nb/1e6:.1f}MB copy {cp:.2f} torch {torch_us or 0:.2f} best {best[0][1]:.2f} = {cp/best[0][1]:.2f} | " + " ".join(f"{a[2:].replace('f16_','').replace('_silu','') if a[0]=='b' else a.replace('_silu','')}:{b:.2f}" for a, b in best[:int(os.environ.get("SHOW", 6))]), flush=True)
for n, hw, c in ((64, 112, 32), (64, 14, 576)):
    x, y = sets_of("x", torch.float16, (n, hw, hw, c), 6), sets_of("y", torch.float16, (n, hw, hw, c), 6)
    w = torch.randn(c, 3, 3, device="cuda").half(); b = torch.randn(c, device="cuda").half()
    for r in rows:
        if r["kind"] != "banded" or (r["dt"], r["k"], r["s"], r["across"], r["down"], r["chunks"], r["before"], r["aligned"]) != ("f16", 3, 1, 2, 2, 4, None, True): continue
        runs = [prepare(r, x[i], w, b, None, y[i], (1, 1, 1, 1), True)[0] for i in range(6)]
        print("epilogue", n, hw, c, r["name"], round(microseconds(lambda i: runs[i](), 6), 2), flush=True)
json.dump(result, open(sys.argv[1], "w"))
