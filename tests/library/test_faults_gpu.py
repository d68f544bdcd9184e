"""Faults while running on a GPU: two GPUs, no memory, a fork, threads that end, a device that is lost.

Each test runs in a process of its own, since some of the faults end what a process can do with the device. Faults of
single calls of the driver are in test_faults.py, which needs no GPU.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxopt
from onnxopt.codegen import sealed_json
from tests.conftest import device_arch
from tests.support.small_models import CHAIN, write

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("library")]

_COMMON = """
import ctypes, gc, os, re, sys, threading, time
import numpy as np, onnxruntime as ort
ort.set_default_logger_severity(4)
ort.preload_dlls()
model, library = sys.argv[1:3]
RELATIVE, ABSOLUTE = map(float, sys.argv[3:])
driver = ctypes.CDLL("libcuda.so.1")
CUDA = "CUDAExecutionProvider"

def session(device=0, own=True, **settings):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if own:
        options.register_custom_ops_library(library)
    settings |= {"device_id": str(device), "use_tf32": "0"}
    return ort.InferenceSession(model, options, providers=[(CUDA, settings)])

def feeds(batch):
    draw = np.random.default_rng(batch)
    return {n: draw.standard_normal(s, np.float32) for n, s in (("x", (batch, 8)), ("bias", (8,)), ("weight", (8, 8)))}

BATCHES = (1, 5, 64, 257, 1000, 4099)
def first_outputs():
    plain, own = session(own=False), session()
    assert own.get_providers()[0] == CUDA, own.get_providers()
    found = {}
    for batch in BATCHES:
        found[batch] = own.run(None, feeds(batch))[0]
        np.testing.assert_allclose(found[batch], plain.run(None, feeds(batch))[0], rtol=RELATIVE, atol=ABSOLUTE)
    return found
def right(of, batch=257):
    return of.run(None, feeds(batch))[0].tobytes() == expected[batch].tobytes()
def outcome(act):  # "right", "wrong", or the error's text
    try:
        return "right" if act() else "wrong"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
def on_threads(*works):
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
def resident():
    gc.collect()
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
def in_use():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    return total.value - free.value
def primary_context():  # of device 0, current on this thread
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and driver.cuCtxSetCurrent(context) == 0
expected = first_outputs()
"""

_TWO_GPUS = """
sessions = [session(device) for device in (0, 1)] + [session(device) for device in (1, 0)]
for each, device in zip(sessions, "0110"):
    assert each.get_provider_options()[CUDA]["device_id"] == device
found = []
def work(of):
    for _ in range(100):
        found.extend(right(of, batch) for batch in BATCHES)
on_threads(*[lambda of=of: work(of) for of in sessions for _ in range(2)])
assert all(found) and len(found) == 8 * 100 * len(BATCHES), (len(found), found.count(False))
for of in sessions * 20:  # one thread that goes from GPU to GPU
    assert right(of)
"""

_ARENA = """
small = session(gpu_mem_limit=str(96 << 20))
assert right(small)
for _ in range(3):
    said = outcome(lambda: small.run(None, feeds(1 << 22)))
    assert "llocat" in said or "emory" in said, said
    assert right(small)
"""

_DEVICE_MEMORY = """
primary_context()
used, unused = session(), session()
assert right(used)
held = []
for size in (1 << 30, 1 << 26, 1 << 22, 1 << 21):
    while True:
        at = ctypes.c_uint64()
        if driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)):
            break
        held.append(at)
said = outcome(lambda: used.run(None, feeds(1 << 22)))
assert "llocat" in said or "emory" in said, said
for act in (lambda: right(used), lambda: right(unused), lambda: session() is not None):
    said = outcome(act)
    print("full device:", said)
    assert said != "wrong"
for at in held:
    assert driver.cuMemFree_v2(at) == 0
assert right(used) and right(unused) and right(session())
"""

_FORK = """
first = session()
assert right(first)
def near():  # a session that went to the CPU rounds otherwise
    np.testing.assert_allclose(session().run(None, feeds(257))[0], expected[257], rtol=1e-4, atol=1e-5)
    return True
for act in (lambda: right(first), near):
    child = os.fork()
    if child == 0:  # CUDA does not work behind a fork: an error is right, and so is a session on the CPU
        said = outcome(act)
        print("behind a fork:", said, flush=True)
        os._exit(1 if said == "wrong" or "Mismatched" in said else 0)
    for _ in range(600):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended: break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
        raise SystemExit("the child hangs")
    assert status == 0, status
    assert right(first)
"""

_THREADS = """
primary_context()
shared, found = session(), []
def work(with_library):
    own = session(own=with_library)
    found.append(right(shared) and (not with_library or right(own, 64)))
def grown(with_library, count=30):
    before = resident(), in_use()
    for _ in range(count):
        on_threads(*[lambda: work(with_library)] * 6)
    return [b - a for a, b in zip((before), (resident(), in_use()))]
grown(True)  # allocators grow at first
without = grown(False)  # ONNX Runtime keeps some memory of every session
own = [min(times) for times in zip(*(grown(True) for _ in range(3)))]  # a leak grows every time
assert all(found) and len(found) == 900
print("grown by", own, "without the library", without)
assert all(a < 1.3 * max(b, 0) + (16 << 20) for a, b in zip(own, without)), (own, without)
"""

# A server that makes a thread for each request: ONNX Runtime makes a stream for each of them.
_SERVED = """
served, plain = session(), session(own=False)
found = []
def work(of):
    found.append(right(of, 64))
def grown(of, count=40):
    before = in_use()
    for _ in range(count):
        on_threads(*[lambda: work(of)] * 2)
    return in_use() - before
primary_context()
grown(served)  # handles and allocators grow at first
own, without = grown(served), grown(plain)
assert len(found) == 240, len(found)
print("grown by", own, "without the library", without)
assert own <= max(without, 0) + (16 << 20), (own, without)
"""

# A kernel that writes to address 0: the context is lost, as after a fault of the device.
_LOST = """
first = session()
assert right(first)
primary_context()
ptx = b'''.version 6.3
.target sm_75
.address_size 64
.visible .entry harm() { .reg .u64 %a; .reg .u32 %v; mov.u64 %a, 0; mov.u32 %v, 1; st.global.u32 [%a], %v; ret; }
\\0'''
module, function = ctypes.c_void_p(), ctypes.c_void_p()
assert driver.cuModuleLoadData(ctypes.byref(module), ptx) == 0
assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"harm") == 0
assert driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
assert driver.cuCtxSynchronize() != 0
for _ in range(3):
    said = outcome(lambda: right(first))
    print("lost device:", said)
    assert said not in ("right", "wrong"), said
said = outcome(lambda: right(session()))
print("a new session:", said)
sys.stdout.flush()
os._exit(0)  # ONNX Runtime's destructors may abort on a lost device
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    model = write(folder / "chain.onnx", CHAIN)
    return onnxopt.optimize(model, folder / "artifact", archs=[device_arch()]).path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution and products, float16 inside."""
    draw = np.random.default_rng(0)

    def weight(name: str, *dims: int) -> onnx.TensorProto:
        return onnx.numpy_helper.from_array((draw.standard_normal(dims) * 0.05).astype(np.float16), name)

    graph = onnx.parser.parse_graph("""
        network (float[batch, 8] x, float[8] bias, float[8, 8] weight) => (float[batch, 512] y)
        <int64[4] image = {-1, 64, 8, 8}, int64[2] rows = {0, -1}> {
          mixed = MatMul(x, weight)
          biased = Add(mixed, bias)
          half = Cast<to = 10>(biased)
          wide = MatMul(half, widen)
          maps = Reshape(wide, image)
          convolved = Conv<pads = [1, 1, 1, 1]>(maps, filters, shift)
          active = Relu(convolved)
          flat = Reshape(active, rows)
          product = MatMul(flat, deep)
          result = Relu(product)
          y = Cast<to = 1>(result)
        }
    """)
    dims = {"widen": (8, 4096), "filters": (128, 64, 3, 3), "shift": (128,), "deep": (8192, 512)}
    graph.initializer.extend(weight(name, *of) for name, of in dims.items())
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    folder = tmp_path_factory.mktemp("served")
    onnx.save(model, folder / "network.onnx")
    made = onnxopt.optimize(folder / "network.onnx", folder / "artifact", archs=[device_arch()]).path
    kinds = {kernel["kind"] for kernel in sealed_json.unseal((made / "lib" / "kernels.json").read_text())["kernels"]}
    assert {"convolution", "gemm"} <= kinds, kinds
    return made


def run(program: str, made: Path, relative: float = 1e-4, absolute: float = 1e-5) -> None:
    command = [sys.executable, "-c", _COMMON + program, str(made / "model.onnx")]
    command += [str(made / "lib" / "libonnxopt_ops.so"), str(relative), str(absolute)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    print(done.stdout)
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])


def devices() -> int:
    count = ctypes.c_int(0)
    driver = ctypes.CDLL("libcuda.so.1")
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def test_sessions_on_two_gpus(made: Path) -> None:
    """The same bits from both, with sessions of both in each thread and threads on both at once."""
    if devices() < 2:
        pytest.skip("needs two GPUs")
    run(_TWO_GPUS, made)


@pytest.mark.parametrize(
    "program",
    [_ARENA, _DEVICE_MEMORY, _FORK, _THREADS, _LOST],
    ids=["arena is full", "device is full", "fork", "threads", "lost device"],
)
def test_a_fault_is_an_error_and_no_wrong_output(program: str, made: Path) -> None:
    run(program, made)


def test_memory_does_not_grow_with_the_threads_that_a_session_has_served(network: Path) -> None:
    run(_SERVED, network, relative=1e-2, absolute=3e-2)  # outputs of about 4, from sums of 8192 float16 products
