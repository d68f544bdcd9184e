"""cuBLASLt for the 1x1 layers: product alone, + bias, + bias + ReLU, relu(AB + C + bias), C apart from D. Best of the heuristic's first few. argv: out.json"""
import ctypes, glob, json, sys, torch, nvidia
from gpu import *
from layers import layers
path = [p for b in nvidia.__path__ for p in glob.glob(b + "/*/lib/libcublasLt.so.*")][0]; lt = ctypes.CDLL(path)
H = torch.float16; P = ctypes.c_void_p
def ok(c, w):
    if c: raise RuntimeError(f"{w} {c}")
handle = P(); ok(lt.cublasLtCreate(ctypes.byref(handle)), "create")
work = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
class Result(ctypes.Structure): _fields_ = [("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int), ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]
one, zero = ctypes.c_float(1), ctypes.c_float(0)
def attr(f, d, name, v): ok(f(d, name, ctypes.byref(v), ctypes.c_size_t(ctypes.sizeof(v))), f"attr {name}")
class Product:
    def __init__(self, m, n, k, epilogue, bias, add):
        self.d = P(); ok(lt.cublasLtMatmulDescCreate(ctypes.byref(self.d), 68, 0), "desc")
        attr(lt.cublasLtMatmulDescSetAttribute, self.d, 3, ctypes.c_int(1)); attr(lt.cublasLtMatmulDescSetAttribute, self.d, 7, ctypes.c_int(epilogue))
        if bias is not None: attr(lt.cublasLtMatmulDescSetAttribute, self.d, 8, ctypes.c_uint64(bias.data_ptr()))
        self.l = []
        for rows, cols, ld in ((k, n, k), (k, m, k), (n, m, n)):
            x = P(); ok(lt.cublasLtMatrixLayoutCreate(ctypes.byref(x), 2, ctypes.c_uint64(rows), ctypes.c_uint64(cols), ctypes.c_int64(ld)), "layout"); self.l.append(x)
        pref = P(); ok(lt.cublasLtMatmulPreferenceCreate(ctypes.byref(pref)), "pref"); attr(lt.cublasLtMatmulPreferenceSetAttribute, pref, 1, ctypes.c_uint64(work.numel()))
        self.r = (Result * 8)(); c = ctypes.c_int(); self.beta = one if add else zero
        ok(lt.cublasLtMatmulAlgoGetHeuristic(handle, self.d, self.l[0], self.l[1], self.l[2], self.l[2], pref, 8, self.r, ctypes.byref(c)), "heuristic"); self.count = c.value
    def __call__(self, a, x, w, c, y):
        s = P(torch.cuda.current_stream().cuda_stream)
        ok(lt.cublasLtMatmul(handle, self.d, ctypes.byref(one), P(w.data_ptr()), self.l[0], P(x.data_ptr()), self.l[1], ctypes.byref(self.beta), P(c.data_ptr()), self.l[2], P(y.data_ptr()), self.l[2], ctypes.byref(self.r[a].algo), P(work.data_ptr()), ctypes.c_size_t(work.numel()), s), "matmul")
out = []
for L in layers():
    n, c, h, w = L["x"]; k = L["w"][0]
    if L["w"][2] != 1 or L["s"] != 1 or h == 1: continue
    m = n * h * w; sets = rotation(2 * (m * c + m * k)); r = dict(x=L["x"], k=k, epi=L["epi"], models=L["models"])
    xs, ys, rs, ws = sets_of("x", H, (m, c), sets), sets_of("y", H, (m, k), sets), sets_of("r", H, (m, k), sets), sets_of("w", H, (k, c), sets); b = torch.randn(k, device="cuda", dtype=H)
    base = xs[0].float() @ ws[0].float().t()
    for name, e, add in (("plain", 1, False), ("bias", 4, False), ("bias_relu", 6, False), ("add_bias", 4, True), ("add_bias_relu", 6, True)):
        p = Product(m, k, c, e, b if e > 1 else None, add); t = []
        want = base + (b.float() if e > 1 else 0) + (rs[0].float() if add else 0); want = want.relu() if e == 6 else want
        for a in range(p.count):
            try:
                ys[0].fill_(float("nan")); p(a, xs[0], ws[0], rs[0] if add else ys[0], ys[0]); torch.cuda.synchronize()
                if not add: pass
                err = ((ys[0].float() - want).norm() / want.norm()).item()
                if err < 2e-3: t.append(round(microseconds(lambda i: p(a, xs[i], ws[i], rs[i] if add else ys[i], ys[i]), sets, launches=max(sets, 10), repeats=3), 2))
                else: t.append(None)
            except RuntimeError as x: t.append(None)
        r[name] = t
    out.append(r)
    best = lambda t: min((x for x in t if x), default=None)
    print("x".join(map(str, (n, h, w, c))), "->", k, L["epi"], {q: (best(r[q]), r[q][0] if r[q] else None) for q in ("plain", "bias", "bias_relu", "add_bias", "add_bias_relu")}, flush=True)
json.dump(out, open(sys.argv[1], "w"))
