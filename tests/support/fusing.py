"""What tests change of the steps from a normalized model to an artifact: kernels of the CPU, and compiling."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest

from onnxopt.fusion import entry_points
from onnxopt.fusion.operands import looks_up
from onnxopt.fusion.region import Kind, Region
from onnxopt.kinds import KINDS
from onnxopt.pipeline import fused
from tests.support.fakes.custom_ops_fake_driver import fatbin


def has_cpu_kernels(kind: Kind) -> bool:
    """Whether the library has CPU kernels of a kind: only then does it say where they pay."""
    return type(kind).pays_on_cpu is not Kind.pays_on_cpu


def _has_cpu_kernel(_: Kind, region: Region) -> bool:
    return not any(map(looks_up, region.nodes))


@contextlib.contextmanager
def cpu_kernels_forced() -> Iterator[None]:
    """Whatever the library has CPU kernels for runs as one, also where ONNX Runtime's own kernels are faster."""
    with contextlib.ExitStack() as stack:
        for kind in filter(has_cpu_kernels, KINDS):
            stack.enter_context(mock.patch.object(type(kind), "pays_on_cpu", _has_cpu_kernel))
        stack.enter_context(mock.patch.object(entry_points, "is_quantized", return_value=False))
        yield


def compile_nothing(patch: pytest.MonkeyPatch) -> None:
    """Artifacts get images without machine code, which takes NVRTC seconds to make, until the patch is undone."""

    def compiled(_: str, archs: Sequence[str], *__: object) -> types.SimpleNamespace:
        return types.SimpleNamespace(fatbin=fatbin(*((int(a.removeprefix("sm_")), False) for a in archs)), usage={})

    patch.setattr(fused, "compiled", compiled)
