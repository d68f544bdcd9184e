"""The GPU catalogue, gpus.json: figures of each GPU with their sources, and the names that the driver gives to it.

To add a GPU, add an entry; `Gpu.verify` checks it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

from onnxopt.codegen.architectures import ARCHS

FILE = Path(__file__).with_name("gpus.json")
_FIGURES = (
    "compute_capability",
    "memory_gb",
    "bandwidth_gb_s",
    "l2_mb",
    "sms",
    "tensor_core_dtypes",
    "fp16_tflops",
    "fp32_tflops",
)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU. driver_names: what cuDeviceGetName says. sources: which page states which figures; unconfirmed: those
    that no page which was read states.

    memory_gb: GB as sold. bandwidth_gb_s: peak of the device memory. l2_mb: MB. fp16_tflops: dense tensor-core rate
    with float32 accumulation; fp32_tflops: without tensor cores. refused: why artifacts have no kernels for it, ""
    where they do.
    """

    key: str
    name: str
    driver_names: tuple[str, ...]
    compute_capability: str
    memory_gb: float
    bandwidth_gb_s: float
    l2_mb: float
    sms: int
    tensor_core_dtypes: tuple[str, ...]
    fp16_tflops: float
    fp32_tflops: float
    sources: dict[str, tuple[str, ...]]
    refused: str = ""
    note: str = ""
    unconfirmed: tuple[str, ...] = ()

    @property
    def arch(self) -> str:
        """As codegen/architectures.py spells it: "sm_90" for 9.0."""
        return arch_of(self.compute_capability)

    @property
    def has_tf32(self) -> bool:
        return "tf32" in self.tensor_core_dtypes

    def verify(self) -> None:
        """ValueError naming what is wrong with this entry."""
        if not re.fullmatch(r"[a-z0-9_]+", self.key):
            raise ValueError(f"{self.key}: a key is lower-case letters, digits and _, because files are named by it")
        if not re.fullmatch(r"\d+\.\d", self.compute_capability):
            raise ValueError(f"{self.key}: compute capability {self.compute_capability!r} is not like 9.0")
        if not self.driver_names or not self.tensor_core_dtypes:
            raise ValueError(f"{self.key}: has no driver names or no tensor-core dtypes")
        for figure in ("memory_gb", "bandwidth_gb_s", "l2_mb", "sms", "fp16_tflops", "fp32_tflops"):
            if getattr(self, figure) <= 0:
                raise ValueError(f"{self.key}: {figure} must be above 0")
        stated = [figure for figures in self.sources.values() for figure in figures]
        if sorted(stated) != sorted(_FIGURES):
            wrong = sorted(set(stated) ^ set(_FIGURES)) or sorted(f for f in set(stated) if stated.count(f) > 1)
            raise ValueError(f"{self.key}: each figure needs one source; look at {', '.join(wrong)}")
        if not set(self.unconfirmed) <= set(_FIGURES):
            raise ValueError(f"{self.key}: unconfirmed must name figures, not {', '.join(self.unconfirmed)}")
        if bool(self.refused) is (self.arch in ARCHS):
            raise ValueError(f"{self.key}: must be refused if and only if onnxopt does not compile for {self.arch}")


def arch_of(compute_capability: str) -> str:
    return "sm_" + compute_capability.replace(".", "")


@functools.cache
def catalogue() -> dict[str, Gpu]:
    """Every GPU by its key, as gpus.json holds them."""
    return parse(json.loads(FILE.read_text("utf-8")))


def parse(document: dict[str, Any]) -> dict[str, Gpu]:
    """The catalogue of a document like gpus.json. ValueError names the entry that is wrong."""
    if document.get("schema") != 1:
        raise ValueError(f"gpus.json has schema {document.get('schema')}, this onnxopt reads 1")
    gpus: dict[str, Gpu] = {}
    names: dict[str, str] = {}
    for key, row in document["gpus"].items():
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        fields["sources"] = {source: tuple(figures) for source, figures in row["sources"].items()}
        try:
            gpus[key] = Gpu(key=key, **fields)
        except TypeError as error:
            raise ValueError(f"{key}: {error}") from None
        gpus[key].verify()
        for name in gpus[key].driver_names:
            if names.setdefault(name, key) != key:
                raise ValueError(f"{key} and {names[name]} are both called {name!r} by the driver")
    return gpus


def find_gpu(driver_name: str) -> Gpu | None:
    """The GPU that the driver calls so; None for one that the catalogue lacks.

    Names must be equal: a slice of a GPU ("... MIG 1g.10gb") and a laptop's namesake are other devices.
    """
    return next((gpu for gpu in catalogue().values() if driver_name in gpu.driver_names), None)


def key_of(driver_name: str) -> str:
    """The name of files for this device: the catalogue's key; for other devices one derived from the driver's name."""
    gpu = find_gpu(driver_name)
    return gpu.key if gpu else re.sub(r"[^a-z0-9]+", "_", driver_name.lower()).strip("_")
