"""Exported models: real architectures with seeded random weights, exported from PyTorch on first use.

A name is ARCHITECTURE[_tiny][_fp16][_dyn], such as `bert`, `bert_dyn`, `bert_fp16_dyn`, `bert_tiny_fp16`. Base models
have the published widths and depths; tiny ones are for tests. `_dyn` has a dynamic batch and, for token models, a
dynamic sequence. `llama_decode` is one step of generation: one token, and the keys and values of the 512 tokens before
it (`_dyn`: of any number).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from models.architectures import FAMILIES
from models.entries import CACHE, Input, ModelUnavailable

ARCHITECTURES = ("bert", "vit", "llama", "convnext", "efficientnet", "whisper_encoder", "llama_decode")
SIZES = ("tiny", "base")
_TOKENS = frozenset({"bert", "llama", "llama_decode"})
_SHAPES = {  # (architecture, size) -> shape of the one input "x"; base as the skeletons of the GPU measurements
    ("bert", "base"): (8, 128),
    ("vit", "base"): (16, 3, 224, 224),
    ("llama", "base"): (1, 512),
    ("convnext", "base"): (16, 3, 224, 224),
    ("efficientnet", "base"): (32, 3, 224, 224),
    ("whisper_encoder", "base"): (4, 80, 3000),
    ("llama_decode", "base"): (1, 1),
    ("bert", "tiny"): (2, 16),
    ("vit", "tiny"): (2, 3, 32, 32),
    ("llama", "tiny"): (2, 16),
    ("convnext", "tiny"): (2, 3, 64, 64),
    ("efficientnet", "tiny"): (2, 3, 64, 64),
    ("whisper_encoder", "tiny"): (2, 8, 100),
    ("llama_decode", "tiny"): (2, 1),
}
# (size) -> decoder layers, and the shape of each one's keys and values: batch, heads, tokens so far, width
_CACHES = {"base": (8, (1, 8, 512, 128)), "tiny": (2, (2, 2, 12, 16))}
# Tiny models that no test of every run reads: each is exported alone when it is asked for.
RARE = frozenset(
    {
        "bert_tiny_fp16", "vit_tiny_fp16_dyn", "convnext_tiny_fp16_dyn", "efficientnet_tiny_fp16_dyn",
        "whisper_encoder_tiny_fp16", "llama_decode_tiny",
    }
)  # fmt: skip
_VOCABULARY = {"tiny": 128, "base": 30000}


@dataclasses.dataclass(frozen=True)
class Exported:
    """A model exported from a transformers configuration with random weights."""

    architecture: str
    size: str
    fp16: bool
    dynamic: bool
    kind = "exported"
    licence = "Apache-2.0 (architecture), random weights"
    ort_cannot_run = ""

    @property
    def name(self) -> str:
        tiny = "_tiny" if self.size == "tiny" else ""
        return self.architecture + tiny + "_fp16" * self.fp16 + "_dyn" * self.dynamic

    @property
    def inputs(self) -> dict[str, Input]:
        shape = _SHAPES[self.architecture, self.size]
        dtype = "float16" if self.fp16 else "float32"
        if self.architecture not in _TOKENS:
            return {"x": Input(dtype, shape)}
        inputs = {"x": Input("int64", shape, {"below": _VOCABULARY[self.size]})}
        if self.architecture == "llama_decode":
            layers, past = _CACHES[self.size]
            names = (f"{kind}_{k}" for k in range(layers) for kind in ("past_key", "past_value"))
            inputs.update((name, Input(dtype, past)) for name in names)
        return inputs

    @property
    def dynamic_dims(self) -> dict[int, str]:
        """Axis of "x" -> name of its symbolic dim; empty for a static model."""
        return self.dynamic_shapes.get("x", {})

    @property
    def dynamic_shapes(self) -> dict[str, dict[int, str]]:
        """Input -> axis -> name of its symbolic dim; empty for a static model."""
        if not self.dynamic:
            return {}
        if self.architecture == "llama_decode":
            return {name: {0: "batch"} if name == "x" else {0: "batch", 2: "past"} for name in self.inputs}
        return {"x": {0: "batch", 1: "sequence"} if self.architecture in _TOKENS else {0: "batch"}}


def exports() -> dict[str, Exported]:
    """Every exported model by name: architectures x sizes x dtypes x (static, dynamic)."""
    rows = [
        Exported(architecture, size, fp16, dynamic)
        for size in SIZES
        for architecture in ARCHITECTURES
        for fp16 in (False, True)
        for dynamic in (False, True)
    ]
    return {row.name: row for row in rows}


def is_cached(entry: Exported, cache: pathlib.Path = CACHE) -> bool:
    """Whether the model was exported by today's recipe: the text of what exports it, and the model's row."""
    note = export_note(entry, cache)
    return note.get("recipe") == _recipe(entry) and (cache / f"{entry.name}.onnx").is_file()


def export_note(entry: Exported, cache: pathlib.Path = CACHE) -> dict[str, object]:
    """What was noted at export: recipe, seconds, versions of torch and transformers. Empty if never exported."""
    try:
        return dict(json.loads((cache / f"{entry.name}.json").read_text()))
    except (OSError, ValueError):
        return {}


def export(name: str, cache: pathlib.Path = CACHE, *, alone: bool = False) -> pathlib.Path:
    """Path of the exported model, exported in another process unless the cache holds it.

    That process takes longer to start than to export a tiny model. So it exports all tiny models of the family that the
    cache lacks but RARE ones, unless `alone`. Raises ModelUnavailable where torch or transformers is missing or the
    export fails.
    """
    rows = exports()
    if name not in rows:
        raise ModelUnavailable(f"no exported model {name!r}: `python -m models list` shows the names")
    entry = rows[name]
    family = FAMILIES[entry.architecture]
    tiny = [v for v in rows.values() if (FAMILIES[v.architecture], v.size) == (family, "tiny")]
    together = [v for v in tiny if v.name not in RARE]
    with _one_at_a_time(cache, f"{family}_{entry.size}"):
        if not is_cached(entry, cache):
            others = [] if alone or entry not in together else together
            _export([entry, *(v for v in others if v != entry and not is_cached(v, cache))], cache)
    return cache / f"{name}.onnx"


def _export(entries: Sequence[Exported], cache: pathlib.Path) -> None:
    """Export the entries in one process; ModelUnavailable where the first one is not exported."""
    with tempfile.TemporaryDirectory(dir=cache, prefix=f".{entries[0].name}.") as folder:
        rows = json.dumps([dataclasses.asdict(entry) for entry in entries])
        root = pathlib.Path(__file__).parents[1]
        command = [sys.executable, "-m", "models.exporting", rows, folder]
        result = subprocess.run(command, cwd=root, capture_output=True, text=True)
        for entry in entries:
            note = pathlib.Path(folder) / f"{entry.name}.json"
            if note.is_file():
                note.write_text(json.dumps({"recipe": _recipe(entry), **json.loads(note.read_text())}))
                # the note last: it is what says that the other files are complete
                for suffix in (".onnx.data", ".onnx", ".json"):
                    file = note.with_suffix(suffix)
                    if file.exists():
                        os.replace(file, cache / file.name)
    if not is_cached(entries[0], cache):
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no message"]
        raise ModelUnavailable(f"cannot export {entries[0].name}: {lines[-1]} (needs torch and transformers)")


def _recipe(entry: Exported) -> str:
    folder = pathlib.Path(__file__).parent
    sources = ("exporting.py", "architectures/first_output.py", f"architectures/{FAMILIES[entry.architecture]}.py")
    text = "\n".join((folder / source).read_text() for source in sources)
    return hashlib.sha256(f"{text}\n{entry}\n{entry.inputs}".encode()).hexdigest()[:16]


@contextlib.contextmanager
def _one_at_a_time(cache: pathlib.Path, name: str) -> Iterator[None]:
    """Parallel test workers wait for the first one's export instead of repeating it."""
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
