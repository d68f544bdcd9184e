"""Check: the figures of an artifact beside those of an earlier one, and which of them are worse."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pydantic

from onnxopt import files, versions
from onnxopt.artifact import archive, folder, result
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.open import open_artifact
from onnxopt.artifact.result import Result
from onnxopt.errors import UsageError
from onnxopt.graph import signature
from onnxopt.paths import StrPath

# What may get worse, in the order of the table, and by how many percent it may by default: the error by percent of the
# limit, everything else by percent of the baseline.
TOLERANCES: dict[str, float] = {
    "error": 5, "quality": 10, "launches": 0, "nodes": 0, "bytes": 1, "time": 2, "size": 1,
}  # fmt: skip
_AT_SIZES = ("launches", "bytes", "time")  # predicted at sizes of dynamic dims
_MOST_BYTES = 1 << 24  # of a file of figures
_SCHEMA_VERSION = 1


class Figure(pydantic.BaseModel):
    """One figure of an artifact. name: a key of TOLERANCES. of: what it is of, "" for the whole model.

    value: of an error, the difference of the worst element over what is allowed; of a quality, rms difference from
    float32 over rms of float32; of a time, predicted milliseconds on a GPU; of size, the model's bytes. None for an
    error that verification does not accept.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    of: str = ""
    value: float | None


class Figures(pydantic.BaseModel):
    """The figures of an artifact. sizes: of the dynamic dims, at which some are predicted."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    schema_version: int = _SCHEMA_VERSION
    onnxopt: str
    model: str
    sizes: dict[str, int]
    figures: tuple[Figure, ...]


class Row(NamedTuple):
    """A figure of the baseline and of the artifact: None where one is not known, infinite where verification failed.

    tolerance: in percent. state: "", "WORSE" or "not compared".
    """

    name: str
    of: str
    before: float | None
    after: float | None
    tolerance: float
    state: str


def figures(path: StrPath) -> Figures:
    """The figures of an artifact, or those that `save` wrote. UsageError or ArtifactError where it is neither."""
    path = Path(path)
    if path.is_dir() or not path.is_file() or archive.is_archive(path):
        opened = open_artifact(path)
        return of(opened.manifest, result.read(opened.folder, opened.manifest))
    return _saved(path)


def of(manifest: Manifest, changed: Result) -> Figures:
    """The figures of an artifact. changed: what optimizing changed."""
    rows = (*_verified(manifest), *_counted(changed), *_times(manifest))
    order = list(TOLERANCES)
    return Figures(
        onnxopt=versions.onnxopt(),
        model=changed.model,
        sizes=changed.sizes,
        figures=tuple(sorted(rows, key=lambda row: order.index(row.name))),
    )


def save(shown: Figures, file: Path) -> None:
    """Write a file that `figures` reads, in place of an earlier one. UsageError where another file is there."""
    if file.is_dir():
        raise UsageError(f"{file}: is a folder; name a file")
    if file.exists():
        _saved(file)
    try:
        folder.replace_text(file, shown.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror or error}") from error


def compare(baseline: Figures, now: Figures, tolerances: Mapping[str, float]) -> list[Row]:
    """A row for each figure. tolerances: percents by which a figure may be worse, beside those of TOLERANCES.

    A provider, a GPU or an output that one of the two lacks is not compared; where that leaves nothing of a figure that
    the baseline has, the figure is worse. UsageError where the two are predicted at different sizes.
    """
    allowed = {**TOLERANCES, **tolerances}
    before, after = (
        {(row.name, row.of): math.inf if row.value is None else row.value for row in shown.figures}
        for shown in (baseline, now)
    )
    names = {name for name, _ in before} & {name for name, _ in after}
    if baseline.sizes != now.sizes and names.intersection(_AT_SIZES):
        raise UsageError(
            f"the baseline is predicted at {signature.describe(baseline.sizes)}, {now.model} at "
            f"{signature.describe(now.sizes)}; optimize both with the same --shape"
        )
    both = {name for name, _ in before.keys() & after.keys()}
    rows = []
    for key in sorted(dict.fromkeys((*before, *after)), key=lambda key: list(TOLERANCES).index(key[0])):
        row = Row(*key, before.get(key), after.get(key), allowed[key[0]], "")
        rows.append(row._replace(state=_state(row, compared=key[0] in both)))
    return rows


def _state(row: Row, *, compared: bool) -> str:
    """compared: whether the baseline and the artifact both have this figure, perhaps of another provider or GPU."""
    if row.after == math.inf:
        return "WORSE"
    if row.before is None or row.after is None:
        return "not compared" if compared or row.before is None else "WORSE"
    share = row.tolerance / 100
    most = row.before + share if row.name == "error" else row.before * (1 + share)
    return "WORSE" if row.after > most else ""


def _verified(manifest: Manifest) -> Iterator[Figure]:
    """The worst error on each provider, with the library and without it, and each output's distance from float32."""
    for row in result.errors(manifest.verify):
        of_provider = f"{row.provider.removesuffix('ExecutionProvider')}, {'library' if row.library else 'no library'}"
        passed = row.status == "passed" and row.of_limit is not None and math.isfinite(row.of_limit)
        yield Figure(name="error", of=of_provider, value=row.of_limit if passed else None)
    for source in (manifest.precision, manifest.reference):
        for quality in () if source is None else source.quality:
            value = 0.0 if quality.sqnr_db is None else 10 ** (-quality.sqnr_db / 20)
            yield Figure(name="quality", of=f"{quality.output}, {quality.source}", value=value)


def _counted(changed: Result) -> Iterator[Figure]:
    for name, change in (
        ("launches", changed.launches),
        ("nodes", changed.nodes),
        ("bytes", changed.bytes_moved),
        ("size", changed.file_bytes),
    ):
        if change.after is not None:
            yield Figure(name=name, value=change.after)


def _times(manifest: Manifest) -> Iterator[Figure]:
    for row in manifest.predicted.times if manifest.predicted is not None else ():
        yield Figure(name="time", of=row.gpu, value=row.after_ms)


def _saved(file: Path) -> Figures:
    """The figures in a file. UsageError where `save` did not write it."""
    try:
        with files.open_regular(file) as opened:
            text = opened.read(_MOST_BYTES)
        saved = Figures.model_validate(json.loads(text))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError:
        raise UsageError(
            f"{file}: is neither an artifact nor a file of figures; `onnxopt check ARTIFACT --save FILE` writes one"
        ) from None
    unknown = [row.name for row in saved.figures if row.name not in TOLERANCES]
    if saved.schema_version != _SCHEMA_VERSION or unknown:
        raise UsageError(f"{file}: was written by onnxopt {saved.onnxopt}, another version; write it again with --save")
    return saved
