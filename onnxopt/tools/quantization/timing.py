"""What is known of the times of products on one GPU: its figures in the catalogue, and what `tune` measured on it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnxopt.errors import UsageError
from onnxopt.option_fields import not_one_of
from onnxopt.paths import StrPath
from onnxopt.runtime.gpus import Gpu, catalogue, find_gpu

_PRODUCT = re.compile(r"(?P<dtype>\w+)( to \w+)? m(?P<m>\d+) n(?P<n>\d+) k(?P<k>\d+)(?! batch)\b")
_Key = tuple[str, int, int, int]  # dtype of the operands, rows, columns, depth


@dataclasses.dataclass(frozen=True)
class Timing:
    """measured: microseconds of products on this GPU, the fastest of each size."""

    gpu: Gpu
    measured: Mapping[_Key, float] = dataclasses.field(default_factory=dict)


def timing(gpu: str | None, measured: Sequence[StrPath]) -> Timing | None:
    """What is known of times on the GPU with this key of the catalogue, or on that of the files of `tune`.

    None where neither is given. UsageError for a GPU that the catalogue lacks, and for files that `tune` did not write,
    or wrote on other GPUs.
    """
    if gpu is not None and gpu not in catalogue():
        raise UsageError(f"gpu {not_one_of(gpu, sorted(catalogue()))}")
    entries = [entry for path in measured for entry in _entries(Path(path))]
    chosen = None if gpu is None else catalogue()[gpu]
    names = sorted({name for name, _, _ in entries})
    if chosen is None and names:
        gpus = [find_gpu(name) for name in names]
        if len(names) > 1 or gpus[0] is None:
            raise UsageError(f"measured on {', '.join(names)}: say with gpu for which GPU of the catalogue to place")
        chosen = gpus[0]
    if chosen is None:
        return None
    times: dict[_Key, float] = {}
    for name, key, microseconds in entries:
        if name in chosen.driver_names:
            times[key] = min(microseconds, times.get(key, microseconds))
    if measured and not times:
        raise UsageError(f"{', '.join(map(str, measured))}: no product was measured on {chosen.key}")
    return Timing(chosen, times)


def _entries(path: Path) -> list[tuple[str, _Key, float]]:
    """The GPU, the product and the microseconds of every entry of a file of measured products."""
    entries = []
    try:
        for entry in json.loads(path.read_text("utf-8"))["entries"]:
            product = _PRODUCT.match(entry["product"])
            if product is not None:
                m, n, k = (int(product[name]) for name in "mnk")
                entries.append((str(entry["gpu"]), (product["dtype"], m, n, k), float(entry["microseconds"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path}: is no file of measured products (*.gemm_algos.json, which `onnxopt tune` writes): {error}"
        ) from None
    return entries
