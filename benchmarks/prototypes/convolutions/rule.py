"""Shape -> kernel for a depthwise convolution on sm_90, and how far it is from the best that was measured."""
import json

def banded(across, down, chunks, warps, images=1, pieces=8):
    return ("banded", dict(across=across, down=down, chunks=chunks, warps=warps, images=images, pieces=pieces))

def direct(vector, down, across):
    return ("direct", dict(vector=vector, down=down, across=across, threads=128))

def choose(bits, kernel, stride, out_height, out_width, channels, prologue=False):
    """bits of an element; square kernels; dilation counts as kernel = (kernel - 1) * dilation + 1."""
    if bits == 32:
        if kernel <= 3: return direct(2, 2, 2) if stride > 1 else direct(2, 4, 2)
        if stride > 1: return direct(1, 2, 4)
        if out_width <= 7: return direct(1, 7, 2)
        return direct(1, 4, 7) if kernel <= 5 or out_width >= 48 else direct(1, 7, 4)
    if channels % 2: return direct(1, 4, 4)  # odd channel counts: one channel a thread
    if stride > 1:
        if kernel <= 3: return direct(2, 2, 4)
        return direct(2, 4, 4)
    if kernel <= 3:
        if out_width >= 96 or prologue and out_width > 7: return banded(2, 2, 4, 8, pieces=9)
        return direct(2, 2, 7)
    if kernel <= 5:
        if out_width <= 8: return banded(1, 1, 2, 8, images=2, pieces=6) if prologue else direct(2, 7, 2)
        return banded(2, 2, 4, 8, pieces=9)
    if out_width <= 8: return banded(1, 1, 2, 8, images=2, pieces=6)
    if out_width <= 16: return banded(2, 2, 2, 8, pieces=6)
    if out_width <= 32: return banded(2, 2, 4, 8, pieces=9)
    return banded(8, 7, 2, 8, pieces=9)

def name(kind, t, dt, k, s):
    if kind == "direct": return f"d_{dt}_k{k}s{s}d1_v{t['vector']}d{t['down']}a{t['across']}t128_silu"
    return f"b_{dt}_k{k}s{s}d1_a{t['across']}d{t['down']}c{t['chunks']}w{t['warps']}_silu" + (f"_i{t['images']}" if t["images"] > 1 else "") + (f"_o{t['pieces']}" if t["pieces"] != 8 else "")

if __name__ == "__main__":
    print("| dtype, k, stride, batch x map x channels | MB | copy us | torch us (bare) | rule: kernel | us | of copy | best measured us |\n|---|---|---|---|---|---|---|---|")
    for key, v in sorted(json.load(open("merged_dw.json")).items(), key=lambda kv: eval(kv[0])):
        dt, k, s, n, hw, c = eval(key); mb, copy, torch_us = v["meta"]
        m = name(*choose(16 if "16" in dt else 32, k, s, -(-hw // s), -(-hw // s), c), dt, k, s)
        t, best = v["times"].get(m), min(v["times"].values())
        print(f"| {dt} {k}x{k} s{s} {n} x {hw}x{hw} x {c} | {mb:.1f} | {copy:.1f} | {torch_us:.1f} | {m[2:].replace('_silu', '')} ({'banded' if m[0] == 'b' else 'direct'}) | {t and round(t, 2)} | {t and round(copy / t, 2)} | {best:.2f} |")
