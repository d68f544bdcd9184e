"""ONNX Runtime sessions as verify and bench need them: from a path, without a log, for any dtype, with our errors."""

from __future__ import annotations

import ctypes
import functools
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from onnxopt.errors import UsageError
from onnxopt.option_fields import did_you_mean
from onnxopt.runtime import devices, time_limit

if TYPE_CHECKING:
    import onnxruntime as ort

Array = np.ndarray[Any, Any]

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# float32 means float32, and no time goes into finding the fastest convolutions.
_EXACT = {"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"}
_FIRST_OPSET_OF_ORT = 7  # the oldest that it promises to run
_NOT_HERE = ("Could not find an implementation for", "is not a registered function/op", "could not start")
_ONNX_TYPE = {"bfloat16": 16, "float8_e4m3fn": 17, "float8_e4m3fnuz": 18, "float8_e5m2": 19, "float8_e5m2fnuz": 20}
_ORT_TYPE = {
    "tensor(bfloat16)": "bfloat16",
    "tensor(float8e4m3fn)": "float8_e4m3fn",
    "tensor(float8e4m3fnuz)": "float8_e4m3fnuz",
    "tensor(float8e5m2)": "float8_e5m2",
    "tensor(float8e5m2fnuz)": "float8_e5m2fnuz",
}


class NodeArg(Protocol):
    """An input or output of a session. type: ONNX Runtime's spelling, as "tensor(float)". shape: sizes and symbols."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> list[int | str | None]: ...


class Session(Protocol):
    """The methods of onnxruntime.InferenceSession that most callers need; ONNX Runtime ships no types of its own."""

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]: ...
    def io_binding(self) -> Any: ...
    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None: ...
    def get_inputs(self) -> Sequence[NodeArg]: ...
    def get_outputs(self) -> Sequence[NodeArg]: ...
    def get_providers(self) -> list[str]: ...
    def get_provider_options(self) -> dict[str, dict[str, str]]: ...
    def get_modelmeta(self) -> Any: ...
    def end_profiling(self) -> str: ...


# The entry of a session's configuration with which ONNX Runtime fuses nothing with Q and DQ.
WITHOUT_INTEGER_KERNELS = ("session.disable_quant_qdq", "1")
# The entry that names optimizers of ONNX Runtime to leave out, with semicolons between them.
WITHOUT_OPTIMIZERS = "optimization.disable_specified_optimizers"
# The entry that names kinds of onnxopt's kernels to leave out, with commas between them.
WITHOUT_KINDS = "onnxopt.leave_out"
# In its messages about such a kernel of its own, and about a Reshape that it moved in front of a DQ.
_FLOAT8_CODES = ("Type Error: Type 'tensor(float8", "has the following type (tensor(float8")


class RunError(Exception):
    """ONNX Runtime could not create a session or run it; the message is its own, in one line. Not raised to users."""


class RunTimeout(RunError):
    """A run took longer than it may (runtime/time_limit.py)."""


def is_for_others(message: str) -> bool:
    """Whether another provider, or an application with libraries of operators, may run a model that was refused so.

    None runs the operators of the first opsets, which ONNX Runtime says to be without implementation as well.
    """
    version = re.search(r"Could not find an implementation for \w+\((\d+)\)", message)
    if version is not None and int(version[1]) < _FIRST_OPSET_OF_ORT:
        return False
    return any(text in message for text in _NOT_HERE)


class SessionSetup(NamedTuple):
    """How ONNX Runtime sets a session up, beside its defaults.

    config: entries of the session's configuration. reuse_memory: whether it plans which results share memory, which
    takes time quadratic in the nodes where shapes are unknown: 30 s for 7,900 nodes. profile: prefix of the file that
    it writes its profile to, None for none. data_folder: of the external data, default beside the model.
    """

    config: Mapping[str, str] = types.MappingProxyType({})
    reuse_memory: bool = True
    profile: Path | None = None
    data_folder: Path | None = None


def open_session(
    model: Path,
    *,
    provider: str = CPU,
    library: Path | None = None,
    optimize: bool = True,
    provider_options: Mapping[str, str] | None = None,
    setup: SessionSetup = SessionSetup(),  # noqa: B008
) -> ort.InferenceSession:
    """A session of the model file on one provider, with the CPU as fallback.

    library: the custom-op library, None for none. optimize: ONNX Runtime's default optimizations, or none.
    provider_options: for CUDA, by default TF32 off and convolutions chosen by heuristic. RunError where ONNX Runtime
    refuses. Where its optimizer makes integer kernels of float8 codes, and then refuses them, the session is without
    such kernels.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong comes back as an exception; warnings are about the user's model
    options.enable_mem_reuse = setup.reuse_memory
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if setup.profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(setup.profile)
    for key, value in setup.config.items():
        options.add_session_config_entry(key, value)
    providers: list[Any] = [CPU] if provider == CPU else [(CUDA, dict(provider_options or _EXACT)), CPU]
    if provider == CUDA:
        ort.preload_dlls()
    try:
        if library is not None:
            options.register_custom_ops_library(str(library))
        source: str | bytes = str(model)
        if setup.data_folder is not None:  # ORT takes the folder only together with a model in memory
            folder = str(setup.data_folder)
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
            source = model.read_bytes()
        try:
            session = ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
        except Exception as error:  # as below
            if not any(said in str(error) for said in _FLOAT8_CODES):
                raise
            options.add_session_config_entry(*WITHOUT_INTEGER_KERNELS)
            session = ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except Exception as error:  # ORT raises a dozen unrelated classes; all mean that it will not run this model
        raise RunError(one_line(error)) from error
    if provider not in session.get_providers():
        raise RunError(f"ONNX Runtime could not start {provider} on this machine")
    return session


def run_options() -> ort.RunOptions:
    """Options of a run that logs nothing; setting their `terminate` ends it."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.log_severity_level = 4
    return options


def run(
    session: ort.InferenceSession, feeds: Mapping[str, Any], options: ort.RunOptions | None = None
) -> dict[str, Array]:
    """Outputs by name. Sequences come back as "name[0]", "name[1]", ...; an absent optional not at all.

    options: `run_options`. RunError where ORT refuses; RunTimeout where the run takes longer than the current limit
    (runtime/time_limit.py). bfloat16, which ORT's numpy bridge lacks, goes in and out as
    ml_dtypes arrays.
    """
    options = options or run_options()
    names = [o.name for o in session.get_outputs()]
    exotic = any(str(getattr(a, "dtype", "")) in _ONNX_TYPE for a in feeds.values()) or any(
        o.type in _ORT_TYPE for o in session.get_outputs()
    )
    # A thread of its own for each run would get handles of its own from the CUDA provider.
    limited = functools.partial(time_limit.limited, options=options, leave=CUDA not in session.get_providers())
    try:
        if not exotic:
            return _flatten(names, limited(lambda: session.run(names, dict(feeds), options)))
        fed = {k: to_ort_value(v) for k, v in feeds.items()}
        values = limited(lambda: session.run_with_ort_values(names, fed, options))
    except time_limit.TimeIsUp as error:
        raise RunTimeout(str(error)) from error
    except Exception as error:  # as above
        raise RunError(one_line(error)) from error
    return to_arrays(names, values, [o.type for o in session.get_outputs()])


def to_arrays(names: Sequence[str], values: Sequence[ort.OrtValue], types: Sequence[str]) -> dict[str, Array]:
    """Values of ORT, on any device, as arrays by name; types as session.get_outputs() states them."""
    return _flatten(list(names), [_from_ort_value(v, t) for v, t in zip(values, types, strict=True)])


def element_type(dtype: str) -> Any:
    """What a binding of ONNX Runtime takes for a dtype, by numpy's or ml_dtypes' name."""
    return _ONNX_TYPE.get(dtype) or np.dtype(dtype).type


def to_ort_value(array: Array, device: str = "cpu") -> ort.OrtValue:
    """The array as a tensor of ORT on "cpu" or "cuda"."""
    import onnxruntime as ort

    onnx_type = _ONNX_TYPE.get(str(array.dtype))
    if onnx_type is None:
        return ort.OrtValue.ortvalue_from_numpy(array, device)
    raw = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, onnx_type)
    if device == "cpu":
        return value
    on_device = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), onnx_type, device)
    on_device.update_inplace(raw)
    return on_device


def refill(value: ort.OrtValue, array: Array) -> None:
    """Copy an array of the same shape and dtype into a tensor of ORT, wherever it lies."""
    exotic = str(array.dtype) in _ONNX_TYPE
    value.update_inplace(np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}") if exotic else array)


def _from_ort_value(value: ort.OrtValue, ort_type: str) -> Any:
    name = _ORT_TYPE.get(ort_type)
    if name is None or not value.is_tensor():
        return value.numpy() if value.is_tensor() else value
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name))
    shape = tuple(value.shape())
    if value.device_name().lower() != "cpu":
        import onnxruntime as ort

        on_host = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), _ONNX_TYPE[name], "cpu")
        ort.copy_tensors([value], [on_host])
        value = on_host
    count = int(np.prod(shape, dtype=np.int64))
    raw = (ctypes.c_char * (count * dtype.itemsize)).from_address(value.data_ptr()) if count else b""
    return np.frombuffer(raw, dtype, count).reshape(shape).copy()


def _flatten(names: list[str], values: list[Any]) -> dict[str, Array]:
    flat: dict[str, Array] = {}
    for name, value in zip(names, values, strict=True):
        if isinstance(value, list):
            flat.update({f"{name}[{k}]": np.asarray(_row(v)) for k, v in enumerate(value)})
        elif value is not None:
            flat[name] = np.asarray(value)
    return flat


def _row(value: Any) -> Any:
    return [value[k] for k in sorted(value)] if isinstance(value, dict) else value  # a map (ai.onnx.ml ZipMap)


@functools.cache
def cuda_is_usable() -> bool:
    """Whether this ORT build has the CUDA EP and the driver reports a device. Starts no CUDA context."""
    import onnxruntime as ort

    return CUDA in ort.get_available_providers() and devices.first() is not None


_SHORT = {"cpu": CPU, "cuda": CUDA, "gpu": CUDA}


def provider_named(name: str) -> str:
    """ONNX Runtime's name of an execution provider, which may be a short one in any case; others as they are."""
    return _SHORT.get(name.lower(), name)


def check_providers(names: Sequence[str]) -> None:
    """UsageError where this build of ORT lacks one of these execution providers."""
    import onnxruntime as ort

    available = ort.get_available_providers()
    for name in names:
        if name not in available:
            near = did_you_mean(name, available)
            raise UsageError(
                f"this ONNX Runtime has no execution provider {name!r}; it has {', '.join(available)}{near}"
            )


def one_line(error: object) -> str:
    """A message on one line of at most 300 characters, without ORT's error-code prefix."""
    text = " ".join(str(error).split())
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1]  # the sentence that quotes the message has a full stop of its own
    return text if len(text) <= 300 else text[:297] + "..."
