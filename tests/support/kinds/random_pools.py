"""Random pools of every dtype and attribute in one model, and what they should give."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from onnxopt.program.pool import DTYPES, Pool
from onnxopt.runtime import sessions
from tests.support.graphs import graph
from tests.support.kinds import pool_models

_COUNT = 80
_CHANNELS = (1, 3, 16, 37, 40, 64)
_DRAWS = 4  # of shapes, all in one session


def pools() -> list[Pool]:
    """Always the same ones, no two alike."""
    rng = np.random.default_rng(15)
    drawn: dict[Pool, None] = {}
    while len(drawn) < _COUNT:
        operation = str(rng.choice(list(DTYPES)))
        dtype = str(rng.choice(DTYPES[operation]))
        most = 14 if rng.random() < 0.2 else 6
        kernel, strides = (tuple(map(int, rng.integers(1, top, 2))) for top in (most, 4))
        dilations = tuple(map(int, rng.integers(1, 4, 2))) if rng.random() < 0.3 else (1, 1)
        pads = tuple(int(rng.integers(0, kernel[k % 2])) for k in range(4)) if rng.random() < 0.7 else (0, 0, 0, 0)
        auto_pad = str(rng.choice(["NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
        pool = pool_models.of(
            operation, dtype, kernel, strides=strides, dilations=tuple(d if k > 1 else 1 for d, k in
            zip(dilations, kernel, strict=True)), pads=pads if auto_pad == "NOTSET" else (0, 0, 0, 0),
            auto_pad=auto_pad, ceil_mode=bool(rng.integers(2)),
            count_include_pad=operation == "average" and bool(rng.integers(2)),
        )  # fmt: skip
        if not pool.reason():
            drawn[pool] = None
    return list(drawn)


def model(chosen: Sequence[Pool]) -> ir.Model:
    """Pool k reads xk and gives yk, of float32 where numpy does not have its dtype."""
    inputs, outputs, body = [], [], []
    for k, pool in enumerate(chosen):
        dtype = pool_models.TEXT["float32" if pool.dtype == "bfloat16" else pool.dtype]
        inputs.append(f"{dtype}[N{k}, H{k}, W{k}, C{k}] x{k}")
        outputs.append(f"{dtype}[] y{k}")
        x, y = f"x{k}", f"y{k}"
        if pool.dtype == "bfloat16":
            body.append(f"in{k} = Cast<to = 16>(x{k})")
            x, y = f"in{k}", f"out{k}"
        body.append(pool_models.nodes(pool, x, y, str(k)))
        if pool.dtype == "bfloat16":
            body.append(f"y{k} = Cast<to = 1>(out{k})")
    return graph(", ".join(inputs), ", ".join(outputs), "  ".join(body), opset=22)


def feeds(draw: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(draw)
    drawn = {}
    for k, pool in enumerate(pools()):
        covered = [d * (side - 1) + 1 for d, side in zip(pool.window.dilations, pool.window.kernel, strict=True)]
        dims = (int(rng.integers(1, 4)), *(int(c + rng.integers(0, 30)) for c in covered), int(rng.choice(_CHANNELS)))
        if pool.dtype in ("int8", "uint8"):
            info = np.iinfo(pool.dtype)
            drawn[f"x{k}"] = rng.integers(info.min, info.max, dims, pool.dtype, endpoint=True)
        else:
            x = rng.standard_normal(dims).astype(pool_models.numpy_dtype(pool.dtype))
            drawn[f"x{k}"] = x.astype(np.float32) if pool.dtype == "bfloat16" else x
    return drawn


def disagreeing(session: ort.InferenceSession) -> list[tuple[tuple[int, ...], Pool]]:
    """The dims and the pools whose results are not ONNX Runtime's, of several draws in one session."""
    wrong: list[tuple[tuple[int, ...], Pool]] = []
    for draw in range(_DRAWS):
        given = feeds(draw)
        found = sessions.run(session, given)
        for k, pool in enumerate(pools()):
            expected = pool_models.expected(pool, given[f"x{k}"])
            y = found[f"y{k}"].astype(np.float32)
            step = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(pool.dtype, 2.0**-21)
            limit = 0.0 if pool.operation == "max" else step
            if y.shape != expected.shape or not np.allclose(y, expected.astype(np.float32), rtol=limit, atol=limit):
                wrong.append((given[f"x{k}"].shape, pool))
    return wrong
