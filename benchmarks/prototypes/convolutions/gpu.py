"""Load a cubin through the driver, launch its kernels on torch's stream, and time things in a CUDA graph."""
import ctypes, torch
cuda = ctypes.CDLL("libcuda.so.1")

def check(code, what=""):
    if code:
        s = ctypes.c_char_p(); cuda.cuGetErrorString(code, ctypes.byref(s)); raise RuntimeError(f"{what}: {code} {s.value}")

class Module:
    def __init__(self, path):
        torch.zeros(1, device="cuda")
        self.image = open(path, "rb").read(); self.module = ctypes.c_void_p()
        check(cuda.cuModuleLoadData(ctypes.byref(self.module), self.image), "load")
    def kernel(self, name, shared=0):
        f = ctypes.c_void_p(); check(cuda.cuModuleGetFunction(ctypes.byref(f), self.module, name.encode()), name)
        if shared > 48 * 1024: check(cuda.cuFuncSetAttribute(f, 8, shared), name + " shared")
        return f
    def number(self, name):
        p, n = ctypes.c_uint64(), ctypes.c_size_t()
        check(cuda.cuModuleGetGlobal_v2(ctypes.byref(p), ctypes.byref(n), self.module, name.encode()), name)
        v = ctypes.c_int(); check(cuda.cuMemcpyDtoH_v2(ctypes.byref(v), p, 4)); return v.value

def launch(f, grid, threads, shared, params, number=0):
    number = ctypes.c_int(number); args = (ctypes.c_void_p * 2)(ctypes.addressof(params), ctypes.addressof(number))
    check(cuda.cuLaunchKernel(f, *grid, threads, 1, 1, shared, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), args, None), "launch")

def microseconds(run, sets, launches=None, repeats=9):
    """run(i) launches work on buffer set i; median over graph replays, us a launch."""
    launches = launches or max(sets, 24)
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        for i in range(min(sets, 3)): run(i)
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, stream=s):
            for i in range(launches): run(i % sets)
        g.replay(); torch.cuda.synchronize()
        times = []
        for _ in range(repeats):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(s); g.replay(); b.record(s); torch.cuda.synchronize(); times.append(a.elapsed_time(b))
    return sorted(times)[len(times) // 2] * 1e3 / launches

POOL = {}
def pool(name, dtype, elements):
    """`elements` of a shared buffer of random numbers."""
    key = (name, dtype)
    if key not in POOL or POOL[key].numel() < elements:
        POOL[key] = torch.randn(int(elements), device="cuda", dtype=torch.float32).to(dtype)
    return POOL[key]

def sets_of(name, dtype, shape, sets):
    n = 1
    for d in shape: n *= d
    step = (n + 127) // 128 * 128
    p = pool(name, dtype, step * sets)
    return [p[i * step:i * step + n].view(shape) for i in range(sets)]

def rotation(bytes_per_launch): return int(min(64, max(2, -(-300_000_000 // bytes_per_launch))))
