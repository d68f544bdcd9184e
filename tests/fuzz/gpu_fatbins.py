"""Damaged kernels.fatbin on a GPU: python tests/fuzz/gpu_fatbins.py ARTIFACT [--count 500] [--fitting 40] [--workers 4]

Needs ONNX Runtime with its CUDA provider, numpy and onnx, not onnxopt. Copies of the artifact's library with a damaged
fatbin are registered in child processes:

  changed   a bit flipped, or bytes cut, doubled, cleared or replaced, as a disk or a copy does it. Each must be refused
            when it is registered, with one line that names the file; some sessions are made all the same, of which ONNX
            Runtime runs the functions' bodies.
  fitting   a header of the fatbin is overwritten and both digests are written anew, as an attacker would.
            What the CUDA driver makes of that is printed, and no finding unless outputs are wrong without an error.

Prints a table and exits with 1 where something was found. Takes about two minutes on 8 cores.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import hashlib
import importlib.util
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FATBIN, KERNELS, LIBRARY = "kernels.fatbin", "kernels.json", "libonnxopt_ops.so"
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
SYMBOLIC = 8  # what an unknown dim of an input is
_SECONDS = 60  # that a child may take for one mutant
_BODIES_OF = 50  # of so many refused fatbins one has a session made
_HEADER, _IMAGE_HEADER = 16, 64
_RELATIVE, _ABSOLUTE = 2e-2, 2e-3  # a fused kernel rounds less often than the bodies


def sealed(text: str) -> str:
    """kernels.json with a digest that fits; from onnxopt's own module, which needs nothing but Python."""
    path = ROOT / "onnxopt" / "codegen" / "sealed_json.py"
    spec = importlib.util.spec_from_file_location("sealed_json", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.seal(json.loads(text)))


def damaged(fatbin: bytes, rng: random.Random) -> bytes:
    """Changed as an accident would."""
    if rng.random() < 0.7:
        at = rng.randrange(len(fatbin))
        return fatbin[:at] + bytes([fatbin[at] ^ 1 << rng.randrange(8)]) + fatbin[at + 1 :]
    begin = rng.randrange(len(fatbin))
    end = min(len(fatbin), begin + rng.choice((1, 16, 512, 4096, len(fatbin))))
    middle = rng.choice((b"", fatbin[begin:end] * 2, bytes(end - begin + 1), rng.randbytes(end - begin)))
    return fatbin[:begin] + middle + fatbin[end:]


def header_overwritten(fatbin: bytes, rng: random.Random) -> bytes:
    """A number in the container's header or in that of an image replaced; code stays."""
    places, at = [0], struct.unpack_from("<IHH", fatbin)[2]
    while at + _IMAGE_HEADER <= len(fatbin):
        places.append(at)
        _, _, header, payload = struct.unpack_from("<HHIQ", fatbin, at)
        at += header + payload
    place = rng.choice(places)
    at = place + rng.randrange(_HEADER if place == 0 else _IMAGE_HEADER)
    return fatbin[:at] + rng.choice((b"\0", b"\1", b"\x7f", b"\xff", rng.randbytes(4))) + fatbin[at + 1 :]


def write_mutant(folder: Path, original: Path, way: str, seed: int) -> None:
    rng = random.Random(f"{way} {seed}")
    fatbin = (original / FATBIN).read_bytes()
    changed = fatbin
    while changed == fatbin:
        changed = (damaged if way == "changed" else header_overwritten)(fatbin, rng)
    folder.mkdir()
    shutil.copy(original / LIBRARY, folder)
    text = (original / KERNELS).read_text()
    if way == "fitting":
        document = json.loads(text)
        document["fatbin"] |= {"sha256": hashlib.sha256(changed).hexdigest(), "bytes": len(changed)}
        text = sealed(json.dumps(document))
    (folder / KERNELS).write_text(text)
    (folder / FATBIN).write_bytes(changed)


# in a child


def feeds(session: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    types = {
        "tensor(float)": np.float32,
        "tensor(float16)": np.float16,
        "tensor(int64)": np.int64,
        "tensor(int32)": np.int32,
        "tensor(bool)": np.bool_,
    }
    found = {}
    for value in session.get_inputs():
        shape = [d if isinstance(d, int) else SYMBOLIC for d in value.shape]
        drawn = rng.standard_normal(shape) if "float" in value.type else rng.integers(0, 2, shape)
        found[value.name] = np.asarray(drawn).astype(types[value.type])
    return found


def outputs(model: str, options: Any) -> list[np.ndarray]:
    import onnxruntime as ort

    session = ort.InferenceSession(model, options, providers=[CUDA, CPU])
    if CUDA not in session.get_providers():
        raise SystemExit("ONNX Runtime could not load its CUDA execution provider")
    return list(session.run(None, feeds(session)))


def agree(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    wide = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(found, expected, strict=True)]
    return all(a.shape == b.shape and np.allclose(a, b, _RELATIVE, _ABSOLUTE, equal_nan=True) for a, b in wide)


def examine(model: str, library: Path, expected: Sequence[np.ndarray], runs: bool) -> tuple[str, str]:
    """What came of one library, and what was said. runs: make a session also where it was refused."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # noqa: BLE001  (ONNX Runtime's errors have no common class)
        text = str(error)
        if str(library.parent) not in text or "\n" in text:
            return "unclear", text
        if runs and not agree(outputs(model, options), expected):
            return "wrong", "the bodies"
        return "refused", text
    try:
        found = outputs(model, options)
    except Exception as error:  # noqa: BLE001
        return "failed", str(error)
    return ("right" if agree(found, expected) else "wrong"), ""


def child(arguments: dict[str, Any]) -> None:
    """Prints a line a mutant, before and after it."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    with np.load(arguments["expected"]) as kept:
        expected = [kept[name] for name in kept.files]
    for way, seed in arguments["mutants"]:
        folder = Path(arguments["folder"]) / f"{way}{seed}"
        write_mutant(folder, Path(arguments["library"]), way, seed)
        print(json.dumps(["begin", way, seed]), flush=True)
        verdict = examine(arguments["model"], folder / LIBRARY, expected, seed % _BODIES_OF == 0)
        print(json.dumps(["end", *verdict]), flush=True)
        shutil.rmtree(folder)
        if verdict[0] == "failed":  # the context may be lost
            return


# the parent


def examined(arguments: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Way, verdict and what was said of every mutant; a child that ends before its time is followed by another one."""
    left = list(arguments["mutants"])
    while left:
        command = [sys.executable, __file__, "--child", json.dumps({**arguments, "mutants": left})]
        limit = _SECONDS + len(left)
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
            code, text, said = str(done.returncode), done.stdout, done.stderr
        except subprocess.TimeoutExpired as stopped:
            code, said = "hang", ""
            text = stopped.stdout.decode() if isinstance(stopped.stdout, bytes) else stopped.stdout or ""
        lines = [json.loads(line) for line in text.splitlines() if line.startswith('["')]
        ends = [line[1:] for line in lines if line[0] == "end"]
        for (way, _), (verdict, what) in zip(left, ends, strict=False):
            yield way, verdict, what
        begun = sum(line[0] == "begin" for line in lines)
        if begun > len(ends):
            yield left[len(ends)][0], "crash" if code != "hang" else "hang", f"{code} {said[-300:]}"
        elif not ends:
            raise SystemExit(f"a child ended with {code} before it began: {said[-1000:]}")
        left = left[begun:]


def reference(artifact: Path, folder: Path) -> Path:
    """Outputs without the library, in a file; SystemExit where the artifact itself does not run on this GPU."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[4]); import gpu_fatbins as g, numpy as np, onnxruntime as ort\n"
        "hasattr(ort, 'preload_dlls') and ort.preload_dlls()\n"
        "plain, own = ort.SessionOptions(), ort.SessionOptions()\n"
        "own.register_custom_ops_library(sys.argv[2])\n"
        "expected = g.outputs(sys.argv[1], plain)\n"
        "assert g.agree(g.outputs(sys.argv[1], own), expected), 'the artifact as it is gives other outputs'\n"
        "np.savez(sys.argv[3], *expected)\n"
    )
    expected = folder / "expected.npz"
    places = [artifact / "model.onnx", artifact / "lib" / LIBRARY, expected, Path(__file__).parent]
    done = subprocess.run([sys.executable, "-c", program, *map(str, places)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the artifact does not run here: {done.stderr[-1500:]}")
    return expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--count", type=int, default=500, help="changed fatbins")
    parser.add_argument("--fitting", type=int, default=40, help="fatbins whose digests fit")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    options = parser.parse_args()
    start, artifact = time.monotonic(), options.artifact.resolve()
    mutants = [("changed", k) for k in range(options.count)] + [("fitting", k) for k in range(options.fitting)]
    table: dict[str, collections.Counter[str]] = {"changed": collections.Counter(), "fitting": collections.Counter()}
    findings = []
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        shared = {"model": str(artifact / "model.onnx"), "library": str(artifact / "lib"), "folder": scratch,
                  "expected": str(reference(artifact, Path(scratch)))}  # fmt: skip
        shares = [shared | {"mutants": mutants[k :: options.workers]} for k in range(options.workers)]
        for rows in pool.map(lambda share: list(examined(share)), shares):
            for way, verdict, what in rows:
                table[way][verdict] += 1
                if verdict == "wrong" or (way == "changed" and verdict != "refused"):
                    findings.append(f"{way}: {verdict} {what}")
                elif verdict in ("crash", "hang"):
                    print(f"{way}: {verdict} {what}", flush=True)
    verdicts = ("refused", "failed", "right", "wrong", "unclear", "crash", "hang")
    print("\n".join(findings))
    print(f"{'':8}" + "".join(f"{v:>9}" for v in verdicts))
    for way, counts in table.items():
        print(f"{way:8}" + "".join(f"{counts[v]:9}" for v in verdicts))
    print(f"{len(mutants)} fatbins, {len(findings)} findings, {time.monotonic() - start:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
    else:
        sys.exit(main())
