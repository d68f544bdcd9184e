"""Which graphs cuDNN takes, how long their plans take, and how fast the best of the first few is. argv: out.json"""
import collections, concurrent.futures as cf, json, sys, time, torch
from gpu import *
from cudnn_graph import *
S = dict(x=(8, 128, 80, 80), w=(128, 128, 3, 3), stride=1, pads=(1, 1, 1, 1))
B, R = (32, 64, 56, 56), (256, 64, 1, 1)
wide = [80 * 80 * 256, 1, 80 * 256, 256]
CASES = {
 "conv": {}, "bias": dict(steps=["bias"]), "bias relu": dict(steps=["bias", "relu"]), "bias swish": dict(steps=["bias", "swish"]), "bias gelu": dict(steps=["bias", "gelu"]), "bias sigmoid": dict(steps=["bias", "sigmoid"]),
 "residual bias relu": dict(steps=["residual", "bias", "relu"]), "bias swish residual": dict(steps=["bias", "swish", "residual"]), "bias residual": dict(steps=["bias", "residual"]),
 "bias add_nc": dict(steps=["bias", "add_nc"]), "mul_c bias relu": dict(steps=["mul_c", "bias", "relu"]),
 "x slice, bias relu": dict(x_strides=wide, steps=["bias", "relu"]), "y slice, bias relu": dict(y_strides=wide, steps=["bias", "relu"]), "x and y slice, bias swish": dict(x_strides=wide, y_strides=wide, steps=["bias", "swish"]), "y slice, conv": dict(y_strides=wide), "x slice, conv": dict(x_strides=wide),
 "bf16 bias relu": dict(dtype=BF16, steps=["bias", "relu"]), "bf16 residual bias relu": dict(dtype=BF16, steps=["residual", "bias", "relu"]), "bf16 bias swish": dict(dtype=BF16, steps=["bias", "swish"]),
 "f32 conv": dict(dtype=FLOAT), "f32 bias relu": dict(dtype=FLOAT, steps=["bias", "relu"]), "f32 bias swish": dict(dtype=FLOAT, steps=["bias", "swish"]), "f32 residual bias relu": dict(dtype=FLOAT, steps=["residual", "bias", "relu"]),
 "grouped 32 of 4, bias relu": dict(w=(128, 4, 3, 3), steps=["bias", "relu"]), "grouped 4 of 32, bias relu": dict(w=(128, 32, 3, 3), steps=["bias", "relu"]), "grouped 4 of 32, conv": dict(w=(128, 32, 3, 3)), "grouped 32 of 4, conv": dict(w=(128, 4, 3, 3)),
 "depthwise 3x3 conv": dict(w=(128, 1, 3, 3)), "depthwise 3x3 bias swish": dict(w=(128, 1, 3, 3), steps=["bias", "swish"]), "depthwise 5x5 conv": dict(w=(128, 1, 5, 5), pads=(2,) * 4), "depthwise 7x7 conv": dict(w=(128, 1, 7, 7), pads=(3,) * 4), "depthwise 3x3 bias relu": dict(w=(128, 1, 3, 3), steps=["bias", "relu"]),
 "81 channels out, bias relu": dict(w=(81, 128, 3, 3), steps=["bias", "relu"]), "3 channels in, bias relu": dict(x=(8, 3, 80, 80), w=(128, 3, 3, 3), steps=["bias", "relu"]), "asymmetric pads, bias relu": dict(pads=(0, 0, 1, 1), stride=2, steps=["bias", "relu"]),
 "dilation 2, bias relu": dict(dilation=2, pads=(2,) * 4, steps=["bias", "relu"]),
 "1x1 of scaled input (mul_nc)": dict(x=B, w=R, pads=(0,) * 4, steps=["pre_mul_nc", "bias"]), "swish in front": dict(steps=["pre_swish", "bias"]), "1x1 swish in front": dict(x=B, w=R, pads=(0,) * 4, steps=["pre_swish", "bias"]), "bias swish in front": dict(steps=["pre_add_c", "pre_swish", "bias"]),
}
def build(item):
    name, d = item; a = dict(S); a.update(d); r = dict(name=name, refused=collections.Counter(), plans=0)
    try:
        t = time.time(); conv = Conv(**a); cs = []
        for mode in (3, 2):
            try: found = conv.configs(mode); r[f"mode{mode}"] = len(found); cs += found
            except Refused as e: r["refused"][f"mode {mode}: {e}"] += 1
        r["heur_s"] = round(time.time() - t, 3); r["made"] = []
        for c in cs[:24]:
            t = time.time()
            try: r["made"].append(conv.plan(c))
            except Refused as e: r["refused"][str(e)] += 1
            if time.time() - t > .05 and len(r["made"]) >= 4: break
            if len(r["made"]) >= 8: break
        r["conv"] = conv; r["args"] = a
    except Refused as e: r["refused"][str(e)] += 1
    return r
import fcntl
if sys.argv[1] == "list": print("\n".join(CASES)); sys.exit()
results = [build((sys.argv[1], CASES[sys.argv[1]]))]
lock = open("/tmp/lock", "w")
DTS = {HALF: torch.float16, BF16: torch.bfloat16, FLOAT: torch.float32}
for r in results:
    best = None; fcntl.flock(lock, fcntl.LOCK_EX)
    if r.get("made"):
        a = r["args"]; dt = DTS[a.get("dtype", HALF)]; c = r["conv"]; n, k, oh, ow = c.y; sz = torch.finfo(dt).bits // 8
        mb = sz * (n * a["x"][1] * a["x"][2] * a["x"][3] + n * k * oh * ow); sets = min(8, rotation(mb)); big = 2
        buf = [{X: torch.randn(n * a["x"][1] * a["x"][2] * a["x"][3] * (big if a.get("x_strides") else 1), device="cuda").to(dt), W: torch.randn(a["w"][0] * a["w"][1] * a["w"][2] * a["w"][3], device="cuda").to(dt), Y: torch.empty(n * k * oh * ow * (big if a.get("y_strides") else 1), device="cuda", dtype=dt),
                BIAS: torch.randn(k, device="cuda").to(dt), RES: torch.randn(n * k * oh * ow, device="cuda").to(dt), 6: torch.randn(n * k, device="cuda").to(dt), 7: torch.randn(k, device="cuda").to(dt), 8: torch.randn(n * a["x"][1], device="cuda").to(dt), 9: torch.randn(a["x"][1], device="cuda").to(dt)} for _ in range(sets)]
        st = a.get("steps", []); used = {X, W, Y} | ({BIAS} if "bias" in st else set()) | ({RES} if "residual" in st else set()) | ({6} if "add_nc" in st else set()) | ({7} if "mul_c" in st else set()) | ({8} if "pre_mul_nc" in st else set()) | ({9} if "pre_add_c" in st else set())
        buf = [{u: t for u, t in b.items() if u in used} for b in buf]
        for p in r["made"]:
            try:
                run = Runner(c, p, buf); run(0); torch.cuda.synchronize(); us = p.us = microseconds(run, sets, launches=16, repeats=3)
                if best is None or us < best[0]: best = (round(us, 1), p.engine, p.runtime)
            except (Refused, Exception) as e: r["refused"]["run: " + str(e)[:60]] += 1
        r["plans"] = len(r["made"]); r["build_s"] = [round(p.seconds, 3) for p in r["made"]]; r["runtime"] = sum(p.runtime for p in r["made"])
    if r.get("made"): r["per_plan"] = [[p.engine, p.runtime, getattr(p, "us", None)] for p in r["made"]]
    r["best"] = best; r.pop("made", None); r.pop("conv", None); r.pop("args", None)
    print(f"{r['name']}: configs {r.get('mode3')}/{r.get('mode2')} plans {r['plans']} (run-time {r.get('runtime')}) build s {max(r.get('build_s', [0]))} best {best} refused {dict(r['refused'])}", flush=True)
print("JSON" + json.dumps(results[0]))
