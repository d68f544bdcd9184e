"""ONNX Runtime's model package API (OrtModelPackageApi) through ctypes: Python's bindings do not have it.

The C API is a table of functions whose order never changes. Positions up to 284 are those of onnxruntime_c_api.h; the
model packages' own table has the 16 functions that the API reference lists, in that order. GetModelPackageApi came
after the headers that this project builds with: its position was read from the 1.31.1 wheel, where it is the last.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

RELEASE = "1.31"  # whose table the positions are of
_VERSION = 31
_GET_MESSAGE, _CREATE_ENV, _RUN, _CREATE_OPTIONS = 2, 3, 9, 10
_CREATE_TENSOR, _TENSOR_DATA, _CPU_MEMORY, _REGISTER_LIBRARY, _APPEND_PROVIDER = 49, 51, 69, 228, 216
_MODEL_PACKAGES = 427
_P = ctypes.c_void_p


class _Base(ctypes.Structure):
    _fields_ = (("GetApi", ctypes.CFUNCTYPE(_P, ctypes.c_uint32)), ("GetVersionString", ctypes.CFUNCTYPE(_P)))


class ModelPackageError(Exception):
    """ORT's message."""


class Api:
    """The functions the tests need. Handles live until the process ends: there are few."""

    def __init__(self) -> None:
        folder = Path(ort.__file__).parent / "capi"
        library = ctypes.CDLL(str(next(folder.glob("libonnxruntime.so.*"))))
        library.OrtGetApiBase.restype = ctypes.POINTER(_Base)
        self._api = ctypes.cast(library.OrtGetApiBase().contents.GetApi(_VERSION), ctypes.POINTER(_P))
        table = ctypes.CFUNCTYPE(_P)(self._api[_MODEL_PACKAGES])()
        self._packages = ctypes.cast(table, ctypes.POINTER(_P))
        self.env = self._new(self._api[_CREATE_ENV], ctypes.c_int(4), b"test")

    def _call(self, function: int | None, *arguments: Any) -> None:
        """Call a function that returns a status; each argument as ctypes has it."""
        assert function
        types = [type(a) if isinstance(a, ctypes._SimpleCData) else _P for a in arguments]
        status = ctypes.CFUNCTYPE(_P, *types)(function)(*arguments)
        if status:
            message = ctypes.CFUNCTYPE(ctypes.c_char_p, _P)(self._api[_GET_MESSAGE])(status)
            raise ModelPackageError(message.decode())

    def _new(self, function: int | None, *arguments: Any) -> _P:
        """Call a function whose last argument takes what it makes."""
        made = _P()
        self._call(function, *arguments, ctypes.byref(made))
        return made

    # --- packages ---

    def open(self, folder: Path) -> _P:
        return self._new(self._packages[2], str(folder).encode())

    def schema_version(self, package: _P) -> int:
        value = ctypes.c_int64()
        self._call(self._packages[4], package, ctypes.byref(value))
        return value.value

    def _names(self, position: int, *arguments: Any) -> list[str]:
        names, count = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_size_t()
        self._call(self._packages[position], *arguments, ctypes.byref(names), ctypes.byref(count))
        return [(names[k] or b"").decode() for k in range(count.value)]

    def components(self, package: _P) -> list[str]:
        return self._names(6, package)

    def variants(self, package: _P, component: str) -> list[str]:
        return self._names(8, package, component.encode())

    def provider_of(self, package: _P, component: str, variant: str) -> str:
        name = ctypes.c_char_p()
        self._call(self._packages[9], package, component.encode(), variant.encode(), ctypes.byref(name))
        return (name.value or b"").decode()

    def resolve(self, package: _P, reference: str) -> Path:
        path = ctypes.c_char_p()
        self._call(self._packages[10], package, None, reference.encode(), ctypes.c_bool(True), ctypes.byref(path))
        return Path((path.value or b"").decode())

    def select(self, package: _P, component: str) -> _P:
        """The component's variant for the CPU provider: for session options that name no other."""
        options = self._new(self._packages[0], self.env, self.session_options())
        return self._new(self._packages[11], package, component.encode(), options)

    def selected_variant(self, selected: _P) -> str:
        name = ctypes.c_char_p()
        self._call(self._packages[13], selected, ctypes.byref(name))
        return (name.value or b"").decode()

    def selected_folder(self, selected: _P) -> Path:
        path = ctypes.c_char_p()
        self._call(self._packages[14], selected, ctypes.byref(path))
        return Path((path.value or b"").decode())

    # --- sessions ---

    def session_options(self, library: Path | None = None) -> _P:
        options = self._new(self._api[_CREATE_OPTIONS])
        if library is not None:
            self._call(self._api[_REGISTER_LIBRARY], options, str(library).encode())
        return options

    def session(self, selected: _P, options: _P | None = None) -> _P:
        return self._new(self._packages[15], self.env, selected, options)

    def run(self, session: _P, feeds: dict[str, np.ndarray], output: str, shape: Sequence[int]) -> np.ndarray:
        """One float32 output of a run with float32 inputs."""
        memory = self._new(self._api[_CPU_MEMORY], ctypes.c_int(0), ctypes.c_int(0))
        values = [self._tensor(memory, np.ascontiguousarray(array, np.float32)) for array in feeds.values()]
        names = (ctypes.c_char_p * len(feeds))(*(name.encode() for name in feeds))
        inputs, outputs = (_P * len(values))(*(v.value for v in values)), (_P * 1)()
        wanted = (ctypes.c_char_p * 1)(output.encode())
        count, one = ctypes.c_size_t(len(values)), ctypes.c_size_t(1)
        self._call(self._api[_RUN], session, None, names, inputs, count, wanted, one, outputs)
        data = self._new(self._api[_TENSOR_DATA], outputs[0])
        raw = (ctypes.c_float * math.prod(shape)).from_address(data.value or 0)
        return np.frombuffer(raw, np.float32).reshape(shape).copy()

    def _tensor(self, memory: _P, array: np.ndarray) -> _P:
        self._kept = [*getattr(self, "_kept", []), array]  # ORT reads the array's own memory
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        size, rank = ctypes.c_size_t(array.nbytes), ctypes.c_size_t(array.ndim)
        return self._new(self._api[_CREATE_TENSOR], memory, array.ctypes.data, size, dims, rank, ctypes.c_int(1))
