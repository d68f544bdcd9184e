"""Compile: CUDA source to one fatbin with a cubin that every architecture runs and PTX for the newest.

NVRTC compiles on any machine, without a GPU and without nvcc, in a process for each image (codegen/nvrtc_process.py).
Where ptxas is installed, architectures of a family share what NVRTC does (codegen/families.py).
A content-addressed cache keeps the images (codegen/image_cache.py).
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import NamedTuple

from onnxopt import caches
from onnxopt.background import threads
from onnxopt.children import Children
from onnxopt.codegen import compiler_report, families, image_cache, included, ptxas
from onnxopt.codegen.architectures import ARCHS
from onnxopt.codegen.families import Family
from onnxopt.codegen.image_cache import ImageCache
from onnxopt.codegen.nvrtc_process import OPTIONS, compile_in
from onnxopt.errors import CompileError, UsageError

Progress = Callable[[int, int], None]  # called with the number of finished steps, and of all


@dataclasses.dataclass(frozen=True)
class Compiled:
    """fatbin: an image that every architecture runs. usage: architecture -> entry point -> its resources."""

    fatbin: bytes
    usage: dict[str, dict[str, compiler_report.Usage]]


def check_archs(archs: Sequence[str] | None) -> tuple[str, ...]:
    """The architectures to compile for, in order; all of ARCHS for None. UsageError names one that is not in ARCHS."""
    for arch in archs or ():
        if arch not in ARCHS:
            raise UsageError(f"unknown architecture {arch!r}: onnxopt compiles for {', '.join(ARCHS)}")
    return tuple(a for a in ARCHS if archs is None or a in archs)


def compile_cuda(
    source: str,
    archs: Sequence[str] = ARCHS,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> bytes:
    """The fatbin of a translation unit that includes headers of cuda_kernels/; see `compiled`."""
    return compiled(source, archs, cache, progress).fatbin


def compiled(
    source: str,
    archs: Sequence[str] = ARCHS,
    cache: Path | None = None,
    progress: Progress | None = None,
    children: Children | None = None,
) -> Compiled:
    """The fatbin of a translation unit that includes headers of cuda_kernels/, and the resources of its entry points.

    archs: that cubins are for; one may serve several (codegen/families.py). PTX is added for the newest of them, so
    that later GPUs can run the kernels too. cache: folder of compiled images, by default
    $XDG_CACHE_HOME/onnxopt/kernels; a warning says where it cannot be used. children: which run the compilers, for a
    caller that may end them. Raises CompileError with NVRTC's log where the source does not compile, UsageError for an
    unknown architecture.
    """
    ordered = check_archs(archs)
    if not ordered:
        raise UsageError("no architecture to compile for: name at least one")
    release, newest = _release(), ordered[-1]
    children = children or Children()
    with image_cache.opened(cache or caches.folder("kernels")) as cached, threads() as pool, children:
        unit = _Unit(source, included.headers(source), release, cached, children)
        targets = {arch: families.target(arch, unit.texts) for arch in ordered}
        serving = families.serving(targets.values(), unit.texts)
        images = _images(unit, serving, newest, pool, progress or (lambda done, total: None))
    usage = {arch: compiler_report.parse(images[serving[target]].log) for arch, target in targets.items()}
    contained = (*dict.fromkeys(serving.values()), _virtual(newest))
    return Compiled(_fatbin({target: images[target].content for target in contained}), usage)


def _release() -> tuple[int, int]:
    """The CUDA release of NVRTC. CompileError where NVRTC is missing."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:  # the error classes of cuda-bindings are RuntimeErrors
        raise CompileError(
            "kernels for GPUs need CUDA's run-time compiler: pip install 'cuda-bindings<13' nvidia-cuda-nvrtc-cu12, "
            f"or leave them out with --arch none ({str(error).splitlines()[0]})"
        ) from None
    return major, minor


class _Image(NamedTuple):
    """A cubin or PTX, and what its compiler reported."""

    content: bytes
    log: str


class _Unit(NamedTuple):
    """A translation unit, and what compiles it. headers: by the name that #include gives. release: of NVRTC."""

    source: str
    headers: dict[str, str]
    release: tuple[int, int]
    cache: ImageCache
    children: Children

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.source, *self.headers.values())

    def compiled(self, target: str) -> _Image:
        """The cubin (target sm_XX) or PTX (compute_XX) that NVRTC makes, from the cache if possible."""
        kind = "cubin" if target.startswith("sm_") else "ptx"
        made_from = (self.source, sorted(self.headers.items()), target, OPTIONS, self.release)
        return self._cached(made_from, kind, lambda: compile_in(self.children, self.source, self.headers, target))

    def assembled(self, program: Path, ptx: bytes, arch: str) -> _Image:
        """The cubin that ptxas makes of PTX, from the cache if possible."""
        made_from = (ptx, arch, ptxas.OPTIONS, self.release)
        return self._cached(made_from, "cubin", lambda: ptxas.assemble(program, self.children, ptx, arch))

    def _cached(self, made_from: tuple[object, ...], kind: str, make: Callable[[], tuple[bytes, str]]) -> _Image:
        key = hashlib.sha256(repr((*made_from, image_cache.FORMAT)).encode()).hexdigest()
        image_name, log_name = f"{key}.{kind}", f"{key}.log"
        cached_image, cached_log = self.cache.read(image_name), self.cache.read(log_name)
        if cached_image is not None and cached_log is not None:
            return _Image(cached_image, cached_log.decode())
        image = _Image(*make())
        self.cache.write(log_name, image.log.encode())
        self.cache.write(image_name, image.content)
        return image


def _virtual(target: str) -> str:
    """The target of the PTX from which a cubin for `target` can be made."""
    return target.replace("sm", "compute")


def _images(
    unit: _Unit, serving: Mapping[str, str], newest: str, pool: Executor, progress: Progress
) -> dict[str, _Image]:
    """The cubins that serve all targets and the PTX of the newest architecture, by target.

    serving: whose cubin each target runs.

    With ptxas, NVRTC makes the PTX of each family, and each cubin begins when its PTX is there. Without it, NVRTC makes
    every image by itself.
    """
    assembler = ptxas.installed(unit.release)
    cubins = list(dict.fromkeys(serving.values()))
    groups = families.of(serving, unit.texts) if assembler is not None else ()
    pending: dict[Future[_Image], str | Family] = {}
    for family in sorted(groups, key=lambda family: -len(family.archs)):  # what most others wait for
        pending[pool.submit(unit.compiled, _virtual(family.first))] = family
    by_itself = [] if assembler is not None else cubins.copy()
    if assembler is None or newest not in serving:  # no family has the PTX of the newest architecture
        by_itself.append(_virtual(newest))
    pending |= {pool.submit(unit.compiled, target): target for target in by_itself}
    images: dict[str, _Image] = {}
    done, total = 0, len(pending) + (len(cubins) if groups else 0)
    progress(done, total)
    while pending:
        for job in concurrent.futures.wait(pending, return_when=concurrent.futures.FIRST_COMPLETED).done:
            image, key = job.result(), pending.pop(job)
            done += 1
            progress(done, total)
            if isinstance(key, str):
                images[key] = image
                continue
            for arch in key.archs:
                ptx = families.retargeted(image.content, arch)
                if arch == newest:
                    images[_virtual(newest)] = _Image(ptx, image.log)
                assert assembler is not None
                if arch not in cubins:
                    continue
                pending[pool.submit(unit.assembled, assembler, ptx, arch)] = arch
    return images


def _fatbin(images: dict[str, bytes]) -> bytes:
    from cuda.bindings import nvfatbin

    options = ["-64", "-host=linux"]
    handle = nvfatbin.create(options, len(options))
    try:
        for target, image in images.items():
            arch = target.partition("_")[2]
            if target.startswith("sm_"):
                nvfatbin.add_cubin(handle, image, len(image), arch, target)
            else:
                nvfatbin.add_ptx(handle, image, len(image), arch, target, "")
        fatbin = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, fatbin)
        return bytes(fatbin)
    finally:
        nvfatbin.destroy(handle)
