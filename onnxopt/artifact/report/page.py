"""report.html: rendered from a view, carrying its own facts, written and written anew."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from onnxopt.artifact import layout
from onnxopt.artifact.folder import hash_file, replace_text, write_manifest
from onnxopt.artifact.manifest import Manifest
from onnxopt.artifact.report import views
from onnxopt.artifact.report.facts import Facts, embedded, read_facts
from onnxopt.artifact.report.gpus import roofs
from onnxopt.artifact.summary import counted, limit_text, size_text
from onnxopt.errors import UsageError
from onnxopt.graph.signature import Tensor, tensor_text

_LONG = 1e7  # numbers from here on are written with an exponent


def render(folder: Path, manifest: Manifest, facts: Facts) -> str:
    """The page for an artifact folder; the same artifact and facts give the same text."""
    view = views.build(folder, manifest, facts, roofs({m.device for m in facts.measurements}))
    script = Markup(_resource("page.js"))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            view=view,
            manifest=manifest,
            style=Markup(_resource("page.css")),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            facts=Markup(embedded(facts)),
        )
    )


def write(folder: Path, manifest: Manifest, facts: Facts) -> Manifest:
    """Write the page into an artifact folder; returns the manifest with its hash added, which is yet to be written."""
    path = folder / layout.REPORT
    replace_text(path, render(folder, manifest, facts))
    files = {**manifest.files, layout.REPORT: hash_file(path)}
    return manifest.model_copy(update={"files": dict(sorted(files.items()))})


def update(folder: Path, manifest: Manifest, facts: Facts) -> Manifest:
    """Write the page of a finished artifact again, then its hash into the manifest; each file changes in one step.

    UsageError where the manifest is signed: the signature would not cover the new page.
    """
    if (folder / layout.SIGNATURE).exists():
        raise UsageError(f"{folder}: is signed as it is now; write the report elsewhere with -o")
    try:
        updated = write(folder, manifest, facts)
        write_manifest(folder, updated)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from error
    return updated


def renewed(folder: Path, manifest: Manifest) -> Manifest:
    """Write the page again to show a changed manifest; returns the manifest with the page's hash.

    An artifact without a page stays without.
    """
    return write(folder, manifest, read_facts(folder, manifest)) if layout.REPORT in manifest.files else manifest


def _resource(name: str) -> str:
    return (resources.files("onnxopt.artifact.report") / name).read_text("utf-8")


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "size": _size,
        "figure": _figure,
        "fixed": _fixed,
        "ms": _milliseconds,
        "units": _units,
        "share": limit_text,
        "counted": counted,
        "shapes": _shapes,
        "words": _words,
        "tensors": _tensors,
    }
    return environment


def _size(count: float | None) -> str:
    return "?" if count is None else size_text(count).replace(" ", "\N{NO-BREAK SPACE}")


def _figure(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if 10**digits <= abs(value) < _LONG else f"{value:.{digits}g}"


def _milliseconds(value: float) -> str:
    return f"{value:.3g}\N{NO-BREAK SPACE}ms"


def _fixed(value: float, decimals: int) -> str:
    """A number of a column, with so many digits after the point; "–" for 0."""
    return f"{value:.{decimals}f}".replace("-", "\N{MINUS SIGN}") if round(value, decimals) else "–"


def _units(text: str) -> str:
    """The text with its units kept on the line of their numbers."""
    text = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return re.sub(r"(?<=\d) (?=%|[kMGT]?B\b|[mµ]s\b|times\b)", "\N{NO-BREAK SPACE}", text)


def _shapes(texts: Sequence[Any]) -> str:
    """Shapes with a space after each comma, so that they can break."""
    return ", ".join(str(t).replace(",", ", ") for t in texts)


def _words(name: str) -> Markup:
    """A name that may break before its capitals and after its domain, _, / and dots, so that it fits a phone."""
    return Markup("<wbr>").join(re.split(r"(?<=[a-z])(?=[A-Z])|(?<=::)|(?<=[_/.])(?=[^_/.])", name))


def _tensors(tensors: Sequence[Tensor]) -> str:
    return _shapes([tensor_text(t) for t in tensors])
