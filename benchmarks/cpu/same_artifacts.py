"""Whether two versions of onnxopt write the same artifacts, file by file.

    python -m benchmarks cpu.same_artifacts make OUT [--tree FOLDER] [--arch sm_90 ...] [NAME ...]
    python -m benchmarks cpu.same_artifacts compare BEFORE AFTER [--reworded] [--same-code]

`make` optimizes ten models of models/ with the onnxopt of a source tree, each in a process of its own and with no
kernels cached. `compare` prints one line an artifact and exits with 1 where one differs. Versions, times, the place of
the original model, report.html, kernels.cu and the bytes of libonnxopt_ops.so may differ, and how many cases
verification had time for. --reworded also allows other sentences (reasons, notes) about the same nodes, --same-code
other symbols in kernels.fatbin beside the same machine code. Make both folders on one machine: manifests hold measured
differences.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence, Set
from typing import Any

import onnx

import models
from benchmarks.support import fatbins
from onnxopt.codegen import sealed_json

ROOT = pathlib.Path(__file__).parents[2]
# model -> arguments of optimize. Together: attention, norms, rotary embedding, caches, convolutions, scans, dynamic
# dims, float16, int8, control flow, weights of 60 MB in the model and beside it.
CASES: dict[str, dict[str, Any]] = {
    "bert_tiny_dyn": {},
    "vit_tiny_fp16": {},
    "llama_tiny_fp16_dyn": {"launch_choices": True},
    "llama_decode_tiny_fp16_dyn": {},
    "whisper_encoder_tiny_dyn": {"portable": True},
    "convnext_tiny_fp16_dyn": {},
    "smart_turn_v3_qdq": {},
    "silero_vad_v6": {},
    "minilm_l3_paraphrase_fp32": {"external_data": True},
    "piper_vits_joe": {},
}
ARCHS = ("sm_80", "sm_90")
_OPTIMIZE = """
import json, pathlib, sys
import onnxopt
arguments = json.loads(sys.argv[1])
tree = pathlib.Path(arguments.pop("tree"))
assert tree in pathlib.Path(onnxopt.__file__).parents, f"{onnxopt.__file__} is not of {tree}"
arguments["cache"] = pathlib.Path(arguments["cache"])
onnxopt.optimize(arguments.pop("model"), arguments.pop("output"), **arguments)
"""
_MANIFEST, _KERNELS, _FATBIN = "manifest.json", "lib/kernels.json", "lib/kernels.fatbin"
_NOT_COMPARED = frozenset({"report.html", "kernels.cu", "lib/libonnxopt_ops.so"})
_OTHER_BYTES = "the same members, but other bytes"
_VERSIONS_AND_TIMES = ("onnxopt", "versions", "request", "seconds", "sha256")  # members of manifest.json
_VERSION_MARK = "onnxopt.version"  # metadata of model.onnx
_SENTENCES = frozenset({"reason", "notes", "because", "why", "how"})  # members of JSON files that hold sentences
_SHOWN = 5  # differences of one artifact that are printed


def make(out: pathlib.Path, names: Sequence[str], archs: Sequence[str], tree: pathlib.Path) -> None:
    """Write the artifacts into `out`, one folder a name. Raises RuntimeError where onnxopt fails."""
    out.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    for name in names:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as cache:
            arguments = {
                "tree": str(tree), "model": str(models.path(name)), "output": str(out.resolve() / name),
                "cache": cache, "archs": list(archs), **CASES[name],
            }  # fmt: skip
            command = [sys.executable, "-c", _OPTIMIZE, json.dumps(arguments)]
            if subprocess.run(command, env=environment, cwd=cache).returncode:
                raise RuntimeError(f"{name}: onnxopt of {tree} failed, as the lines above say")
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


@dataclasses.dataclass(frozen=True)
class Allowed:
    """What may differ beside versions, times and places; see the module's docstring."""

    reworded: bool = False
    same_code: bool = False


def differences(before: pathlib.Path, after: pathlib.Path, allowed: Allowed = Allowed()) -> list[str]:
    """What differs between two artifact folders, as "FILE: what"; empty where nothing does that counts.

    The hash of a file that differs is no difference of its own.
    """
    files = [{str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} for folder in (before, after)]
    found = [f"{name}: only before" for name in sorted(files[0] - files[1])]
    found += [f"{name}: only after" for name in sorted(files[1] - files[0])]
    both = sorted((files[0] & files[1]) - _NOT_COMPARED)
    texts = {name: ((before / name).read_bytes(), (after / name).read_bytes()) for name in both}
    changed = {name for name, (old, new) in texts.items() if old != new}
    for name in sorted(changed - {_MANIFEST, _KERNELS}):
        found += [f"{name}: {what}" for what in _of_file(name, *texts[name], allowed)]
    if _KERNELS in changed:
        found += [f"{_KERNELS}: {what}" for what in _of_kernels(*texts[_KERNELS], fatbin_differs=_FATBIN in changed)]
    manifests = [_comparable(json.loads(text), changed | _NOT_COMPARED) for text in texts[_MANIFEST]]
    _keep_common_checks(*manifests)
    if allowed.reworded:
        manifests = [_without_sentences(manifest) for manifest in manifests]
    return found + [f"{_MANIFEST}: {what}" for what in _of_json(*manifests)]


def _of_file(name: str, before: bytes, after: bytes, allowed: Allowed) -> Iterator[str]:
    """The differences that count of one file whose bytes differ."""
    if name.startswith("providers/"):
        documents = json.loads(before), json.loads(after)
        if allowed.reworded:
            yield from _of_json(*map(_without_sentences, documents))
        else:
            yield from list(_of_json(*documents)) or [_OTHER_BYTES]
    elif name.endswith(".onnx"):
        if _without_version(before) != _without_version(after):
            yield "the graphs or their weights differ"
    elif name == _FATBIN and allowed.same_code:
        different = fatbins.different_code(before, after)
        yield from (f"the code of sm_{arch} differs in {section}" for arch, section in different)
    else:
        yield f"{len(before)} and {len(after)} bytes, which differ"


def _of_kernels(before: bytes, after: bytes, *, fatbin_differs: bool) -> Iterator[str]:
    """The differences of kernels.json, which has the fatbin's hash and its own."""
    documents = json.loads(before), json.loads(after)
    for document in documents:
        document.pop(sealed_json.DIGEST, None)
    changes = list(_of_json(*documents))
    of_fatbin = [change for change in changes if change.startswith(("fatbin.sha256: ", "fatbin.bytes: "))]
    if fatbin_differs and of_fatbin:
        changes = [change for change in changes if change not in of_fatbin]
        yield from changes
    else:
        yield from changes or [_OTHER_BYTES]


def _comparable(manifest: dict[str, Any], changed: Set[str]) -> dict[str, Any]:
    """The manifest without what may differ: versions, times, the original's path, hashes of files that changed."""
    kept = {key: value for key, value in manifest.items() if key not in _VERSIONS_AND_TIMES}
    kept["source"] = {key: value for key, value in manifest["source"].items() if key != "path"}
    kept["files"] = {name: None if name in changed else entry for name, entry in manifest["files"].items()}
    checks = manifest["verify"]["checks"]
    by_case = {
        " ".join(str(check[key]) for key in ("provider", "library", "case", "output")): check for check in checks
    }
    return {**kept, "verify": {**manifest["verify"], "checks": by_case}}


def _keep_common_checks(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Drop the cases that only one of two verifications had time for, unless they have none in common."""
    checks = [manifest["verify"]["checks"] for manifest in (before, after)]
    common = checks[0].keys() & checks[1].keys()
    for own in checks if common else ():
        for case in own.keys() - common:
            del own[case]


def _without_sentences(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: None if k in _SENTENCES else _without_sentences(v) for k, v in value.items()}
    return [_without_sentences(item) for item in value] if isinstance(value, list) else value


def _without_version(model: bytes) -> bytes:
    proto = onnx.load_from_string(model)
    kept = [entry for entry in proto.metadata_props if entry.key != _VERSION_MARK]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    proto.producer_version = ""
    return proto.SerializeToString(deterministic=True)


def _of_json(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Every place where two JSON values differ, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(k for k in after if k not in before)]:
            if key not in before or key not in after:
                yield f"{path}.{key} only {'before' if key in before else 'after'}".removeprefix(".")
            else:
                yield from _of_json(before[key], after[key], f"{path}.{key}".removeprefix("."))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for k, pair in enumerate(zip(before, after, strict=True)):
            yield from _of_json(*pair, f"{path}[{k}]")
    elif isinstance(before, list) and isinstance(after, list):
        yield f"{path} has {len(before)} and {len(after)} members"
    elif before != after:
        yield f"{path}: {before!r} and {after!r}"


def compare(before: pathlib.Path, after: pathlib.Path, allowed: Allowed) -> int:
    """Print one line an artifact, and the differences; 0 where none of them differs."""
    names = [sorted(p.name for p in folder.iterdir() if (p / "manifest.json").is_file()) for folder in (before, after)]
    bad = len(set(names[0]) ^ set(names[1]))
    for name in sorted(set(names[0]) ^ set(names[1])):
        print(f"{name}: only {'before' if name in names[0] else 'after'}")
    for name in sorted(set(names[0]) & set(names[1])):
        found = differences(before / name, after / name, allowed)
        print(f"{name}: {f'{len(found)} differences' if found else 'the same'}")
        print("".join(f"    {line[:300]}\n" for line in found[:_SHOWN]), end="")
        bad += bool(found)
    if not (names[0] or names[1]):
        print("neither folder holds an artifact")
    return 1 if bad or not (names[0] or names[1]) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    making = verbs.add_parser("make")
    making.add_argument("out", type=pathlib.Path)
    making.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}")
    making.add_argument("--tree", type=pathlib.Path, default=ROOT, help="the source tree; its library is built")
    making.add_argument("--arch", action="append", help=f"architecture to compile for (default {' '.join(ARCHS)})")
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=pathlib.Path)
    comparing.add_argument("after", type=pathlib.Path)
    comparing.add_argument("--reworded", action="store_true", help="allow other sentences about the same nodes")
    comparing.add_argument("--same-code", action="store_true", help="allow a fatbin of the same machine code")
    args = parser.parse_args(arguments)
    if args.verb == "compare":
        return compare(args.before, args.after, Allowed(args.reworded, args.same_code))
    unknown = set(args.names) - set(CASES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; the names are {', '.join(CASES)}")
    try:
        make(args.out, args.names or list(CASES), args.arch or ARCHS, args.tree.resolve())
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
