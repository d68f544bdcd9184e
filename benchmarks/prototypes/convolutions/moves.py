"""Items 4 and 5: stem, pools, resize, small maps. argv: out.json"""
import ctypes, json, sys, torch, torch.nn.functional as F
from gpu import *
torch.backends.cudnn.benchmark = True
H = torch.float16; mod = Module("moves.cubin"); out = {}
cdiv = lambda a, b: -(-a // b)
def go(f, grid, threads, *args):
    kept = [a if isinstance(a, ctypes.Structure) else ctypes.c_uint64(a.data_ptr()) if isinstance(a, torch.Tensor) else ctypes.c_uint(a) for a in args]
    array = (ctypes.c_void_p * len(kept))(*[ctypes.addressof(k) for k in kept])
    check(cuda.cuLaunchKernel(f, *grid, threads, 1, 1, 0, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), array, None))
class Pool(ctypes.Structure): _fields_ = [(n, ctypes.c_int) for n in ("height", "width", "channels", "out_height", "out_width", "pad_top", "pad_left")]
def copy_us(nb):
    n = int(nb // 4) // 8 * 8; k = rotation(nb); a, b = sets_of("x", H, (n,), k), sets_of("y", H, (n,), k)
    return microseconds(lambda i: b[i].copy_(a[i]), k)
def report(name, us, nb): out[name] = dict(us=us, mb=nb / 1e6, copy=copy_us(nb)); print(f"{name}: {us:.2f} us, copy {out[name]['copy']:.2f}, {out[name]['copy'] / us:.2f}", flush=True)
cl = torch.channels_last
# stems
for n, hw, k, r, s, p, name in ((32, 224, 64, 7, 2, 3, "resnet50"), (32, 224, 32, 3, 2, 1, "efficientnet"), (8, 640, 32, 3, 2, 1, "csp"), (16, 224, 96, 4, 4, 0, "convnext")):
    sets = rotation(n * hw * hw * 3 * 2 * 5); x = sets_of("x", H, (n, 3, hw, hw), sets)
    for to, px in ((4, 8), (4, 4), (4, 2), (8, 8), (8, 4), (8, 2)):
        y = sets_of("y", H, (n, hw, hw, to), sets); f = mod.kernel(f"pad_3_{to}_{px}")
        y[0].fill_(9); go(f, (cdiv(hw * hw, 128 * px), n, 1), 128, x[0], y[0], hw * hw); torch.cuda.synchronize()
        want = torch.zeros_like(y[0]); want[..., :3] = x[0].permute(0, 2, 3, 1); assert torch.equal(want, y[0]), "pad"
        report(f"{name} pad 3 to {to}, {px} pixels", microseconds(lambda i: go(f, (cdiv(hw * hw, 128 * px), n, 1), 128, x[i], y[i], hw * hw), sets), n * hw * hw * 2 * (3 + to))
    b = torch.randn(k, device="cuda", dtype=H)
    for c in (3, 4, 8, 16):
        oh = (hw + 2 * p - r) // s + 1; nb = 2 * n * (hw * hw * c + oh * oh * k)
        xs = [t.permute(0, 3, 1, 2) for t in sets_of("x", H, (n, hw, hw, c), rotation(nb))]; w = torch.randn(k, c, r, r, device="cuda", dtype=H).contiguous(memory_format=cl)
        report(f"{name} conv {r}x{r} s{s} of {c} channels", microseconds(lambda i: F.conv2d(xs[i], w, None, s, p), len(xs)), nb)
        report(f"{name} conv + relu {r}x{r} s{s} of {c} channels", microseconds(lambda i: torch.cudnn_convolution_relu(xs[i], w, b, [s, s], [p, p], [1, 1], 1), len(xs)), nb)
    if s == 2:
        q = (hw + 2 * p) // 2; c = 16; kk = (r + 1) // 2; o = q - kk + 1; nb = 2 * n * (q * q * c + o * o * k)
        xs = [t.permute(0, 3, 1, 2) for t in sets_of("x", H, (n, q, q, c), rotation(nb))]; w = torch.randn(k, c, kk, kk, device="cuda", dtype=H).contiguous(memory_format=cl)
        report(f"{name} as {kk}x{kk} of space-to-depth, 16 channels", microseconds(lambda i: F.conv2d(xs[i], w, None, 1, 0), len(xs)), nb)
# pools
for n, hw, c, k, s, p, names in ((32, 112, 64, 3, 2, 1, ("1_1", "2_1", "1_2", "2_2", "4_1")), (8, 20, 256, 5, 1, 2, ("1_1", "2_2", "4_1", "1_4")), (64, 40, 256, 5, 1, 2, ("1_1", "2_2", "4_1", "1_4"))):
    oh = (hw + 2 * p - k) // s + 1; nb = 2 * n * c * (hw * hw + oh * oh); sets = rotation(nb)
    xs, ys = sets_of("x", H, (n, hw, hw, c), sets), sets_of("y", H, (n, oh, oh, c), sets); shape = Pool(hw, hw, c, oh, oh, p, p)
    tx = [x.permute(0, 3, 1, 2) for x in xs]; want = F.max_pool2d(tx[0], k, s, p).permute(0, 2, 3, 1)
    for name in names:
        d, a = map(int, name.split("_")); f = mod.kernel(f"pool_{k}_{s}_{name}"); grid = (cdiv(cdiv(oh, a) * c // 8, 128), cdiv(oh, d), n)
        ys[0].fill_(9); go(f, grid, 128, xs[0], ys[0], shape); torch.cuda.synchronize(); assert torch.equal(want, ys[0]), "pool " + name
        report(f"max pool {k}x{k} s{s} {n}x{hw}x{hw}x{c} tile {name}", microseconds(lambda i: go(f, grid, 128, xs[i], ys[i], shape), sets), nb)
    report(f"torch max pool {k}x{k} s{s} {n}x{hw}x{hw}x{c}", microseconds(lambda i: F.max_pool2d(tx[i], k, s, p), sets), nb)
# resize
for n, hw, c, pitch in ((8, 20, 512, 512), (8, 40, 256, 256), (8, 40, 256, 384), (4, 16, 320, 320), (16, 80, 256, 256)):
    nb = 2 * n * c * hw * hw * 5; sets = rotation(nb); xs, ys = sets_of("x", H, (n, hw, hw, c), sets), sets_of("y", H, (n, 2 * hw, 2 * hw, pitch), sets); f = mod.kernel("resize_2")
    grid = (cdiv(n * hw * hw * c // 8, 128), 1, 1); ys[0].fill_(9); go(f, grid, 128, xs[0], ys[0], n * hw * hw * c // 8, c // 8, hw, pitch); torch.cuda.synchronize()
    tx = [x.permute(0, 3, 1, 2) for x in xs]; assert torch.equal(F.interpolate(tx[0], scale_factor=2).permute(0, 2, 3, 1), ys[0][..., :c]), "resize"
    report(f"resize x2 {n}x{hw}x{hw}x{c} pitch {pitch}", microseconds(lambda i: go(f, grid, 128, xs[i], ys[i], n * hw * hw * c // 8, c // 8, hw, pitch), sets), nb)
    report(f"torch resize x2 {n}x{hw}x{hw}x{c}", microseconds(lambda i: F.interpolate(tx[i], scale_factor=2), sets), nb)
# small maps: im2col + product
f = mod.kernel("columns_3")
for n, hw, c, k, s in ((4, 8, 640, 640, 1), (4, 8, 1280, 640, 1), (4, 8, 960, 640, 1), (4, 8, 320, 640, 1), (4, 16, 320, 320, 1), (4, 16, 640, 320, 1), (4, 16, 960, 320, 1), (4, 16, 480, 320, 1), (4, 16, 640, 640, 1), (4, 16, 160, 320, 1), (4, 16, 320, 320, 2), (4, 32, 160, 160, 1), (4, 32, 320, 160, 1), (4, 32, 320, 320, 1)):
    oh = hw // s; m = n * oh * oh; kk = 9 * c; nb = 2 * (n * hw * hw * c + m * k + kk * k); sets = rotation(nb)
    xs, ws, cols, ys = sets_of("x", H, (n, hw, hw, c), sets), sets_of("w", H, (k, kk), sets), sets_of("c", H, (m, kk), sets), sets_of("y", H, (m, k), sets)
    b = torch.randn(k, device="cuda", dtype=H); shape = Pool(hw, hw, c, oh, oh, 1, 1); grid = (cdiv(oh * oh * 9 * c // 8, 128), 1, n)
    go(f, grid, 128, xs[0], cols[0], shape, s); y = torch.mm(cols[0], ws[0].t()).view(n, oh, oh, k).permute(0, 3, 1, 2).float()
    tx = [x.permute(0, 3, 1, 2) for x in xs]; tw = [w.view(k, 3, 3, c).permute(0, 3, 1, 2) for w in ws]
    ref = F.conv2d(tx[0].float(), tw[0].float(), None, s, 1); err = ((y - ref).norm() / ref.norm()).item(); assert err < 2e-3, err
    row = dict(conv=microseconds(lambda i: F.conv2d(tx[i], tw[i], None, s, 1), sets), columns=microseconds(lambda i: go(f, grid, 128, xs[i], cols[i], shape, s), sets),
               mm=microseconds(lambda i: torch.mm(cols[i], ws[i].t(), out=ys[i]), sets), linear=microseconds(lambda i: F.linear(cols[i], ws[i], b), sets))
    for split in (2, 4, 8):
        parts = torch.empty(split, m, k, device="cuda", dtype=H)
        try: row[f"bmm{split}"] = microseconds(lambda i: torch.bmm(cols[i].view(m, split, kk // split).transpose(0, 1), ws[i].view(k, split, kk // split).permute(1, 2, 0), out=parts), sets)
        except RuntimeError as e: row[f"bmm{split}"] = None
    gf = 2 * m * kk * k / 1e9; out[f"small {n}x{hw}x{hw}x{c}->{k} s{s}"] = row
    print(f"small {n}x{hw}x{hw}x{c}->{k} s{s} MB {nb/1e6:.1f} GF {gf:.2f}", {a: b and round(b, 2) for a, b in row.items()}, flush=True)
    json.dump(out, open(sys.argv[1], "w"))
