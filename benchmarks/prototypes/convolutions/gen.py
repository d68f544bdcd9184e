"""Write kernels.cu and kernels.json: every depthwise variant to check and time."""
import json, sys
out, rows = [], []
out.append('#include "depthwise_banded.cuh"\n#include "conv/depthwise_direct.cuh"\nusing namespace onnxopt;\n')
DT = {"f16": "float16", "bf16": "bfloat16", "f32": "float"}
AFTER = {"silu": "Silu", "relu6": "Relu6", "gelu": "Gelu", "none": "Linear", "relu": "Relu"}

def win(k, s, d): return f"Window<{k}, {k}, {s}, {s}, {d}, {d}>"

def banded(dt, k, s, d, across, down, chunks, warps, after="silu", before=None, aligned=True, blocks=0, images=1, sums=False, pieces=-8):
    name = f"b_{dt}_k{k}s{s}d{d}_a{across}d{down}c{chunks}w{warps}_{after}" + (f"_pre{before}" if before else "") + ("" if aligned else "_any") + (f"_m{blocks}" if blocks else "") + (f"_i{images}" if images > 1 else "") + (f"_p{pieces}" if pieces > 0 else f"_o{-pieces}" if pieces != -8 else "") + ("_sums" if sums else "")
    if any(r['name'] == name for r in rows): return
    t = DT[dt]
    b = f"Biased<{t}, {AFTER[before]}>" if before else "Same"
    out.append(f'using T_{name} = BandedTile<{win(k,s,d)}, {across}, {down}, {chunks}, {warps}, {images}, {abs(pieces)}, {str(pieces < 0).lower()}>;\n'
      f'using K_{name} = Banded<{t}, {win(k,s,d)}, T_{name}, {str(aligned).lower()}, {str(sums).lower()}, {b}, Biased<{t}, {AFTER[after]}>>;\n'
      f'extern "C" __global__ void __launch_bounds__({warps*32}{", %d" % blocks if blocks else ""}) {name}(const __grid_constant__ K_{name}::Params p) {{ K_{name}::run(p); }}\n'
      f'extern "C" __device__ const int smem_{name} = T_{name}::kSharedBytes;\n')
    rows.append(dict(name=name, kind="banded", dt=dt, k=k, s=s, d=d, across=across, down=down, chunks=chunks, warps=warps, after=after, before=before, aligned=aligned, images=images, sums=sums, once=pieces < 0))

def direct(dt, k, s, d, v, down, across, threads=128, after="silu", before=None, blocks=0, sums=False):
    name = f"d_{dt}_k{k}s{s}d{d}_v{v}d{down}a{across}t{threads}_{after}" + (f"_m{blocks}" if blocks else "") + (f"_pre{before}" if before else "")
    if any(r['name'] == name for r in rows): return
    t = DT[dt]
    b = f"Biased<{t}, {AFTER[before]}>" if before else "Same"
    out.append(f'using K_{name} = Direct<{t}, {win(k,s,d)}, {v}, {down}, {across}, {threads}, {str(sums).lower()}, {b}, Biased<{t}, {AFTER[after]}>>;\n'
      f'extern "C" __global__ void __launch_bounds__({threads}{", %d" % blocks if blocks else ""}) {name}(const __grid_constant__ K_{name}::Params p) {{ K_{name}::run(p); }}\n')
    rows.append(dict(name=name, kind="direct", dt=dt, k=k, s=s, d=d, v=v, down=down, across=across, threads=threads, after=after, before=before, aligned=v > 1, images=1, sums=sums))

exec(open(sys.argv[1]).read())
open("kernels.cu", "w").write("".join(out))
json.dump(rows, open("kernels.json", "w"))
print(len(rows), "kernels")
