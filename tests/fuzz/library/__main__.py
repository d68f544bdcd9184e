"""`python -m tests.fuzz.library`: mutations of the files beside the library, for as long as asked; see campaign.py.

Mutants with a finding stay in build/fuzz/findings/. --libfuzzer goes on with libFuzzer where there is a clang++ that
has it (Debian: clang, libclang-rt-14-dev); its findings stay in build/libfuzzer/findings/.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.library import build, campaign, corpus

FINDINGS = build.ROOT / "build" / "fuzz" / "findings"
_ROUND = 280  # mutants of a file and way, before the next ones get their turn
_LONGEST_INPUT = 20_000  # bytes


def mutations(options: argparse.Namespace) -> int:
    """Examine mutants and print what came of them; returns the number of findings."""
    programs = build.build()
    start = time.monotonic()
    tallies = {
        pair: campaign.Tally()
        for pair in itertools.product(options.file or campaign.FILES, options.way or campaign.WAYS)
    }
    for begin in range(0, options.count, _ROUND):
        for (file, way), tally in tallies.items():
            if time.monotonic() - start > options.seconds:
                break
            seed = options.seed * 1_000_000 + begin
            found = campaign.run(file, way, min(_ROUND, options.count - begin), seed, programs)
            for finding in found.findings:
                print(f"{file}: {finding.verdict} {finding.text} ({campaign.keep(finding, FINDINGS)})", flush=True)
            tally.add(found)
    findings = sum(len(tally.findings) for tally in tallies.values())
    print(campaign.table(tallies))
    print(f"seed {options.seed}: {findings} findings in {time.monotonic() - start:.0f} s")
    return findings


def libfuzzer(seconds: float) -> int:
    """Run the target for libFuzzer; returns the number of findings, 0 where there is no libFuzzer."""
    compiler = _clang()
    if compiler is None:
        print("libFuzzer: no clang++ that has it; the mutations above are what was examined")
        return 0
    folder = build.build(compiler, libfuzzer=True)
    inputs, findings = folder / "inputs", folder / "findings"
    inputs.mkdir(exist_ok=True)
    for model, files in corpus.originals().items():
        for name, content in files.items():
            (inputs / (name if name == campaign.FATBIN else f"{model}-{name}")).write_bytes(content)
    findings.mkdir(exist_ok=True)
    before = set(findings.iterdir())
    command = [folder / "fuzz", inputs, f"-max_total_time={seconds:.0f}", f"-artifact_prefix={findings}/"]
    command += [
        f"-max_len={_LONGEST_INPUT}",
        "-timeout=20",
        "-rss_limit_mb=4096",
        "-malloc_limit_mb=2048",
        "-verbosity=0",
    ]
    variables = build.environment() | {"ONNXOPT_FUZZ_FATBIN": str(inputs / campaign.FATBIN)}
    done = subprocess.run([*command, "-print_final_stats=1"], env=variables)
    found = len(set(findings.iterdir()) - before)
    print(f"libFuzzer: {found} findings in {findings}")
    return max(found, int(done.returncode != 0))


def _clang() -> str | None:
    """A clang++ that links programs for libFuzzer."""
    names = ["clang++", *(p.name for p in sorted(Path("/usr/bin").glob("clang++-*")))]
    for name in filter(shutil.which, names):
        command = [name, "-x", "c++", "-fsanitize=fuzzer", "-o", os.devnull, "-"]
        text = "#include <cstdint>\n#include <cstddef>\n"
        text += 'extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }\n'
        if subprocess.run(command, input=text.encode(), capture_output=True).returncode == 0:
            return name
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="mutants of each file in each way, at most")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further ones after this long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", action="append", choices=campaign.FILES, help="default: all")
    parser.add_argument("--way", action="append", choices=campaign.WAYS, help="default: all")
    parser.add_argument("--libfuzzer", action="store_true", help="then libFuzzer for --seconds, where it is")
    options = parser.parse_args()
    findings = mutations(options)
    if options.libfuzzer:
        findings += libfuzzer(options.seconds)
    sys.exit(1 if findings else 0)


main()
