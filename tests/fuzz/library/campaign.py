"""Mutations of the files beside the library, each read and run under AddressSanitizer and UBSan.

Three ways: "numbers" changes parts of the JSON (numbers, fields, arrays, texts) and writes the digest anew, as somebody
would who wants to do harm; "bits" flips single bits, and "bytes" cuts, doubles, clears or replaces some, both as a disk
or a copy does. What a changed program computes may differ where the digest fits it. Without, it must be refused.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from onnxopt.codegen import sealed_json
from tests.fuzz.library import build, corpus, mutate

KERNELS, FATBIN = "kernels.json", "kernels.fatbin"
MEASURED = tuple(corpus.MEASURED)
FILES = (KERNELS, FATBIN, *MEASURED)
WAYS = ("numbers", "bits", "bytes")
_SPARED = frozenset({"cases", sealed_json.DIGEST})
_BATCH = 500  # mutants a pack

Files = dict[str, bytes]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A mutant that must not be. files: those of it that differ from the original's, by name."""

    model: str
    verdict: str
    text: str
    files: Files


@dataclasses.dataclass
class Tally:
    """What came of the mutants of one file in one way."""

    verdicts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.verdicts += other.verdicts
        self.findings += other.findings


def run(file: str, way: str, count: int, seed: int, programs: Path) -> Tally:
    """Make and examine `count` mutants of one file of FILES, shared out over the corpus."""
    tally = Tally()
    originals = corpus.originals()
    names = [n for n in originals if file in originals[n]]
    for k, name in enumerate(names):
        share = count // len(names) + (k < count % len(names))
        rng = random.Random(f"{seed} {file} {way} {name}")
        for begin in range(0, share, _BATCH):
            mutants = [mutant(originals[name], file, way, rng) for _ in range(min(_BATCH, share - begin))]
            for mutated, (verdict, text) in zip(mutants, examine(originals[name], mutants, programs), strict=True):
                tally.verdicts[verdict] += 1
                if is_finding(file, way, verdict, text):
                    tally.findings.append(Finding(name, verdict, text, mutated))
    return tally


def is_finding(file: str, way: str, verdict: str, text: str) -> bool:
    """Whether a verdict must not be: a fault, or a file that was changed and used all the same.

    What was measured is read when a kernel for the GPU is made, which then fails.
    """
    refused = verdict == "refused" or (verdict == "failed" and file in MEASURED and file in text)
    return verdict in ("stopped", "unclear") or (way != "numbers" and not refused)


def mutant(original: Files, file: str, way: str, rng: random.Random) -> Files:
    """The files of a mutant that differ from the original's; never none."""
    change = {"numbers": _numbers, "bits": mutate.flipped, "bytes": mutate.cut}[way]
    while True:
        changed = _fatbin(original, rng) if (file, way) == (FATBIN, "numbers") else change(original[file], rng)
        files = changed if isinstance(changed, dict) else {file: changed}
        if any(original[name] != content for name, content in files.items()):
            return files


def _numbers(text: bytes, rng: random.Random) -> bytes:
    document = sealed_json.unseal(text.decode())
    return sealed_json.seal(mutate.mutated(document, rng, _SPARED)).encode(errors="surrogatepass")


def _fatbin(original: Files, rng: random.Random) -> Files:
    """A damaged fatbin, mostly in its headers, which kernels.json describes as it is."""
    fatbin = original[FATBIN]
    for _ in range(rng.choice((1, 1, 2, 3))):
        change: Callable[[bytes, random.Random], bytes] = rng.choice((mutate.flipped, mutate.cut, _overwritten))
        fatbin = change(fatbin, rng) or fatbin
    document = sealed_json.unseal(original[KERNELS].decode())
    document["fatbin"] |= {"sha256": hashlib.sha256(fatbin).hexdigest(), "bytes": len(fatbin)}
    return {KERNELS: sealed_json.seal(document).encode(), FATBIN: fatbin}


def _overwritten(data: bytes, rng: random.Random) -> bytes:
    """With an unsigned number of 16, 32 or 64 bits somewhere."""
    size, letter = rng.choice(((2, "H"), (4, "I"), (8, "Q")))
    number = rng.choice((0, 1, 16, 31, 32, 2 ** (8 * size - 1), 2 ** (8 * size) - 1, 2 ** (8 * size) - 32))
    at = rng.randrange(max(1, len(data) - size))
    return data[:at] + struct.pack(f"<{letter}", number) + data[at + size :]


def examine(original: Files, mutants: Sequence[Files], programs: Path) -> list[tuple[str, str]]:
    """A verdict and what is said for each mutant, see mutants.cc. RuntimeError where the original itself fails."""
    with tempfile.TemporaryDirectory() as folder:
        program, pack = Path(folder) / "mutants", Path(folder) / "pack"
        try:
            os.link(programs / "mutants", program)
        except OSError:  # another file system
            shutil.copy(programs / "mutants", program)
        pack.write_bytes(b"".join(map(_packed, (original, *mutants))))
        command = [program, folder, pack, programs]
        done = subprocess.run(command, capture_output=True, env=build.environment())
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.decode(errors='replace')[-2000:]}")
        return [_verdict(line) for line in done.stdout.decode(errors="replace").splitlines()]


def _verdict(line: str) -> tuple[str, str]:
    verdict, _, text = line.partition("\t")
    return verdict, text


def _packed(files: Files) -> bytes:
    def parts() -> Iterator[bytes]:
        yield struct.pack("<I", len(files))
        for name, content in files.items():
            for part in (name.encode(), content):
                yield struct.pack("<I", len(part))
                yield part

    return b"".join(parts())


def table(tallies: dict[tuple[str, str], Tally]) -> str:
    """One line a file and way."""
    verdicts = ("refused", "failed", "same", "different", "inlined", "unclear", "stopped")
    rows = [("file", "way", "mutants", *verdicts, "findings")]
    for (file, way), tally in tallies.items():
        counts = [str(tally.verdicts[v]) for v in verdicts]
        rows.append((file, way, str(tally.verdicts.total()), *counts, str(len(tally.findings))))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    cells = [
        [c.ljust(w) if k < 2 else c.rjust(w) for k, (c, w) in enumerate(zip(r, widths, strict=True))] for r in rows
    ]
    return "\n".join("  ".join(row) for row in cells)


def keep(finding: Finding, folder: Path) -> Path:
    """Write a mutant's files into a new folder below `folder`; returns its path."""
    digest: Any = hashlib.sha256(b"".join(finding.files.values())).hexdigest()[:12]
    path = folder / f"{finding.model}-{digest}"
    path.mkdir(parents=True, exist_ok=True)
    for name, content in finding.files.items():
        (path / name).write_bytes(content)
    return path
