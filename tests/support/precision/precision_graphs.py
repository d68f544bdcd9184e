"""Graphs whose values are far from those that were drawn at other inputs, by class: what 16 bits must not store.

A row is a name and a body in onnx's text syntax, which ends in `y`. The rows of a group are one model, with an output
each; every row has weights of its own, so that no row shares nodes with another.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx.compose
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

Feeds = dict[str, np.ndarray]

_POWERS = "h = MatMul(x, w) p = Mul(h, h) q = MatMul(p, u) "  # as spectra are
_SCORES = "h = MatMul(x, w) kk = Transpose<perm = [1, 0]>(h) s = MatMul(h, kk) "
_MIXED = " m = Softmax(t) y = MatMul(m, h)"
_ANGLES = "s = Sin(a) c = Cos(a) d = Add(s, c) g = MatMul(d, d4) h = MatMul(x, w) y = Add(h, g)"

_GUARDS = """
where less: b = Less(q, low) c = Where(b, low, q) y = Log(c)
where equal div: b = Equal(q, zero) c = Where(b, low, q) y = Div(h, c)
min max: a = Max(q, low11) c = Min(a, hi) y = Log(c)
clip max only then add: a = Clip(q, , hi) c = Add(a, low) y = Log(c)
sumsq eps: s = ReduceSumSquare(h, vm1) a = Add(s, e12) r = Sqrt(a) y = Div(h, r)
l1 eps: s = ReduceL1(h, vm1) a = Add(s, e12) y = Div(h, a)
l2 max: s = ReduceL2(h, vm1) a = Max(s, e8) y = Div(h, a)
l2 where: s = ReduceL2(h, vm1) b = Less(s, e8) a = Where(b, e8, s) y = Div(h, a)
sum mul: s0 = Mul(h,h) s = ReduceSum(s0, vm1) a = Add(s, e12) r = Sqrt(a) i = Reciprocal(r) y = Mul(h, i)
logsumexp: m = ReduceMax(h, vm1) d = Sub(h, m) e = Exp(d) s = ReduceSum(e, vm1) l = Log(s) y = Add(l, m)
logsumexp without max: e = Exp(h) s = ReduceSum(e, vm1) y = Log(s)
ReduceLogSumExp: y = ReduceLogSumExp(h, vm1)
ReduceLogSum: y0 = ReduceLogSum(q, vm1) y = Max(y0, n65504)
eps shape8: c = Add(q, low8) y = Log(c)
eps shape1: c = Add(q, low1) y = Log(c)
eps const node: k = Constant<value = float {1e-10}>() c = Add(q, k) y = Log(c)
eps const cast: k = Constant<value = double {1e-10}>() k1 = Cast<to = 1>(k) c = Add(q, k1) y = Log(c)
eps expand: s = Shape(q) k = Expand(low1, s) c = Add(q, k) y = Log(c)
eps constantofshape: s = Shape(q) k = ConstantOfShape<value = float[1] {1e-10}>(s) c = Max(q, k) y = Log(c)
recip add: c = Add(q, low) i = Reciprocal(c) y = Mul(q, i)
pow -0.5: c = Add(q, low) i = Pow(c, mhalf) y = Mul(q, i)
pow -2: c = Add(h, e5) b = Abs(c) d = Add(b, e5) i = Pow(d, mtwo) y = Mul(p, i)
pow -1: c = Add(q, low) i = Pow(c, mone) y = Mul(q, i)
one div: c = Add(q, low) i = Div(one, c) y = Mul(q, i)
softplus op: y = Softplus(h)
softplus spelled: e = Exp(h) a = Add(e, one) y = Log(a)
mish spelled: e = Exp(h) a = Add(e, one) l = Log(a) t = Tanh(l) y = Mul(h, t)
softplus log: s = Softplus(h) y = Log(s)
log1p spelled: a = Add(q, one) y0 = Log(a) y = Tanh(y0)
log1p small: a = Add(q, one) y0 = Log(a) n = ReduceMax(y0, vm1) n1 = Add(n, e12) y = Div(y0, n1)
div sum: s = ReduceSum(q, vm1) a = Add(s, e8) y = Div(q, a)
lpnorm: y = LpNormalization<axis = -1, p = 2>(h)
cosine: n = ReduceL2(h, vm1) c = Clip(n, e8) a = Div(h, c) t = Transpose<perm=[1,0]>(a) y = MatMul(a, t)
cosine by norms: t = Transpose<perm=[1,0]>(h) d = MatMul(h, t) n = ReduceL2(h, vm1) nt = Transpose<perm=[1,0]>(n) pr =
    Mul(n, nt) c = Max(pr, e8) y = Div(d, c)
log of softmax: s = Softmax(q) c = Add(s, e12) y = Log(c)
log sigmoid: s = Sigmoid(h) c = Clip(s, e7) y = Log(c)
logit: s = Sigmoid(h) c = Clip(s, e7) o = Sub(one, c) d = Clip(o, e7) r = Div(c, d) y = Log(r)
db scale: c = Max(q, low) l = Log(c) y = Mul(l, ten)
sqrt: c = Add(q, e12) y = Sqrt(c)
magnitude phase: r = Mul(h, h) s = Add(r, e12) m = Sqrt(s) y = Div(h, m)
power by Log and Exp: c = Add(q, e12) l = Log(c) l2 = Mul(l, mhalf) e = Exp(l2) y = Mul(q, e)
sub guard: n = Neg(q) c = Sub(low, n) y = Log(c)
guard by Sum: c = Sum(q, low) y = Log(c)
mul of eps: z = Mul(e8, half) c = Add(q, z) y = Log(c)
relu+eps: a = Relu(h) c = Add(a, e12) s = ReduceSum(c, vm1) y = Div(c, s)
std: m = ReduceMean(h, vm1) d = Sub(h, m) d2 = Mul(d, d) v = ReduceMean(d2, vm1) s = Sqrt(v) a = Add(s, e7) y =
    Div(d, a)
var large mean: m0 = Add(h, hundred) m = ReduceMean(m0, vm1) d = Sub(m0, m) d2 = Mul(d, d) v = ReduceMean(d2, vm1)
    s0 = Add(v, e5) s = Sqrt(s0) y = Div(d, s)
var by squares: m = ReduceMean(h, vm1) h2 = Mul(h, h) m2 = ReduceMean(h2, vm1) mm = Mul(m, m) vq = Sub(m2, mm) v =
    Relu(vq) s0 = Add(v, e5) s = Sqrt(s0) d = Sub(h, m) y = Div(d, s)
softmax spelled no max: e = Exp(h) s = ReduceSum(e, vm1) y = Div(e, s)
softmax spelled: m = ReduceMax(h, vm1) d = Sub(h, m) e = Exp(d) s = ReduceSum(e, vm1) y = Div(e, s)
logsoftmax: y = LogSoftmax(h)
sigmoid spelled: n = Neg(h) e = Exp(n) a = Add(e, one) y = Div(one, a)
exp to matmul: e = Exp(h) y0 = MatMul(e, u) y = Log(y0)
expm1: y = Elu(h)
sinh: e = Exp(h) n = Neg(h) f = Exp(n) d = Sub(e, f) s = Add(e, f) y = Div(d, s)
squared relu: r = Relu(h) s = Mul(r, r) y = MatMul(s, u)
pow 4 root: a = Pow(h, two) b = Mul(a, a) s = ReduceMean(b, vm1) s1 = Add(s, e12) r0 = Sqrt(s1) r = Sqrt(r0) y =
    Div(h, r)
"""

_ORDERS = """
argmax large: h = MatMul(x, w) b = Mul(h, e5) c = Add(b, hundred) a = ArgMax<axis=-1>(c) f = Cast<to=1>(a) y =
    Mul(f, one)
round large: h = MatMul(x, w) k = Mul(h, big) r = Round(k) d = Sub(k, r) y = MatMul(d, w)
"""

_OPSET_11 = """
opset 11: c = Max(q, low) y = Log(c)
opset 11, a quotient: c = Max(q, low) r = Sqrt(c) y = Div(h, r)
"""

_OPSET_13 = """
opset 13: c = Add(q, low1) s = Sqrt(c) y = Div(h, s)
"""

_OPSET_17 = """
opset 17: s = ReduceL2<axes=[-1]>(h) a = Add(s, e12) y = Div(h, a)
"""

_CHANNELS = """
instancenorm spelled: h = Tanh(x) h2 = Mul(h, x) m = ReduceMean(h2, vm1) d = Sub(h2, m) p = Mul(d, d) v =
    ReduceMean(p, vm1) a = Add(v, e5) s = Sqrt(a) y = Div(d, s)
instancenorm op: h = Transpose<perm=[0,2,1]>(x) k = MatMul(h, w) t = Transpose<perm=[0,2,1]>(k) y =
    InstanceNormalization<epsilon=1e-9>(t, ones8, zeros8)
rms spelled: h = Transpose<perm=[0,2,1]>(x) k = MatMul(h, w) p = Pow(k, two) v = ReduceMean(p, vm1) a = Add(v, e12)
    s = Sqrt(a) i = Reciprocal(s) y0 = Mul(k, i) y = MatMul(y0, w)
"""

_SUMS = """
position: range cast mul: sh = Shape<start=0,end=1>(x) n = Squeeze(sh) r = Range(i0, n, i1) f = Cast<to=1>(r) f1 =
    Unsqueeze(f, v1) a = Mul(f1, freq) ANGLES
position: range float: sh = Shape<start=0,end=1>(x) n = Squeeze(sh) nf = Cast<to=1>(n) r = Range(zero, nf, one) f1 =
    Unsqueeze(r, v1) a = Mul(f1, freq) ANGLES
position: constantofshape nonzero: sh = Shape<start=0,end=1>(x) o = ConstantOfShape<value=int64[1] {1}>(sh) nz =
    NonZero(o) t = Transpose<perm=[1,0]>(nz) f = Cast<to=1>(t) a = Mul(f, freq) ANGLES
position: grid anchors: sh = Shape<start=0,end=1>(x) n = Squeeze(sh) r = Range(i0, n, i1) f = Cast<to=1>(r) f1 =
    Add(f, half) g1 = Unsqueeze(f1, v1) h = MatMul(x, w) b = Add(h, g1) y = Mul(b, p16)
cumsum: h = MatMul(x, w) a = Abs(h) c = CumSum(a, i0) y = MatMul(c, w)
cumsum mean: h = MatMul(x, w) a = Abs(h) c = CumSum(a, i0) o = ReduceMax(a, vm1) oz = Mul(o, zero) o1 = Add(oz, one)
    n = CumSum(o1, i0) y = Div(c, n)
sum mean by shape: h = MatMul(x, w) a = Abs(h) s = ReduceSum(a, v0) sh = Shape<start=0,end=1>(x) f = Cast<to=1>(sh)
    y = Div(s, f)
reducemean: h = MatMul(x, w) a = Abs(h) t = ReduceMean(a, v0) y = Add(t, h)
reducemean const rows: h = MatMul(x, w) a = Abs(h) y = ReduceMean(a, v0)
linear attention: h = MatMul(x, w) q = Elu(h) q1 = Add(q, one) k = Transpose<perm=[1,0]>(q1) kv = MatMul(k, h) o =
    MatMul(q1, kv) z = ReduceSum(q1, v0) zt = Transpose<perm=[1,0]>(z) d = MatMul(q1, zt) y = Div(o, d)
linear attention cumsum: h = MatMul(x, w) q = Relu(h) q1 = Add(q, one) kv = Mul(q1, h) s = CumSum(kv, i0) z =
    CumSum(q1, i0) y = Div(s, z)
einsum contracted: h = MatMul(x, w) a = Abs(h) s = Einsum<equation="nd,ne->de">(a, a) y = MatMul(a, s)
gram: h = MatMul(x, w) k = Transpose<perm=[1,0]>(h) s = MatMul(k, h) y = MatMul(h, s)
gram scaled: h = MatMul(x, w) k = Transpose<perm=[1,0]>(h) s = MatMul(k, h) sh = Shape<start=0,end=1>(x) f =
    Cast<to=1>(sh) c = Div(s, f) y = MatMul(h, c)
gemm transA: h = MatMul(x, w) s = Gemm<transA=1>(h, h) y = MatMul(h, s)
scatter add: h = MatMul(x, w) a = Abs(h) z = ReduceSum(a, v0) zz = Mul(z, zero) iz = Cast<to=7>(h) i0x = Mul(iz, i0)
    y0 = ScatterElements<axis=0, reduction="add">(a, i0x, a) y = MatMul(y0, w)
l2 over dynamic: h = MatMul(x, w) s = ReduceL2(h, v0) y = Div(h, s)
l1 over dynamic: h = MatMul(x, w) s = ReduceL1(h, v0) y = Div(h, s)
sumsquare dynamic: h = MatMul(x, w) s = ReduceSumSquare(h, v0) r = Sqrt(s) y = Div(h, r)
l2 dynamic output norm: h = MatMul(x, w) s = ReduceL2(h, v0) l = Log(s) y = Add(h, l)
prod: h = MatMul(x, w) a = Sigmoid(h) b = Add(a, half) s = ReduceProd(b, vm1) y = Mul(h, s)
ReduceLogSumExp over a dynamic dim: h = MatMul(x, w) y = ReduceLogSumExp(h, v0)
logsumexp over a dynamic dim: h = MatMul(x, w) m = ReduceMax(h, v0) d = Sub(h, m) e = Exp(d) s = ReduceSum(e, v0)
    l = Log(s) y = Add(l, m)
softmax denominators: h = MatMul(x, w) e = Exp(h) s = ReduceSum(e, v0) y = Div(e, s)
sum of counts: h = MatMul(x, w) b = Greater(h, zero) f = Cast<to=1>(b) s = ReduceSum(f, v0) y = Div(h, s)
mean of large: h = MatMul(x, w) k = Mul(h, hundred) m = ReduceMean(k, v0) d = Sub(k, m) p = Mul(d, d) v =
    ReduceMean(p, v0) y0 = Sqrt(v) y = Div(d, y0)
cov: h = MatMul(x, w) m = ReduceMean(h, v0) d = Sub(h, m) t = Transpose<perm=[1,0]>(d) c = MatMul(t, d) sh =
    Shape<start=0,end=1>(x) f = Cast<to=1>(sh) n = Sub(f, one) v = Div(c, n) y = MatMul(h, v)
ones matmul: h = MatMul(x, w) a = Abs(h) k = Transpose<perm=[1,0]>(a) sh = Shape<start=0,end=1>(x) n8 =
    Concat<axis=0>(sh, v8) o = ConstantOfShape<value=float[1] {1.0}>(n8) s = MatMul(k, o) y = MatMul(h, s)
conv sum: h = MatMul(x, w) a = Abs(h) t = Transpose<perm=[1,0]>(a) u3 = Unsqueeze(t, v0) s = GlobalAveragePool(u3)
    y0 = Squeeze(s, v0) y = Squeeze(y0, v1)
cumsum exclusive reverse: h = MatMul(x, w) a = Sigmoid(h) c = CumSum<reverse=1, exclusive=1>(a, i0) e0 = Neg(c) e =
    Exp(e0) y = Mul(h, e)
where count: h = MatMul(x, w) b = Greater(h, zero) f = Where(b, one, zero) s = ReduceSum(f, v0) y = Div(h, s)
size: h = MatMul(x, w) s = Size(h) f = Cast<to=1>(s) y = Div(h, f)
sum over all: h = MatMul(x, w) a = Abs(h) s = ReduceSum<keepdims=0>(a) m = Div(a, s) y = Mul(m, ten)
flatten then sum: h = MatMul(x, w) a = Abs(h) fl = Reshape(a, flat) s = ReduceSum(fl, v0) y = Div(a, s)
"""

_POSITIONS = """
einsum outer: f = Cast<to=1>(p) a = Einsum<equation="i,j->ij">(f, freq1) ANGLES
outer reshape: f = Cast<to=1>(p) f1 = Unsqueeze(f, v1) a0 = MatMul(f1, freq) a = Concat<axis=-1>(a0, a0) s = Sin(a)
    c = Cos(a) h = MatMul(x, w) hs = Mul(h, c) hr = Mul(h, s) y = Add(hs, hr)
freq exp: f = Cast<to=1>(p) f1 = Unsqueeze(f, v1) l = Log(freq) e = Exp(l) a = Mul(f1, e) ANGLES
positions mlp: f = Cast<to=1>(p) f1 = Unsqueeze(f, v1) a = MatMul(f1, freq) t = Tanh(a) g = MatMul(t, d4) h =
    MatMul(x, w) y = Add(h, g)
distance exp decay: fa = Unsqueeze(p, v0) fb = Unsqueeze(p, v1) di = Sub(fa, fb) ab = Abs(di) f = Cast<to=1>(ab) n =
    Mul(f, mone) fs = Div(n, hundred) e = Exp(fs) h = MatMul(x, w) y = MatMul(e, h)
relative difference of floats: f = Cast<to=1>(p) fa = Unsqueeze(f, v0) fb = Unsqueeze(f, v1) di = Sub(fa, fb) t =
    Tanh(di) h = MatMul(x, w) y = MatMul(t, h)
equal floats: f = Cast<to=1>(p) fa = Unsqueeze(f, v0) fb = Unsqueeze(f, v1) q = Equal(fa, fb) t = Cast<to=1>(q) h =
    MatMul(x, w) y = MatMul(t, h)
mod: f = Cast<to=1>(p) r = Mod<fmod=1>(f, ten) id = Cast<to=7>(r) e = Gather(table, id) h = MatMul(x, w) y = Add(h,
    e)
floor: f = Cast<to=1>(p) d = Div(f, hundred) r = Floor(d) id = Cast<to=7>(r) e = Gather(table, id) h = MatMul(x, w) y =
    Add(h, e)
pos embed times data: f = Cast<to=1>(p) f1 = Unsqueeze(f, v1) h = MatMul(x, w) hp = Mul(h, f1) y = Sin(hp)
"""

_DISTANCES = """
alibi: h = MatMul(x, w) k = Transpose<perm=[1,0]>(h) s = MatMul(h, k) f = Cast<to=1>(p) fa = Unsqueeze(f, v0) fb =
    Unsqueeze(f, v1) di = Sub(fa, fb) ab = Abs(di) ng = Neg(ab) b = Mul(ng, slopes) s3 = Unsqueeze(s, v0) t =
    Add(s3, b) m = Softmax(t) y = MatMul(m, h)
alibi int: h = MatMul(x, w) k = Transpose<perm=[1,0]>(h) s = MatMul(h, k) fa = Unsqueeze(p, v0) fb = Unsqueeze(p,
    v1) di = Sub(fa, fb) f = Cast<to=1>(di) b = Mul(f, slopes) s3 = Unsqueeze(s, v0) t = Add(s3, b) m = Softmax(t) y
    = MatMul(m, h)
t5 buckets: fa = Unsqueeze(p, v0) fb = Unsqueeze(p, v1) di = Sub(fa, fb) ab = Abs(di) f = Cast<to=1>(ab) fd = Div(f,
    p16) fm = Max(fd, one) l = Log(fm) ls = Mul(l, p16) li = Cast<to=7>(ls) la = Add(li, i16) mn = Min(la, i31) sm =
    Less(ab, i16) bk = Where(sm, ab, mn) e = Gather(bias32, bk) e2 = Squeeze(e, vm1) h = MatMul(x, w) k =
    Transpose<perm=[1,0]>(h) s = MatMul(h, k) t = Add(s, e2) m = Softmax(t) y = MatMul(m, h)
positions normed: f = Cast<to=1>(p) sh = Shape<start=0,end=1>(x) n = Cast<to=1>(sh) fr = Div(f, n) f1 =
    Unsqueeze(fr, v1) fk = Mul(f1, hundred) a = Mul(fk, freq) ANGLES
log distances: fa = Unsqueeze(p, v0) fb = Unsqueeze(p, v1) di = Sub(fa, fb) ab = Abs(di) f = Cast<to=1>(ab) f1 =
    Add(f, one) l = Log(f1) h = MatMul(x, w) k = Transpose<perm=[1,0]>(h) s = MatMul(h, k) t = Sub(s, l) m =
    Softmax(t) y = MatMul(m, h)
less floats lengths: f = Cast<to=1>(p) fa = Unsqueeze(f, v0) sh = Shape<start=0,end=1>(x) n = Squeeze(sh) r =
    Range(i0, n, i1) rf = Cast<to=1>(r) rb = Unsqueeze(rf, v1) q = Less(rb, fa) t = Cast<to=1>(q) h = MatMul(x, w)
    t1 = ReduceSum(t, v1) y0 = Mul(h, t1) y = MatMul(y0, w)
"""

_PAIRS = """
alibi range max: h = MatMul(x, w) k = Transpose<perm=[1,0]>(h) s = MatMul(h, k) sh = Shape<start=0,end=1>(x) n =
    Squeeze(sh) r = Range(i0, n, i1) f = Cast<to=1>(r) b = Mul(f, slopes) s3 = Unsqueeze(s, v0) t = Add(s3, b) m =
    Softmax(t) y = MatMul(m, h)
shape sqrt scale: h = MatMul(x, w) k = Transpose<perm=[1,0]>(h) s = MatMul(h, k) sh = Shape<start=0,end=1>(x) f =
    Cast<to=1>(sh) r = Sqrt(f) t = Div(s, r) m = Softmax(t) y = MatMul(m, h)
shape log scale: h = MatMul(x, w) k = Transpose<perm=[1,0]>(h) s = MatMul(h, k) sh = Shape<start=0,end=1>(x) f =
    Cast<to=1>(sh) r = Log(f) t = Mul(s, r) m = Softmax(t) y = MatMul(m, h)
softmax columns then sum: h = MatMul(x, w) k = Transpose<perm=[1,0]>(h) s = MatMul(h, k) m = Softmax<axis=-1>(s) c =
    ReduceSum(m, v0) c1 = Transpose<perm=[1,0]>(c) y = Mul(h, c1)
segsum: h = MatMul(x, w) dt = Sigmoid(h) a = Mul(dt, mhalf) c = CumSum(a, i0) ca = Unsqueeze(c, v0) cb =
    Unsqueeze(c, v1) d = Sub(cb, ca) mn = Min(d, zero) e = Exp(mn) h1 = Unsqueeze(h, v0) hh = Mul(e, h1) y =
    ReduceSum<keepdims=0>(hh, v1)
matmul lower tri ones: h = MatMul(x, w) a = Abs(h) sh = Shape<start=0,end=1>(x) nn = Concat<axis=0>(sh, sh) o =
    ConstantOfShape<value=float[1] {1.0}>(nn) l = Trilu<upper=0>(o) c = MatMul(l, a) y = MatMul(c, w)
"""

_LENGTHS = """
cumsum mask ids float: m = Cast<to=1>(k) cs = CumSum(m, i0) a0 = Unsqueeze(cs, v1) a = Mul(a0, freq) ANGLES
cumsum int ids: cs = CumSum(k, i0) ids = Sub(cs, i1) e = Gather(table, ids) h = MatMul(x, w) y = Add(h, e)
cumsum float mask ids to gather: m = Cast<to=1>(k) cs = CumSum(m, i0) mm = Mul(cs, m) id = Cast<to=7>(mm) ids =
    Sub(id, i1) e = Gather(table, ids) h = MatMul(x, w) y = Add(h, e)
masked mean: h = MatMul(x, w) m = Cast<to=1>(k) m1 = Unsqueeze(m, v1) hm = Mul(h, m1) s = ReduceSum(hm, v0) n0 =
    ReduceSum(m1, v0) n = Clip(n0, one) y = Div(s, n)
masked mean, expanded: h = MatMul(x, w) m = Cast<to=1>(k) m1 = Unsqueeze(m, v1) sh = Shape(h) m2 = Expand(m1, sh) hm =
    Mul(h, m2) s = ReduceSum(hm, v0) n0 = ReduceSum(m2, v0) n = Clip(n0, e8) y = Div(s, n)
"""

_MASKS = """
n1e9 mul: f = Cast<to=1>(k) n = Sub(one, f) b = Mul(n, n1e9) t = Add(s, b)
n1e9 where: c = Cast<to=9>(k) t = Where(c, s, n1e9)
n65504 mul: f = Cast<to=1>(k) n = Sub(one, f) b = Mul(n, n65504) t = Add(s, b)
n65504 where: c = Cast<to=9>(k) t = Where(c, s, n65504)
n65504 mul twice scaled: f = Cast<to=1>(k) n = Sub(one, f) b = Mul(n, n65504) t0 = Add(s, b) t = Mul(t0, half)
fmin mul: f = Cast<to=1>(k) n = Sub(one, f) b = Mul(n, fmin) t = Add(s, b)
fmin where: c = Cast<to=9>(k) t = Where(c, s, fmin)
n1e4 mul: f = Cast<to=1>(k) n = Sub(one, f) b = Mul(n, n1e4) t = Add(s, b)
n1e4 where: c = Cast<to=9>(k) t = Where(c, s, n1e4)
sub mul: f = Cast<to=1>(k) n = Sub(f, one) b = Mul(n, k10) t = Add(s, b)
mul exp normalizer: f = Cast<to=1>(k) e0 = Exp(s) e = Mul(e0, f) z = ReduceSum(e, vm1) z1 = Add(z, e12) t0 = Div(e,
    z1) t1 = Add(t0, e12) t = Log(t1)
min: f = Cast<to=1>(k) n = Sub(one, f) b0 = Mul(n, fmin) b = Max(b0, n1e9) t = Add(s, b)
"""

_IDS = """
inputs ids float: f = Cast<to=1>(x) id = Cast<to=7>(f) e = Gather(table, id) y = ReduceMean<keepdims=0>(e, v1)
hash: id = Cast<to=7>(x) j = Mod(id, i3000) e = Gather(table, j) y = ReduceMean<keepdims=0>(e, v1)
"""

_ROW = re.compile(r"^(\S[^:]*(?:: [^:=]*)?): (.*(?:\n    .*)*)$", re.M)
_RANDOM = np.random.default_rng(3).standard_normal
_NUMBERS = {
    "low": 1e-10, "e5": 1e-5, "e7": 1e-7, "e8": 1e-8, "e12": 1e-12, "zero": 0, "half": 0.5, "one": 1, "two": 2,
    "mhalf": -0.5, "mone": -1, "mtwo": -2, "ten": 10, "p16": 16, "hundred": 100, "big": 1000, "k10": 1e4, "hi": 1e4,
    "n1e4": -1e4, "n65504": -65504, "n1e9": -1e9, "fmin": np.finfo(np.float32).min, "low1": [1e-10], "low11": [[1e-10]],
    "low8": [1e-10] * 8, "ones8": [1] * 8, "zeros8": [0] * 8, "freq1": [1, 0.1, 0.01, 0.001],
    "freq": [[1, 0.1, 0.01, 0.001]], "d4": np.full((4, 8), 0.25), "slopes": 0.5 ** np.arange(1, 9).reshape(8, 1, 1),
    "table": _RANDOM((5000, 8)), "bias32": _RANDOM((32, 1)),
}  # fmt: skip
_INTEGERS = {
    "i0": 0, "i1": 1, "i16": 16, "i31": 31, "i3000": 3000, "v0": [0], "v1": [1], "v8": [8], "vm1": [-1], "flat": [-1],
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Group:
    """typical: what ranges are measured with. others: what the graph allows besides. opset: of the model."""

    inputs: str
    rows: str
    typical: Callable[[], Feeds]
    others: Callable[[], list[Feeds]]
    before: str = ""
    behind: str = ""
    opset: int = 20

    def bodies(self) -> Iterator[tuple[str, str]]:
        """Name and body of each row."""
        for name, body in _ROW.findall(self.rows):
            yield name, self.before + " ".join(body.split()).replace("ANGLES", _ANGLES) + self.behind

    def model(self) -> tuple[ir.Model, list[str]]:
        """The model, and the row of each of its outputs."""
        names, parts = [], []
        for k, (name, body) in enumerate(self.bodies()):
            parts.append(self._row(k, body))
            names.append(name)
        graph = helper.make_graph(
            [n for part in parts for n in part.node],
            "g",
            parts[0].input,
            [helper.make_tensor_value_info(part.output[0].name, TensorProto.FLOAT, None) for part in parts],
            [t for part in parts for t in part.initializer],
        )
        opset = helper.make_opsetid("", self.opset)
        return ir.from_proto(helper.make_model(graph, opset_imports=[opset], ir_version=8)), names

    def _row(self, number: int, body: str) -> onnx.GraphProto:
        text = f'<ir_version: 8, opset_import: ["" : {self.opset}]> g ({self.inputs}) => (float[] y) {{ {body} }}'
        part = onnx.parser.parse_model(text).graph
        weights = {
            "w": np.random.default_rng(number + 10).standard_normal((8, 8)),
            "u": np.full((8, 8), 0.5 + number / 1000),
        }
        read = {name for node in part.node for name in node.input}
        for table, dtype in ((_NUMBERS | weights, np.float32), (_INTEGERS, np.int64)):
            part.initializer.extend(
                numpy_helper.from_array(np.asarray(v, dtype), n) for n, v in table.items() if n in read
            )
        for node in part.node:
            node.name = node.output[0]
        return onnx.compose.add_prefix_graph(part, f"r{number}_", rename_inputs=False)


def _x(rows: int = 4, scale: float = 1.0, offset: float = 0.0) -> Feeds:
    drawn = np.random.default_rng(0).standard_normal((rows, 8)) * scale + offset
    return {"x": drawn.astype(np.float32)}


def _quiet_and_loud() -> list[Feeds]:
    return [_x(scale=0), _x(scale=1e-4), _x(scale=1e-3), _x(scale=30), _x(scale=0, offset=1), _x(300)]


def _positions() -> list[Feeds]:
    near = [{**_x(), "p": np.arange(start, start + 4)} for start in (3000, 30001, 100000)]
    return [*near, {**_x(3000), "p": np.arange(3000)}, {**_x(), "p": np.array([4099, 8001, 0, 2049])}]


def _distances() -> list[Feeds]:
    return [{**_x(1500, 0.3), "p": np.arange(1500)}, {**_x(4, 0.3), "p": np.array([9000, 9001, 3, 9003])}]


def _lengths() -> list[Feeds]:
    ones = [{**_x(rows, offset=3), "k": np.ones(rows, np.int64)} for rows in (4999, 100000)]
    return [ones[0], {**_x(), "k": np.zeros(4, np.int64)}]


def _masks() -> list[Feeds]:
    masks = ([1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 1])
    return [{**_x(4, scale), "k": np.array(mask)} for mask in masks for scale in (1, 10)]


def _channels(rows: int, length: int, scale: float = 1.0) -> Feeds:
    return {"x": (scale * np.random.default_rng(0).standard_normal((rows, 8, length))).astype(np.float32)}


def _ids(first: int) -> Feeds:
    return {"x": np.arange(first, first + 32).reshape(4, 8).astype(np.float32)}


_X, _XP, _XK = "float[N, 8] x", "float[N, 8] x, int64[N] p", "float[N, 8] x, int64[N] k"
GROUPS = {
    "guards": Group(_X, _GUARDS, _x, _quiet_and_loud, _POWERS),
    "opset 11": Group(_X, _OPSET_11, _x, _quiet_and_loud, _POWERS, opset=11),
    "opset 13": Group(_X, _OPSET_13, _x, _quiet_and_loud, _POWERS, opset=13),
    "opset 17": Group(_X, _OPSET_17, _x, _quiet_and_loud, _POWERS, opset=17),
    "channels": Group(
        "float[N, 8, T] x", _CHANNELS, lambda: _channels(2, 16),
        lambda: [_channels(2, 16, 0), _channels(2, 16, 1e-3), _channels(2, 16, 30), _channels(1, 3000)],
    ),
    "orders": Group(_X, _ORDERS, _x, _quiet_and_loud),
    "sums": Group(_X, _SUMS, _x, lambda: [_x(4999), _x(60000, offset=1), _x(60000, 0, 1)]),
    "pairs": Group(_X, _PAIRS, _x, lambda: [_x(1500, 0.3), _x(1500, 0, 1)]),
    "positions": Group(_XP, _POSITIONS, lambda: {**_x(), "p": np.arange(4)}, _positions),
    "distances": Group(_XP, _DISTANCES, lambda: {**_x(), "p": np.arange(4)}, _distances),
    "lengths": Group(_XK, _LENGTHS, lambda: {**_x(), "k": np.ones(4, np.int64)}, _lengths),
    "masks": Group(_XK, _MASKS, lambda: {**_x(), "k": np.array([1, 1, 1, 0])}, _masks, _SCORES, _MIXED),
    "ids": Group(_X, _IDS, lambda: _ids(0), lambda: [_ids(2049), _ids(4001)]),
}  # fmt: skip
