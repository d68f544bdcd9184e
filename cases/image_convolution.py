"""Convolutions of images as the layout pass leaves them, fused, beside their results in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from cases.depthwise import worst
from cases.models import OPSET, Fused, fused_model, numpy_dtype, parse_nodes
from cases.table import INF, NAN, Row, Table
from onnxopt.program.dtypes import to_ir

# What stands in front, as onnx text over names: `t` is the image, `m` and `d` have one element a channel.
FRONT = {
    "cast": "x = Cast<to = 10>(t)",
    "normalize": "c32 = Cast<to = 1>(t)  s = Mul(c32, quarter)  n = Sub(s, m)  q = Div(n, d)  x = Cast<to = 10>(q)",
    "scaled": "x = Mul(t, c_of_x)",
    "twice": "f1 = Abs(t)  f2 = Add(f1, t)  f3 = Add(f2, quarter)  x = Cast<to = 10>(f3)",
}
# What stands behind, as onnx text over names: `v` is the convolution's result, `c` has one element a filter.
BEHIND = {
    "": "",
    "relu": "y = Relu(v)",
    "silu": "s1 = Sigmoid(v)  y = Mul(v, s1)",
    "gelu_scale": "h = Gelu(v)  y = Mul(h, c)",
    "prelu": "y = PRelu(v, c)",
    "hardswish": "a1 = Add(v, three)  a2 = Clip(a1, zero, six)  a3 = Mul(v, a2)  y = Div(a3, six)",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One convolution of x [N, channels, H, W]. appended: channels of zeros that a Pad adds, as the layout pass does
    for three channels. planes: whether x is NCHW, else NHWC. auto_pad: where not NOTSET, pads are left out. known:
    whether the model states N, H and W. front: what is in front of it, of FRONT, and image: the dtype that this reads.
    turned_first: whether an image in NCHW is turned in front of that, else behind it."""

    x: tuple[int, int, int, int]
    filters: int
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    auto_pad: str = "NOTSET"
    dtype: str = "float16"
    bias: bool = True
    behind: str = ""
    planes: bool = True
    appended: int = 0
    known: bool = True
    front: str = ""
    image: str = ""
    turned_first: bool = False

    @property
    def channels(self) -> int:
        return self.x[1]

    @property
    def stored(self) -> str:
        """The dtype of the result."""
        return self.dtype

    def sizes(self) -> tuple[int, ...]:
        """What a call states: batch, height and width."""
        return (self.x[0], *self.x[2:])

    def constants(self) -> dict[str, np.ndarray]:
        """The initializers in float64, rounded to the case's dtype. w: [K, R, S, C]."""
        rng = np.random.default_rng([self.channels, *self.kernel, self.filters])
        taps = self.kernel[0] * self.kernel[1] * self.channels
        weight = rng.standard_normal((self.filters, *self.kernel, self.channels)) / np.sqrt(taps)
        made = {"w": np.pad(weight, [(0, 0)] * 3 + [(0, self.appended)])}
        made |= {name: rng.standard_normal(self.filters) for name in ("bias", "c")}
        made |= {"zero": np.array(0.0), "six": np.array(6.0), "three": np.array(3.0)}
        made = {k: v.astype(numpy_dtype(self.dtype)).astype(np.float64) for k, v in made.items()}
        return made | {k: v.astype(np.float64) for k, v in self.of_front().items()}

    def of_front(self) -> dict[str, np.ndarray]:
        """The constants of what stands in front, in their dtypes."""
        dims = (self.channels, 1, 1) if self.planes and not self.turned_first else (self.channels,)
        rng = np.random.default_rng(self.channels)
        made = {name: rng.uniform(0.5, 2, dims).astype(np.float32) for name in ("m", "d")}
        made |= {"quarter": np.array(0.25, np.float32), "c_of_x": rng.uniform(0.5, 2, dims)}
        return made | {"c_of_x": made["c_of_x"].astype(numpy_dtype(self.dtype))} if self.front else {}

    def given_dims(self) -> tuple[int, int, int, int]:
        """The shape of the model's input."""
        n, c, h, w = self.x
        return self.x if self.planes else (n, h, w, c)

    def model(self, dtype: str | None = None) -> onnx.ModelProto:
        """The model in its own dtype, or in another one with the same constants."""
        element, stored = to_ir(dtype or self.dtype).value, numpy_dtype(dtype or self.dtype)
        shape: list[Any] = list(self.given_dims())
        if not self.known:
            shape = ["N", self.channels, "H", "W"] if self.planes else ["N", "H", "W", self.channels]
        nodes = [*self._convolution("v" if self.behind else "y"), *parse_nodes(BEHIND[self.behind])]
        used = {name for node in nodes for name in node.input}
        kept = {k: a.astype(stored) for k, a in self.constants().items()} | self.of_front()
        constants = [numpy_helper.from_array(a, k) for k, a in kept.items() if k in used]
        if self.appended:
            constants.append(numpy_helper.from_array(np.array([0] * 7 + [self.appended], np.int64), "amounts"))
        given = to_ir(self.image).value if self.image else element
        infos = [
            helper.make_tensor_value_info(name, of, dims)
            for name, of, dims in (("t", given, shape), ("y", element, None))
        ]
        graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def _convolution(self, y: str) -> list[onnx.NodeProto]:
        make, last = helper.make_node, "t"
        nodes = []
        if self.front and not self.turned_first:
            nodes += self._front(last)
            last = "x"
        if self.planes:
            nodes.append(make("Transpose", [last], ["t_nhwc"], name="to_nhwc", perm=[0, 2, 3, 1]))
            last = "t_nhwc"
        if self.front and self.turned_first:
            nodes += self._front(last)
            last = "x"
        if self.appended:
            nodes.append(make("Pad", [last, "amounts"], ["padded"], name="append"))
            last = "padded"
        window: dict[str, Any] = {"strides": self.strides, "kernel_shape": self.kernel}
        window |= {"pads": self.pads} if self.auto_pad == "NOTSET" else {"auto_pad": self.auto_pad}
        return [
            *nodes,
            make("Transpose", ["w"], ["w_kcrs"], name="turn_w", perm=[0, 3, 1, 2]),
            make("Transpose", [last], ["x_nchw"], name="to_nchw", perm=[0, 3, 1, 2]),
            make("Conv", ["x_nchw", "w_kcrs", *(["bias"] if self.bias else [])], ["y_nchw"], name="conv", **window),
            make("Transpose", ["y_nchw"], [y], name="back", perm=[0, 2, 3, 1]),
        ]

    def _front(self, image: str) -> list[onnx.NodeProto]:
        nodes = list(onnx.parser.parse_graph(f"g () => () {{ {FRONT[self.front]} }}").node)
        for node in nodes:
            node.input[:] = [image if name == "t" else name for name in node.input]
            if node.op_type == "Cast" and node.output[0] == "x":
                node.attribute[0].i = to_ir(self.dtype).value
        return nodes

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        if self.image == "uint8":
            return {"t": rng.integers(0, 256, self.given_dims(), np.uint8)}
        image = rng.standard_normal(self.given_dims()).astype(numpy_dtype(self.image or self.dtype))
        if self.front == "cast":
            image.flat[-1] = 1e6  # infinite in float16
        return {"t": image}

    def convolved(self, image: np.ndarray) -> np.ndarray:
        """What is convolved, in float64: the image behind what stands in front, rounded."""
        x = image.astype(np.float64)
        of = {k: a.astype(np.float64) for k, a in self.of_front().items()}
        if self.planes and self.turned_first:
            of = {k: a.reshape(-1, 1, 1) if a.ndim else a for k, a in of.items()}
        if self.front == "normalize":
            x = (x * of["quarter"] - of["m"]) / of["d"]
        elif self.front == "scaled":
            x = x * of["c_of_x"]
        elif self.front == "twice":
            x = np.abs(x) + x + of["quarter"]
        with np.errstate(over="ignore"):
            return x.astype(numpy_dtype(self.dtype)).astype(np.float64)

    def expected(self, feeds: dict[str, np.ndarray]) -> np.ndarray:
        """The result in float64."""
        model = dataclasses.replace(self, front="", image="").model("float64")
        (y,) = ReferenceEvaluator(model).run(None, {"t": self.convolved(feeds["t"])})
        return np.asarray(y)

    def limit(self) -> tuple[float, float]:
        """Relative and absolute error that a result may have."""
        if self.dtype == "float32":
            products = self.channels * self.kernel[0] * self.kernel[1]
            limit = 4e-6 * max(1.0, (products / 16) ** 0.5)  # of an entry point without TF32
            return limit, limit
        eps = float(ml_dtypes.finfo(numpy_dtype(self.dtype)).eps)
        return 0.75 * eps, 0.5 * eps


# Convolutions of images of other dtypes, or with work in front of them.
IN_FRONT = (
    Case((2, 3, 18, 21), 32, (3, 3), (2, 2), (1, 1, 1, 1), behind="silu", appended=1, front="cast", image="float32"),
    Case((1, 3, 30, 37), 16, (7, 7), (2, 2), (3, 3, 3, 3), appended=1, front="normalize", image="uint8"),
    Case((1, 3, 15, 18), 24, (3, 3), (2, 2), (1, 1, 1, 1), appended=1, front="normalize", image="uint8",
         turned_first=True),
    Case((2, 3, 9, 17), 8, (4, 4), (4, 4), appended=1, planes=False, front="normalize", image="uint8"),
    Case((1, 4, 9, 17), 40, (3, 3), (1, 1), (1, 1, 1, 1), planes=False, front="normalize", image="float32"),
    Case((1, 1, 12, 40), 8, (3, 3), (2, 2), (1, 1, 1, 1), front="cast", image="uint8"),
    Case((1, 2, 9, 11), 8, (3, 3), (1, 1), auto_pad="SAME_UPPER", known=False, front="scaled"),
    Case((2, 3, 9, 17), 8, (3, 3), (2, 2), (1, 1, 1, 1), front="twice", image="float32"),
)  # fmt: skip


def random_case(seed: int, dtype: str) -> Case:
    """Any window, size and neighbours that have a result."""
    rng = np.random.default_rng([seed, len(dtype)])

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    kernel = (int(rng.integers(1, 12)), int(rng.integers(2, 12))) if rng.random() < 0.4 else (pick(3, 3, 4, 5, 7),) * 2
    strides = pick((1, 1), (2, 2), (2, 2), (3, 3), (4, 4), (1, 2), (2, 1), (3, 4))
    auto_pad = pick("NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    pads = tuple(int(rng.integers(0, k)) for k in (*kernel, *kernel)) if auto_pad == "NOTSET" else (0, 0, 0, 0)
    room = [1 if auto_pad.startswith("SAME") else kernel[k] - pads[k] - pads[2 + k] for k in range(2)]
    sizes = [max(1, room[k]) + int(rng.integers(0, 60)) for k in range(2)]
    channels = int(rng.integers(1, 5))
    return Case(
        (int(rng.integers(1, 4)), channels, *sizes), pick(8, 16, 24, 32, 40, 48, 64, 72, 96, 128), kernel, strides,
        pads, auto_pad, dtype, bool(rng.random() < 0.7), pick(*BEHIND), bool(rng.random() < 0.6),
        int(rng.integers(0, 5 - channels)), bool(rng.random() < 0.6),
    )  # fmt: skip


def fused(case: Case) -> Fused:
    """The case's model, fused."""
    return fused_model(case.model())


STEM = Case((1, 3, 30, 37), 64, (7, 7), (2, 2), (3, 3, 3, 3), behind="relu", appended=1)
_TF32 = 500.0  # times the limit of float32: two operands with 11 bits
_BYTES = 32.0  # times the limit of float32, whose results are of about 1: elements are up to 255 here


def error(case: Case, symbol: str, found: np.ndarray, expected: np.ndarray) -> float:
    """The largest error as a multiple of the entry point's limit."""
    allowed = _TF32 if case.dtype == "float32" and not symbol.endswith("x") else 1.0
    allowed *= _BYTES if case.dtype == "float32" and case.image == "uint8" else 1.0
    return worst(case, found, expected) / allowed


def _windows(dtype: str) -> Row:
    """Every other case of bfloat16, whose products and conversions alone are others."""
    cases = (
        STEM,
        Case((2, 3, 18, 21), 32, (3, 3), (2, 2), (1, 1, 1, 1), behind="silu", appended=1),
        Case((1, 3, 16, 36), 96, (4, 4), (4, 4), appended=1),
        Case((2, 4, 9, 17), 40, (3, 3), (1, 1), (1, 1, 1, 1), bias=False, planes=False),  # pixels of 8 bytes
        Case((1, 1, 12, 40), 8, (3, 3), (2, 2), (1, 1, 1, 1), behind="gelu_scale"),
        Case((1, 2, 15, 20), 24, (5, 5), (3, 3), (2, 1, 0, 2), behind="hardswish", planes=False),
        Case((1, 4, 23, 25), 72, (11, 11), (4, 4), (2, 2, 2, 2), behind="prelu"),
        Case((1, 3, 7, 9), 16, (1, 2), (1, 2), auto_pad="SAME_UPPER", known=False),
        Case((1, 1, 8, 11), 48, (2, 9), (2, 1), auto_pad="SAME_LOWER", appended=2),
        Case((1, 2, 2, 2), 8, (5, 5), (1, 1), (2, 3, 3, 2)),  # an image smaller than the kernel
        Case((1, 3, 0, 0), 8, (3, 3), (1, 1), (2, 2, 2, 2), behind="relu"),  # nothing but padding
    )
    chosen = cases[::2] if dtype == "bfloat16" else cases
    return Row(f"windows {dtype}", tuple(dataclasses.replace(case, dtype=dtype) for case in chosen))


def _infinities(dtype: str) -> Row:
    """0 * infinity is NaN: a tile of products with one is computed without them, others stay."""
    case = Case((2, 3, 34, 70), 16, (3, 3), (2, 2), (1, 1, 1, 1), behind="relu", appended=1, dtype=dtype)
    changed = (("t", (0, 1, 7, 5), INF), ("t", (0, 2, 33, 69), -INF), ("t", (1, 0, 0, 32), NAN))
    return Row(f"infinities {dtype}", (case,), changed=changed)


_TILES = (
    "p2w4a16f64", "p4w4a16f64", "p2w8a16f64", "p1w8a16f64", "p1w4a16f64", "p2w4a32f64", "p2w8a32f64", "p2w4a8f64",
)  # fmt: skip
ROWS = (
    _windows("float16"),
    _windows("bfloat16"),
    _windows("float32"),
    Row(  # what pads the image is zero after the prologue, which would compute something else of it
        "images of other dtypes",
        (*IN_FRONT, *(dataclasses.replace(case, dtype="bfloat16") for case in IN_FRONT[:3])),
    ),
    Row(
        "images of bytes in float32",
        tuple(dataclasses.replace(c, dtype="float32", appended=0) for c in IN_FRONT if c.image == "uint8"),
    ),
    Row(
        "every tile",
        (
            STEM,
            Case((2, 4, 20, 37), 40, (3, 3), (1, 1), (1, 1, 1, 1), behind="silu", planes=False),
            Case((1, 3, 41, 30), 24, (5, 4), (1, 3), (1, 1, 1, 1)),
        ),
        _TILES,
        every=True,
    ),
    Row(
        "any address",
        tuple(Case((1, 4, 9, 18), 16, (3, 3), (2, 2), behind="silu", planes=planes) for planes in (True, False)),
        aligned=2,
    ),
    _infinities("float16"),
    _infinities("bfloat16"),
    _infinities("float32"),
)
_ANY = Case((1, 3, 64, 64), 64, (7, 7), (2, 2), (3, 3, 3, 3), behind="silu", appended=1, known=False)
_DAMAGED = {
    "image_convolution": Case(
        (2, 3, 9, 10), 16, (3, 3), (2, 2), (1, 1, 1, 1), behind="prelu", appended=1, known=False
    ),
    "image_of_pixels": Case(
        (1, 2, 8, 11), 24, (2, 5), (1, 3), auto_pad="SAME_LOWER", dtype="bfloat16", behind="silu", planes=False
    ),
    "image_of_bytes": Case(
        (1, 3, 9, 7), 8, (3, 3), (2, 2), (1, 1, 1, 1), appended=1, front="normalize", image="uint8", known=False
    ),
}  # fmt: skip
ROWS += (
    *(
        Row(f"random {dtype} {part}", tuple(random_case(seed, dtype) for seed in range(part, 30, 3)), gpu=True)
        for dtype in ("float16", "bfloat16", "float32")
        for part in range(3)
    ),
    Row("prologues bfloat16", tuple(dataclasses.replace(case, dtype="bfloat16") for case in IN_FRONT), gpu=True),
    Row(
        "one model",
        tuple(dataclasses.replace(_ANY, x=x) for x in ((1, 3, 64, 64), (3, 3, 1, 1), (2, 3, 130, 75), (4, 3, 9, 500))),
        gpu=True,
    ),
)
TABLE = Table("image_convolution", ROWS, fused, error, damaged={name: (case,) for name, case in _DAMAGED.items()})
