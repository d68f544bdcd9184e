"""Plans of cuDNN for the dense layers, built in threads, checked, timed. argv: out.json threads max_plans"""
import collections, concurrent.futures as cf, json, sys, time, torch, torch.nn.functional as F
from gpu import *
from layers import layers
from cudnn_graph import *
H = torch.float16
print("cudnn", lib.cudnnGetVersion(), flush=True)
STEPS = {"relu": ["bias", "relu"], "silu": ["bias", "swish"], "add_relu": ["residual", "bias", "relu"], "add": ["residual", "bias"], "bias": ["bias"]}
jobs = []
for L in layers():
    if L["g"] > 1 or L["x"][2] == 1: continue
    kinds = [[], STEPS[L["epi"]]]
    if L["epi"] == "silu": kinds.append(["bias", "relu"])
    if L["epi"] == "add_relu": kinds.append(["bias", "residual", "relu"])
    for steps in kinds: jobs.append((L, steps))
threads, limit = int(sys.argv[2]), int(sys.argv[3])
budget = time.time() + float(sys.argv[4])
def build(job):
    L, steps = job; r = dict(steps=steps, plans=[], refused=collections.Counter(), x=L["x"], w=L["w"], s=L["s"], p=L["p"], epi=L["epi"], models=L["models"])
    t = time.time()
    try:
        conv = Conv(L["x"], L["w"], L["s"], L["p"], 1, steps); r["graph_s"] = time.time() - t; t = time.time()
        seen = []
        for mode in (3, 1, 2):
            try: cs = conv.configs(mode)
            except Refused as e: r["refused"][f"mode {mode} {e}"] += 1; continue
            r[f"heur{mode}_s"] = time.time() - t; r[f"heur{mode}_n"] = len(cs); t = time.time(); seen += cs if mode != 2 or not seen else []
        r["conv"] = conv; r["kept"] = []
        slow = 0
        for c in seen:
            most = 6 if 'swish' in steps or steps[:1] == ['bias'] and 'residual' in steps else limit
            if len(r["kept"]) >= most or slow >= max(3, most // 2) or time.time() > budget: break
            t0 = time.time()
            try: p = conv.plan(c)
            except Refused as e: r["refused"][str(e)] += 1; slow += time.time() - t0 > .1; continue
            slow += p.seconds > .1
            r["kept"].append(p)
    except Refused as e: r["refused"][str(e)] += 1
    return r
start = time.time()
with cf.ThreadPoolExecutor(threads) as ex: results = list(ex.map(build, jobs))
print(f"built {sum(len(r.get('kept', [])) for r in results)} plans of {len(jobs)} graphs in {time.time()-start:.1f} s wall, {sum(p.seconds for r in results for p in r.get('kept', [])):.1f} s in all", flush=True)
ACT = {"relu": F.relu, "swish": F.silu}
for r, (L, steps) in zip(results, jobs):
    if not r.get("kept"): continue
    n, c, h, w = L["x"]; k, cg, kh, kw = L["w"]; _, _, oh, ow = L["y"]
    sets = rotation(L["mb"] * 1e6)
    xs, ys, rs, ws = sets_of("x", H, (n, h, w, c), sets), sets_of("y", H, (n, oh, ow, k), sets), sets_of("r", H, (n, oh, ow, k), sets), sets_of("w", H, (k, kh, kw, cg), sets)
    b = torch.randn(k, device="cuda", dtype=H)
    buffers = []
    for i in range(sets):
        d = {X: xs[i], W: ws[i], Y: ys[i]}
        if "bias" in steps: d[BIAS] = b
        if "residual" in steps: d[RES] = rs[i]
        buffers.append(d)
    few = min(n, 2)
    ref = F.conv2d(F.pad(xs[0][:few].permute(0, 3, 1, 2).float(), (L["p"][1], L["p"][3], L["p"][0], L["p"][2])), ws[0].permute(0, 3, 1, 2).float(), None, L["s"])
    for st in steps:
        ref = ref + b.float()[None, :, None, None] if st == "bias" else ref + rs[0][:few].permute(0, 3, 1, 2).float() if st == "residual" else ACT[st](ref)
    for p in r["kept"]:
        row = dict(engine=p.engine, runtime=p.runtime, build_s=round(p.seconds, 4), workspace=p.workspace)
        try:
            run = Runner(r["conv"], p, buffers); ys[0].fill_(float("nan")); run(0); torch.cuda.synchronize()
            err = ((ys[0][:few].permute(0, 3, 1, 2).float() - ref).norm() / ref.norm()).item(); row["err"] = err
            if err < 2e-3: row["us"] = microseconds(run, sets, launches=max(sets, 10), repeats=3)
            else: row["wrong"] = True
        except (Refused, RuntimeError) as e: row["failed"] = str(e)[:100]
        r["plans"].append(row)
    r["kept"] = None; r["conv"] = None
    r["us"] = min((p["us"] for p in r["plans"] if "us" in p), default=None)
    first = r["plans"][0].get("us")
    r["first_us"] = first
for r in results: r.pop("kept", None); r.pop("conv", None)
json.dump(results, open(sys.argv[1], "w"))
for name in ([], ["bias", "relu"], ["bias", "swish"], ["residual", "bias", "relu"], ["bias", "residual", "relu"], ["residual", "bias"], ["bias"]):
    rs = [r for r in results if r["steps"] == name]
    good = [r for r in rs if r.get("us")]
    if rs: print(name, len(rs), "graphs, timed", len(good), "best us sum", round(sum(r["us"] for r in good), 1), "first", round(sum(r["first_us"] or 0 for r in good), 1), "plans", sum(len(r["plans"]) for r in rs), "wrong", sum("wrong" in p for r in rs for p in r["plans"]), "failed", sum("failed" in p for r in rs for p in r["plans"]), "refused", dict(sum((r["refused"] for r in rs), collections.Counter())),
        "build s precompiled", sorted(round(p["build_s"], 3) for r in rs for p in r["plans"] if not p["runtime"])[-1:], "runtime median/max", (lambda v: (v[len(v)//2], v[-1]) if v else None)(sorted(p["build_s"] for r in rs for p in r["plans"] if p["runtime"])))
