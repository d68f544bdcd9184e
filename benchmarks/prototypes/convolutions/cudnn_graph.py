"""cuDNN's backend API through ctypes, without its headers: a convolution and what follows it as one graph, NHWC."""
import ctypes, glob, os, time
import torch

HALF, FLOAT, BF16 = 2, 0, 9
T_HANDLE, T_DATA, T_BOOL, T_INT64, T_FLOAT, T_DOUBLE, T_PTR, T_CONVMODE, T_HEUR, T_PWMODE, T_DESC, T_BEHAVIOR, T_NUMERICAL = 0, 1, 2, 3, 4, 5, 6, 7, 8, 14, 15, 19, 11
D_PW, D_CONV, D_ENGINE, D_CFG, D_HEUR, D_PLAN, D_OPCONV, D_OPPW, D_GRAPH, D_PACK, D_TENSOR = 0, 1, 2, 3, 4, 5, 10, 13, 15, 16, 17
PW = dict(add=0, mul=1, relu=100, sigmoid=102, gelu=104, swish=106)

def load():
    import nvidia
    for base in list(nvidia.__path__):
        for p in glob.glob(base + "/*/lib/libcudnn.so.9"):
            return ctypes.CDLL(p, mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL("libcudnn.so.9")
lib = load()
lib.cudnnGetVersion.restype = ctypes.c_size_t
lib.cudnnGetErrorString.restype = ctypes.c_char_p

class Refused(Exception): pass
def ok(code, what):
    if code: raise Refused(f"{what}: {code}")

class Descriptor:
    def __init__(self, kind, *attributes):
        self.p = ctypes.c_void_p(); ok(lib.cudnnBackendCreateDescriptor(kind, ctypes.byref(self.p)), f"create {kind}")
        self.kept = attributes
        for a in attributes: self.set(*a)
    def set(self, name, kind, values):
        values = list(values) if isinstance(values, (list, tuple)) else [values]
        if kind == T_DESC: array = (ctypes.c_void_p * len(values))(*[v.p for v in values])
        elif kind in (T_PTR, T_HANDLE): array = (ctypes.c_void_p * len(values))(*values)
        elif kind == T_INT64: array = (ctypes.c_int64 * len(values))(*values)
        elif kind == T_FLOAT: array = (ctypes.c_float * len(values))(*values)
        elif kind == T_DOUBLE: array = (ctypes.c_double * len(values))(*values)
        elif kind == T_BOOL: array = (ctypes.c_bool * len(values))(*values)
        else: array = (ctypes.c_int * len(values))(*values)
        ok(lib.cudnnBackendSetAttribute(self.p, name, kind, ctypes.c_int64(len(values)), array), f"set {name}")
    def done(self, what):
        ok(lib.cudnnBackendFinalize(self.p), what); return self
    def number(self, name, kind=T_INT64):
        v, n = ctypes.c_int64(), ctypes.c_int64()
        ok(lib.cudnnBackendGetAttribute(self.p, name, kind, ctypes.c_int64(1), ctypes.byref(n), ctypes.byref(v)), f"get {name}"); return v.value
    def __del__(self): lib.cudnnBackendDestroyDescriptor(self.p)

def tensor(uid, dims, dtype, virtual=False, strides=None):
    n, c, h, w = dims
    strides = strides or [h * w * c, 1, w * c, c]
    return Descriptor(D_TENSOR, (901, T_DATA, dtype), (902, T_INT64, dims), (903, T_INT64, strides), (906, T_INT64, uid), (900, T_INT64, 16), (907, T_BOOL, virtual)).done("tensor")

X, W, Y, BIAS, RES = 1, 2, 3, 4, 5

def front(self, x, dtype, x_strides, before):
    n, c, h, w = x
    if not before: return tensor(X, x, dtype, False, x_strides)
    at = tensor(X, x, dtype, False, x_strides)
    for i, step in enumerate(before):
        to = tensor(200 + i, x, dtype, True); name = step[4:]
        pw = Descriptor(D_PW, (0, T_PWMODE, PW[{"mul_nc": "mul", "add_c": "add"}.get(name, name)]), (1, T_DATA, FLOAT))
        if name == "swish": pw.set(8, T_DOUBLE, 1.0)
        op = [(750, T_DESC, pw.done("pw")), (751, T_DESC, at), (753, T_DESC, to)]
        if name == "mul_nc": op.append((752, T_DESC, tensor(8, (n, c, 1, 1), dtype)))
        if name == "add_c": op.append((752, T_DESC, tensor(9, (1, c, 1, 1), dtype)))
        self.before.append(Descriptor(D_OPPW, *op).done("op " + step)); at = to
    return at

class Conv:
    """steps: of "bias", "residual", "relu", "swish", "gelu", in order. x, w in NCHW dims."""
    def __init__(self, x, w, stride, pads, dilation=1, steps=(), dtype=HALF, x_strides=None, y_strides=None, math=FLOAT, groups=1):
        self.handle = ctypes.c_void_p(); ok(lib.cudnnCreate(ctypes.byref(self.handle)), "cudnnCreate")
        k, _, r, s = w; n, _, h, wd = x
        oh = (h + pads[0] + pads[2] - (r - 1) * dilation - 1) // stride + 1; ow = (wd + pads[1] + pads[3] - (s - 1) * dilation - 1) // stride + 1
        self.y = (n, k, oh, ow)
        conv = Descriptor(D_CONV, (106, T_INT64, 2), (100, T_DATA, FLOAT), (101, T_CONVMODE, 1), (105, T_INT64, [pads[0], pads[1]]), (104, T_INT64, [pads[2], pads[3]]), (103, T_INT64, [stride] * 2), (102, T_INT64, [dilation] * 2)).done("conv")
        before = [t for t in steps if t.startswith('pre_')]; steps = [t for t in steps if not t.startswith('pre_')]; self.before = []
        at = tensor(100 if steps else Y, self.y, FLOAT if steps else dtype, bool(steps), None if steps else y_strides)
        ops = [Descriptor(D_OPCONV, (704, T_DESC, front(self, x, dtype, x_strides, before)), (703, T_DESC, tensor(W, w, dtype)), (705, T_DESC, at), (702, T_DESC, conv), (700, T_FLOAT, 1.0), (701, T_FLOAT, 0.0)).done("op conv")]
        ops = self.before + ops
        for i, step in enumerate(steps):
            last = i + 1 == len(steps)
            to = tensor(Y if last else 101 + i, self.y, dtype if last else FLOAT, not last, y_strides if last else None)
            mode = {"bias": "add", "residual": "add", "add_nc": "add", "mul_nc": "mul", "mul_c": "mul"}.get(step, step)
            pw = Descriptor(D_PW, (0, T_PWMODE, PW[mode]), (1, T_DATA, FLOAT))
            if step == "swish": pw.set(8, T_DOUBLE, 1.0)
            pw.done("pointwise")
            op = [(750, T_DESC, pw), (751, T_DESC, at), (753, T_DESC, to)]
            if step == "bias": op.append((752, T_DESC, tensor(BIAS, (1, k, 1, 1), dtype)))
            if step in ("add_nc", "mul_nc"): op.append((752, T_DESC, tensor(6, (n, k, 1, 1), dtype)))
            if step == "mul_c": op.append((752, T_DESC, tensor(7, (1, k, 1, 1), dtype)))
            if step == "residual": op.append((752, T_DESC, tensor(RES, self.y, dtype)))
            ops.append(Descriptor(D_OPPW, *op).done("op " + step)); at = to
        self.graph = Descriptor(D_GRAPH, (800, T_HANDLE, [self.handle]), (801, T_DESC, ops)).done("graph")

    def configs(self, mode):
        heur = Descriptor(D_HEUR, (201, T_DESC, self.graph), (200, T_HEUR, mode)).done("heuristics")
        n = ctypes.c_int64()
        ok(lib.cudnnBackendGetAttribute(heur.p, 202, T_DESC, ctypes.c_int64(0), ctypes.byref(n), None), "count")
        found = [Descriptor(D_CFG) for _ in range(n.value)]
        array = (ctypes.c_void_p * n.value)(*[d.p for d in found])
        ok(lib.cudnnBackendGetAttribute(heur.p, 202, T_DESC, n, ctypes.byref(n), array), "configs")
        return found[:n.value]

    def plan(self, config):
        t = time.time()
        p = Descriptor(D_PLAN, (400, T_HANDLE, [self.handle]), (401, T_DESC, config)).done("plan")
        p.seconds = time.time() - t; p.workspace = p.number(402); p.engine, p.runtime = engine_of(config)
        return p

def engine_of(config):
    e = Descriptor(D_ENGINE); n = ctypes.c_int64(); array = (ctypes.c_void_p * 1)(e.p)
    lib.cudnnBackendGetAttribute(config.p, 300, T_DESC, ctypes.c_int64(1), ctypes.byref(n), array)
    notes = (ctypes.c_int * 8)(); count = ctypes.c_int64()
    lib.cudnnBackendGetAttribute(e.p, 1305, T_BEHAVIOR, ctypes.c_int64(8), ctypes.byref(count), notes)
    try: index = e.number(1301)
    except Refused: index = -1
    return index, 0 in notes[:count.value]

class Runner:
    def __init__(self, conv, plan, buffers):
        """buffers: list of {uid: tensor}"""
        self.conv, self.plan = conv, plan
        self.workspace = torch.empty(max(plan.workspace, 16), dtype=torch.uint8, device="cuda")
        self.packs = [Descriptor(D_PACK, (1000, T_INT64, list(b)), (1001, T_PTR, [t.data_ptr() for t in b.values()]), (1003, T_PTR, [self.workspace.data_ptr()])).done("pack") for b in buffers]
    def __call__(self, i):
        lib.cudnnSetStream(self.conv.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        ok(lib.cudnnBackendExecute(self.conv.handle, self.plan.p, self.packs[i].p), "execute")
