"""Writes the generated folders of program/, kernel_file/, call/ and registry/: what C++ has of onnxopt/program/.

    python custom_ops/generate.py

The files are committed, so that building needs no Python; tests/program/test_generated.py compares them.
"""

from __future__ import annotations

import dataclasses
import graphlib
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from generator import kinds, readers, shapes, structs  # noqa: E402

from onnxopt import program  # noqa: E402
from onnxopt.costs import header  # noqa: E402
from onnxopt.program import fields, schema  # noqa: E402
from onnxopt.program.core import TransformField  # noqa: E402


def _visible(module: str) -> list[type[schema.Record]]:
    """The records that a module of program/ defines or imports; of entry points, those with a generated reader."""
    values = vars(importlib.import_module(f"onnxopt.program.{module}")).values()
    records = [value for value in values if isinstance(value, type) and issubclass(value, schema.Record)]
    records = [record for record in records if not issubclass(record, schema.Variant) or hasattr(record, "KERNEL")]
    return [record for record in records if dataclasses.is_dataclass(record)]


def records_of(module: str) -> list[type[schema.Record]]:
    """The records that a module of program/ defines, in their order."""
    return [record for record in _visible(module) if _home(record) == module]


def _home(record: type[schema.Record]) -> str:
    return record.__module__.rpartition(".")[2]


def modules() -> list[str]:
    """The modules of program/ that define records, each after those whose records it imports."""
    names = [info.name for info in pkgutil.iter_modules(program.__path__) if records_of(info.name)]
    graph = {name: sorted({_home(record) for record in _visible(name)} - {name}) for name in names}
    return list(graphlib.TopologicalSorter(graph).static_order())


MODULES = tuple(modules())


def enums_of(records: Iterable[type[schema.Record]]) -> dict[str, list[str]]:
    """The enums of the records' fields, and the names in each."""
    enums: dict[str, list[str]] = {}
    for record in records:
        for field in record.schema().values():
            if isinstance(field, fields.Choice):
                names = enums.setdefault(field.enum, [])
                names += [name for name in field.names if name not in names]
    return enums


def files() -> Iterator[tuple[Path, str]]:
    """Every generated file and its text."""
    records = {module: records_of(module) for module in MODULES}
    home: dict[str, str] = {}  # of an enum
    for module in MODULES:
        enums = {enum: names for enum, names in enums_of(records[module]).items() if enum not in home}
        home |= dict.fromkeys(enums, module)
        used = {home[enum] for enum in enums_of(records[module])}
        used |= {_home(record) for record in _nested(records[module])}
        includes = [f"program/generated/{other}.h" for other in used - {module}]
        if any(isinstance(field, TransformField) for record in records[module] for field in record.schema().values()):
            includes.append("program/transform.h")
        if any(isinstance(field, fields.Code) for record in records[module] for field in record.schema().values()):
            includes.append("program/programs/pointwise.h")
        yield Path(f"program/generated/{module}.h"), structs.header(module, records[module], enums, includes)
        yield Path(f"kernel_file/generated/{module}.cc"), readers.source(module, records[module])
    every = [record for module in MODULES for record in records[module]]
    yield Path("kernel_file/generated/readers.h"), readers.header(every, MODULES)
    yield header.PATH.relative_to("custom_ops"), header.text()
    for name, text in shapes.files(every):
        yield Path("call/generated") / name, text
    yield Path("registry/generated/kinds.cc"), kinds.source(HERE, every)


def formatted(path: Path, text: str) -> str:
    """The text as `make check` wants it."""
    command = [Path(sys.prefix) / "bin" / "clang-format", f"--assume-filename={HERE / path}"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _nested(records: Iterable[type[schema.Record]]) -> Iterator[type[schema.Record]]:
    for record in records:
        for field in record.schema().values():
            if isinstance(field, fields.Nested | fields.Several):
                yield field.record


if __name__ == "__main__":
    for path, text in files():
        result = formatted(path, text)
        if not (HERE / path).is_file() or (HERE / path).read_text() != result:  # what is the same is not compiled again
            (HERE / path).parent.mkdir(exist_ok=True)
            (HERE / path).write_text(result)
