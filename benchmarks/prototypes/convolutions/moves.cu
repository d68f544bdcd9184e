#include "nhwc_moves.cuh"
using namespace onnxopt;
#define PAD(from, to, px) extern "C" __global__ void __launch_bounds__(128) pad_##from##_##to##_##px(const float16* x, float16* y, unsigned n) { pad_channels<float16, from, to, px>(x, y, n); }
PAD(3, 4, 8) PAD(3, 8, 8) PAD(3, 4, 2) PAD(3, 8, 2) PAD(3, 8, 4) PAD(3, 4, 4)
#define POOL(k, s, d, a) extern "C" __global__ void __launch_bounds__(128) pool_##k##_##s##_##d##_##a(const float16* x, float16* y, PoolShape p) { max_pool<float16, k, s, d, a>(x, y, p); }
POOL(3, 2, 1, 1) POOL(3, 2, 2, 1) POOL(3, 2, 1, 2) POOL(3, 2, 2, 2) POOL(5, 1, 1, 1) POOL(5, 1, 2, 2) POOL(5, 1, 4, 1) POOL(5, 1, 1, 4) POOL(3, 2, 4, 1)
extern "C" __global__ void __launch_bounds__(128) resize_2(const float16* x, float16* y, unsigned n, unsigned g, unsigned w, unsigned pitch) { resize_nearest<float16, 2>(x, y, n, g, w, pitch); }
extern "C" __global__ void __launch_bounds__(128) columns_3(const float16* x, float16* y, PoolShape p, int stride) { gather_columns<float16, 3>(x, y, p, stride); }
