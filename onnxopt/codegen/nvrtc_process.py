"""NVRTC in a process of its own, which compiles one translation unit.

While NVRTC parses, it replaces the process's handlers of SIGINT and SIGTERM by one that exits with code 4, and it ends
the process on errors that it calls catastrophic. A compilation cannot be stopped either, but a process can be killed.
This module imports little, because a process of its own runs it for each architecture.
"""

from __future__ import annotations

import json
import sys

from onnxopt.children import ChildEnded, Children
from onnxopt.errors import CompileError

OPTIONS = ("--std=c++17", "--dopt=on", "-default-device", "--extra-device-vectorization")
_REPORT = "--ptxas-options=--verbose"


def compile_in(children: Children, source: str, headers: dict[str, str], target: str) -> tuple[bytes, str]:
    """The cubin (target sm_XX) or PTX (compute_XX) of a source, and the compiler's log.

    headers: by the name that #include gives. CompileError with NVRTC's log where the source does not compile.
    """
    try:
        answer = children.ask(__name__, json.dumps((source, headers, target)).encode())
    except ChildEnded as error:
        raise CompileError(f"NVRTC ended its process while compiling for {target} ({error})") from error
    header, _, image = answer.partition(b"\n")
    row = json.loads(header)
    if row["error"]:
        raise CompileError(row["error"])
    return image, row["log"]


def serve() -> None:
    """The child: read one request, write a line of JSON with error and log, then the image."""
    source, headers, target = json.load(sys.stdin.buffer)
    image, log, error = b"", "", ""
    try:
        image, log = compile_here(source, headers, target)
    except CompileError as problem:
        error = str(problem)
    sys.stdout.buffer.write(json.dumps({"error": error, "log": log}).encode() + b"\n" + image)
    sys.stdout.buffer.flush()


def compile_here(source: str, headers: dict[str, str], target: str) -> tuple[bytes, str]:
    """As `compile_in`, in this process."""
    from cuda.bindings import nvrtc

    def checked(result: tuple[object, ...]) -> object:
        if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result[0])[1].decode()}")
        return result[1] if len(result) > 1 else None

    program = checked(
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            b"onnxopt_kernels.cu",
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )
    try:
        is_cubin = target.startswith("sm_")
        options = [f"--gpu-architecture={target}".encode(), *(o.encode() for o in OPTIONS)]
        options += [_REPORT.encode()] * is_cubin
        status = nvrtc.nvrtcCompileProgram(program, len(options), options)[0]
        log = _buffer(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.decode(errors="replace").strip("\0 \n")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"generated CUDA does not compile for {target}:\n{text}")
        size = checked((nvrtc.nvrtcGetCUBINSize if is_cubin else nvrtc.nvrtcGetPTXSize)(program))
        image = _buffer(size)
        checked((nvrtc.nvrtcGetCUBIN if is_cubin else nvrtc.nvrtcGetPTX)(program, image))
        return image[:-1], text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _buffer(size: object) -> bytes:
    """Bytes for NVRTC to write into, one more than `size`.

    Python shares one object for all bytes of length 1, the size of an empty log. NVRTC must not write into that object.
    """
    return bytes(int(size) + 1)  # type: ignore[call-overload]
