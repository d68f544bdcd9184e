"""Compiling: the asked images are in the fatbin, nothing is compiled twice, and errors say what NVRTC said."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxopt import paths
from onnxopt.children import Children
from onnxopt.codegen import image_cache, nvrtc_process
from onnxopt.codegen import nvrtc as compiling
from onnxopt.codegen.architectures import ARCHS
from onnxopt.codegen.nvrtc import check_archs, compile_cuda
from onnxopt.errors import CompileError, UsageError

SOURCE = '#include "pointwise/pointwise.cuh"\nextern "C" __global__ void k(float* y) { y[0] = onnxopt::sqrt(y[1]); }\n'


@pytest.fixture
def by_nvrtc_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the wheel of ptxas."""
    monkeypatch.setattr(compiling.ptxas, "installed", lambda release: None)


@pytest.fixture
def never_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(children: Children, source: str, headers: dict[str, str], target: str) -> tuple[bytes, str]:
        raise AssertionError(f"compiled for {target}")

    monkeypatch.setattr(compiling, "compile_in", refuse)


@pytest.mark.parametrize(
    ("archs", "ordered"),
    [(None, ARCHS), ((), ()), (("sm_90", "sm_75"), ("sm_75", "sm_90")), (ARCHS[:1] * 2, ARCHS[:1])],
)
def test_check_archs(archs: tuple[str, ...] | None, ordered: tuple[str, ...]) -> None:
    assert check_archs(archs) == ordered


def test_an_unknown_arch_is_named(never_compiles: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown architecture 'sm_35': onnxopt compiles for sm_75, "):
        compile_cuda(SOURCE, ["sm_75", "sm_35"], tmp_path)
    with pytest.raises(UsageError, match="name at least one"):
        compile_cuda(SOURCE, [], tmp_path)


def test_the_fatbin_holds_what_was_asked(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    fatbin = compile_cuda(SOURCE, ["sm_90", "sm_75"], tmp_path, lambda done, total: steps.append((done, total)))
    assert [done for done, _ in steps] == list(range(len(steps)))
    assert {total for _, total in steps} == {len(steps) - 1}
    assert fatbin.startswith(b"\x50\xed\x55\xba")  # the magic number of a fatbin
    cubins = sorted(path.read_bytes() for path in tmp_path.glob("*.cubin"))
    assert len(cubins) == 2 and all(c.startswith(b"\x7fELF") for c in cubins)
    assert any(b".target sm_90" in p.read_bytes() and b".entry k(" in p.read_bytes() for p in tmp_path.glob("*.ptx"))
    only_one = compile_cuda(SOURCE, ["sm_75"], tmp_path)
    assert len(only_one) < len(fatbin)
    assert _images(only_one) == [(ELF, 75), (PTX, 75)]
    assert _images(fatbin) == [(ELF, 75), (ELF, 90), (PTX, 90)]


PTX, ELF = 1, 2


def _images(fatbin: bytes) -> list[tuple[int, int]]:
    """(kind, architecture) of the entries."""
    return sorted(((kind, arch) for kind, arch, _ in _entries(fatbin)), key=lambda image: (image[0] == PTX, image[1]))


def _entries(fatbin: bytes) -> list[tuple[int, int, bool]]:
    """Kind, architecture, and whether for it alone: file header, then kind, sizes, arch and flags of each entry."""
    header_size, body = int.from_bytes(fatbin[6:8], "little"), int.from_bytes(fatbin[8:16], "little")
    found, at = [], header_size
    while at < header_size + body:
        entry = int.from_bytes(fatbin[at + 4 : at + 8], "little")
        size = int.from_bytes(fatbin[at + 8 : at + 16], "little")
        numbers = [int.from_bytes(fatbin[at + o : at + o + n], "little") for o, n in ((0, 2), (28, 4), (40, 8))]
        found.append((numbers[0], numbers[1], bool(numbers[2] & 0x100000)))
        at += entry + size
    return found


HOPPER = """#include "device/products/warpgroup_products.cuh"
namespace onnxopt {
extern "C" __global__ void __launch_bounds__(128) probe(float* y, uint32_t factors) {
  if constexpr (kWarpgroupProducts) {
    float sums[8][4] = {};
    begin_products();
    WarpgroupProduct<float16, 64>::add_shared(sums, matrix_in_rows(factors), matrix_in_rows(factors + 8192), true);
    end_products();
    wait_for_products<0>();
    pin(sums);
    for (int j = 0; j < 32; ++j) y[j * 128 + threadIdx.x] = sums[j / 4][j % 4];
  } else {
    __trap();
  }
}
}
"""


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("newer", [(), ("sm_100",)])
def test_code_for_hopper_alone_has_a_cubin_of_its_own_and_ptx_for_all(
    alone: bool, newer: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if alone:
        request.getfixturevalue("by_nvrtc_alone")
    steps: list[tuple[int, int]] = []
    archs = ("sm_80", "sm_90", *newer)
    made = compiling.compiled(HOPPER, archs, tmp_path, lambda done, total: steps.append((done, total)))
    assert [done for done, _ in steps] == list(range(steps[0][1] + 1))
    numbers = [int(arch[3:]) for arch in archs]
    cubins = [(ELF, number, number == 90) for number in numbers]
    assert _entries(made.fatbin) == [*cubins, (PTX, numbers[-1], False)]
    assert list(made.usage) == list(archs)
    assert made.usage["sm_80"]["probe"].registers < 32 < made.usage["sm_90"]["probe"].registers  # where the sums are
    assert all(usage["probe"].spilled == 0 for usage in made.usage.values())
    logs = "".join(path.read_bytes().decode(errors="replace") for path in tmp_path.glob("*.log"))
    assert "sm_90a" in logs and "wgmma" not in logs  # ptxas tells of products that it makes wait for each other
    ptx = [path.read_bytes() for path in tmp_path.glob("*.ptx")]
    of_hopper = [text for text in ptx if b".target sm_90\n" in text]
    assert len(of_hopper) == (not newer)  # compiled only where it is the newest
    assert all(b"wgmma" not in text and b"trap;" in text for text in of_hopper)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert compiling.compiled(HOPPER, archs, tmp_path) == made
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


def test_all_headers_together_compile() -> None:
    """A model may have kernels of every kind, whose headers share a namespace."""
    headers = sorted(path.relative_to(paths.cuda_kernels()) for path in paths.cuda_kernels().rglob("*.cuh"))
    includes = "".join(f'#include "{header.as_posix()}"\n' for header in headers)
    compile_cuda(includes + 'extern "C" __global__ void nothing() {}\n', ("sm_75", "sm_90"))


def test_an_empty_log_damages_nothing() -> None:
    """NVRTC writes into the bytes it is given, and Python shares those of length 1."""
    nvrtc_process.compile_here("__device__ int unused;", {}, "sm_90")
    assert [bytes((k,)) for k in range(256)] == [bytes((k, 0))[:1] for k in range(256)]
    assert [memoryview(bytes((k,)))[0] for k in range(256)] == list(range(256))


@pytest.mark.usefixtures("by_nvrtc_alone")
def test_a_cache_hit_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_cuda(SOURCE, ["sm_75"], tmp_path)
    compiled: list[str] = []
    compile_one = compiling.compile_in

    def record(children: Children, source: str, headers: dict[str, str], target: str) -> tuple[bytes, str]:
        compiled.append(target)
        return compile_one(children, source, headers, target)

    monkeypatch.setattr(compiling, "compile_in", record)
    assert compile_cuda(SOURCE, ["sm_75"], tmp_path) == first
    assert compiled == []
    compile_cuda(SOURCE, ["sm_80"], tmp_path)
    assert sorted(compiled) == ["compute_80", "sm_80"]
    compile_cuda(SOURCE + "// changed\n", ["sm_80"], tmp_path)
    assert len(compiled) == 4


@pytest.mark.usefixtures("by_nvrtc_alone")
def test_the_default_cache_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiling, "compile_in", lambda children, source, headers, target: (target.encode(), ""))
    monkeypatch.setattr(compiling, "_fatbin", lambda images: b"+".join(images.values()))
    assert compile_cuda(SOURCE, ["sm_75"]) == b"sm_75+compute_75"
    kept = (tmp_path / "onnxopt" / "kernels").iterdir()
    images = sorted(p.read_bytes() for p in kept if p.suffix != ".log")
    assert [image[:-32] for image in images] == [b"compute_75", b"sm_75"]  # a digest follows


@pytest.mark.usefixtures("by_nvrtc_alone")
def test_files_of_another_format_have_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that writes another format may share the folder, and may not check what it reads."""
    monkeypatch.setattr(compiling, "compile_in", lambda children, source, headers, target: (target.encode(), ""))
    monkeypatch.setattr(compiling, "_fatbin", lambda images: b"+".join(images.values()))
    compile_cuda(SOURCE, ["sm_75"], tmp_path)
    own = {path.name for path in tmp_path.iterdir()}
    monkeypatch.setattr(compiling.image_cache, "FORMAT", b"onnxopt compiled image 0")
    compile_cuda(SOURCE, ["sm_75"], tmp_path)
    assert len(own) == 4
    assert len({path.name for path in tmp_path.iterdir()}) == 8


def test_the_log_is_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(
        CompileError, match=r"does not compile for (sm|compute)_75:\n.*onnxopt_kernels.cu\(1\): error"
    ) as e:
        compile_cuda("__global__ void k() { frobnicate(); }", ["sm_75"], tmp_path)
    assert "frobnicate" in str(e.value)
    assert not list(tmp_path.iterdir())


def _bit(content: bytes) -> bytes:
    return content[:-200] + bytes([content[-200] ^ 8]) + content[-199:]


@pytest.mark.usefixtures("by_nvrtc_alone")
@pytest.mark.parametrize("kind", ["cubin", "ptx", "log"])
@pytest.mark.parametrize("damage", [_bit, lambda c: c[: len(c) // 2], lambda c: b"", lambda c: bytes(500)])
def test_a_damaged_file_is_compiled_again(
    kind: str, damage: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "ptxas info    : Function properties for k\n" * 9
    monkeypatch.setattr(compiling, "compile_in", lambda children, source, headers, target: (target.encode() * 99, log))
    monkeypatch.setattr(compiling, "_fatbin", lambda images: b"+".join(images.values()))
    good = compile_cuda(SOURCE, ["sm_75"], tmp_path)
    (path, *_) = tmp_path.glob(f"*.{kind}")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert compile_cuda(SOURCE, ["sm_75"], tmp_path) == good
    assert path.read_bytes() == whole


@pytest.mark.usefixtures("by_nvrtc_alone")
@pytest.mark.filterwarnings("always:compiled kernels are not cached:RuntimeWarning")
@pytest.mark.parametrize("kind", ["a file", "inside a file", "read-only", "unreadable"])
def test_a_cache_that_cannot_be_written_still_works(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compile_in", lambda children, source, headers, target: (target.encode(), ""))
    monkeypatch.setattr(compiling, "_fatbin", lambda images: b"+".join(images.values()))
    folder = tmp_path / "cache"
    if "file" in kind:
        folder.touch()
    else:
        folder.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR if kind == "read-only" else 0)
    if folder.is_dir():  # what a folder without permission gives; root may read and write all

        def denied(path: object, *_: object, **__: object) -> int:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(os, "open", denied)
    cache = folder / "deeper" if kind == "inside a file" else folder
    with pytest.warns(RuntimeWarning, match=f"compiled kernels are not cached: {cache}: ") as seen:
        assert compile_cuda(SOURCE, ["sm_75"], cache) == b"sm_75+compute_75"
    assert len(seen) == 1
    folder.chmod(0o700)


def test_a_missing_compiler_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc

    def missing() -> None:
        raise RuntimeError("no libnvrtc.so.12\nwhere it was looked for")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    with pytest.raises(
        CompileError, match=r"pip install .*nvidia-cuda-nvrtc-cu12, or .*--arch none \(no libnvrtc\.so\.12\)"
    ):
        compile_cuda("// nothing", ["sm_90"], tmp_path)


def test_nvrtc_ends_no_process_of_ours(tmp_path: Path) -> None:
    """NVRTC handles SIGINT and SIGTERM while it parses, by exiting: here that would leave temporary files."""
    seen: set[tuple[int, int]] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            seen.update((number, _handler(number)) for number in (signal.SIGINT, signal.SIGTERM))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        compile_cuda(SOURCE, ["sm_75"], tmp_path)
    finally:
        done.set()
        thread.join()
    assert len(seen) == 2


def _handler(number: int) -> int:
    """The address of the process's handler of a signal, with which struct sigaction begins."""
    action = (ctypes.c_size_t * 64)()
    assert ctypes.CDLL(None).sigaction(number, None, action) == 0
    return action[0]


def test_a_compilation_that_is_killed_is_an_error_and_is_not_kept(tmp_path: Path) -> None:
    children = Children()
    children.kill()
    with pytest.raises(CompileError, match=r"ended its process .* sm_75 \(SIGKILL\)"):
        nvrtc_process.compile_in(children, SOURCE, {}, "sm_75")
    with image_cache.opened(tmp_path) as cache:
        cache.write("a.log", b"before")
        cache.close()
        cache.write("b.log", b"after")  # as a thread does that nobody waits for
        assert cache.read("a.log") is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]
