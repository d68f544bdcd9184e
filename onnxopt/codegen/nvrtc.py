"""Compile: CUDA source to one fatbin with a cubin for every architecture and PTX for the newest.

NVRTC compiles on any machine, without a GPU and without nvcc, in a process for each image (codegen/nvrtc_process.py).
A content-addressed cache keeps the images (codegen/image_cache.py).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from onnxopt import caches, paths
from onnxopt.background import threads
from onnxopt.children import Children
from onnxopt.codegen import compiler_report, image_cache
from onnxopt.codegen.image_cache import ImageCache
from onnxopt.codegen.nvrtc_process import OPTIONS, compile_in
from onnxopt.errors import CompileError, UsageError

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_120")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """fatbin: an image for every architecture. usage: architecture -> entry point -> its resources."""

    fatbin: bytes
    usage: dict[str, dict[str, compiler_report.Usage]]


def check_archs(archs: Sequence[str] | None) -> tuple[str, ...]:
    """The architectures to compile for, in order; all of ARCHS for None. UsageError names one that is not in ARCHS."""
    if isinstance(archs, str):
        raise UsageError(f"archs is a sequence of architectures: give ({archs!r},)")
    for arch in archs or ():
        if arch not in ARCHS:
            raise UsageError(f"unknown architecture {arch!r}: onnxopt compiles for {', '.join(ARCHS)}")
    return tuple(a for a in ARCHS if archs is None or a in archs)


def compile_cuda(
    source: str,
    archs: Sequence[str] = ARCHS,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> bytes:
    """The fatbin of a translation unit that includes headers of cuda_kernels/; see `compiled`."""
    return compiled(source, archs, cache, progress).fatbin


def compiled(
    source: str,
    archs: Sequence[str] = ARCHS,
    cache: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Compiled:
    """The fatbin of a translation unit that includes headers of cuda_kernels/, and the resources of its entry points.

    archs: the architectures of the cubins. PTX is added for the newest of them, so that later GPUs can run the kernels
    too. cache: folder of compiled images, by default $XDG_CACHE_HOME/onnxopt/kernels; a warning says where it
    cannot be used. progress: called with the name of
    each finished image. Raises CompileError with NVRTC's log where the source does not compile, UsageError for an
    unknown architecture.
    """
    ordered = check_archs(archs)
    if not ordered:
        raise UsageError("no architecture to compile for: name at least one")
    root = paths.cuda_kernels()
    headers = {path.relative_to(root).as_posix(): path.read_text() for path in sorted(root.rglob("*.*h"))}
    targets = [*ordered, ordered[-1].replace("sm", "compute")]
    images: dict[str, tuple[bytes, str]] = {}
    with image_cache.opened(cache or caches.folder("kernels")) as kept, threads() as pool, Children() as children:
        jobs = {pool.submit(_image, source, headers, target, kept, children): target for target in targets}
        for job in concurrent.futures.as_completed(jobs):
            images[jobs[job]] = job.result()
            if progress is not None:
                progress(jobs[job])
    usage = {arch: compiler_report.parse(images[arch][1]) for arch in ordered}
    return Compiled(_fatbin({target: images[target][0] for target in targets}), usage)


def _image(
    source: str, headers: dict[str, str], target: str, cache: ImageCache, children: Children
) -> tuple[bytes, str]:
    """The cubin (target sm_XX) or PTX (compute_XX) of a source and the compiler's log, from the cache if possible."""
    try:
        from cuda.bindings import nvrtc

        version = nvrtc.nvrtcVersion()[1:]
    except (ImportError, RuntimeError) as error:  # the error classes of cuda-bindings are RuntimeErrors
        raise CompileError(
            "kernels for GPUs need CUDA's run-time compiler: pip install 'cuda-bindings<13' nvidia-cuda-nvrtc-cu12, "
            f"or leave them out with --arch none ({str(error).splitlines()[0]})"
        ) from None
    compiled_from = (source, sorted(headers.items()), target, OPTIONS, version, image_cache.FORMAT)
    key = hashlib.sha256(repr(compiled_from).encode()).hexdigest()
    image_name, log_name = f"{key}.{'cubin' if target.startswith('sm_') else 'ptx'}", f"{key}.log"
    cached_image, cached_log = cache.read(image_name), cache.read(log_name)
    if cached_image is not None and cached_log is not None:
        return cached_image, cached_log.decode()
    image, log = compile_in(children, source, headers, target)
    cache.write(log_name, log.encode())
    cache.write(image_name, image)
    return image, log


def _fatbin(images: dict[str, bytes]) -> bytes:
    from cuda.bindings import nvfatbin

    options = ["-64", "-host=linux"]
    handle = nvfatbin.create(options, len(options))
    try:
        for target, image in images.items():
            arch = re.sub(r"\D", "", target)
            if target.startswith("sm_"):
                nvfatbin.add_cubin(handle, image, len(image), arch, target)
            else:
                nvfatbin.add_ptx(handle, image, len(image), arch, target, "")
        fatbin = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, fatbin)
        return bytes(fatbin)
    finally:
        nvfatbin.destroy(handle)
