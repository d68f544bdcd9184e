"""Schemas: the generated C++ is what the declarations say, and refuses what they refuse."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from onnxopt.program import schema
from onnxopt.program.gemm import FewRowsVariant
from tests.program.meanings import BROKEN, BROKEN_VARIANTS, IN_PYTHON_ALONE, KINDS, MEANINGS, VARIANTS
from tests.program.mutants import damaged, mutants, rules, variant_mutants
from tests.support.custom_ops.custom_ops_damage import set_field
from tests.support.emulation import library_programs

CUSTOM_OPS = Path(__file__).resolve().parents[2] / "custom_ops"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", CUSTOM_OPS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


# No meaning breaks this rule today.
UNBROKEN = {
    (FewRowsVariant, "rows", "are of a product whose operands have the result's dtype"),
}


def verdicts(rows: list[dict[str, Any]], folder: Path) -> list[str]:
    """What the library says of each row: the error, or nothing."""
    file = folder / "rows.json"
    file.write_text(json.dumps(rows))
    program = library_programs.emulation_program("read_meanings")
    return subprocess.run([program, file], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def row(meaning: schema.Meaning) -> dict[str, Any]:
    return {"kind": meaning.KIND, **meaning.to_json()}


def test_generated_files_are_what_the_schemas_say(generate: ModuleType) -> None:
    pytest.importorskip("clang_format")
    for path, text in generate.files():
        assert (CUSTOM_OPS / path).read_text() == generate.formatted(path, text), f"run custom_ops/generate.py: {path}"


def test_every_kind_with_a_schema_has_an_example(generate: ModuleType) -> None:
    records = [record for module in generate.MODULES for record in generate.records_of(module)]
    kinds = {record.KIND for record in records if issubclass(record, schema.Meaning)}
    assert kinds == set(KINDS)


@pytest.mark.parametrize("meaning", MEANINGS, ids=lambda meaning: meaning.KIND)
def test_the_library_refuses_what_breaks_a_limit(meaning: schema.Meaning, tmp_path: Path) -> None:
    """Every field of every record, at each of its limits, of another type and missing; the error names the field."""
    meaning.verify()
    changes, rows = list(damaged(meaning)), [row(meaning)]
    for path, value in changes:
        rows.append(copy.deepcopy(rows[0]))
        set_field(path, value)(rows[-1])
    accepted, *said = verdicts(rows, tmp_path)
    assert accepted == ""
    assert len(said) == len(changes)
    for (path, value), error in zip(changes, said, strict=True):
        assert error, f"{path} = {value} is accepted"
        assert path.split(".")[-1] in error, f"{path} = {value}: {error}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_and_verify_agree(kind: str, tmp_path: Path) -> None:
    """Mutants at and beside the limits get the same verdict, and each rule is the first that some of them break."""
    of_kind = [meaning for meaning in MEANINGS if kind == meaning.KIND]
    every = [mutant for k, meaning in enumerate(of_kind) for mutant in mutants(meaning, k)]
    every += [meaning for meaning in BROKEN if kind == meaning.KIND]
    broken = [meaning.problem() for meaning in every]
    said = verdicts([row(meaning) for meaning in every], tmp_path)
    every_rule = {*rules(type(every[0]))}
    unbroken = every_rule - IN_PYTHON_ALONE
    for meaning, ours, theirs in zip(every, broken, said, strict=True):
        assert (ours is None) == (theirs == ""), f"{meaning}\n{ours}\n{theirs}"
        if ours is not None and (rule := (re.sub(r"\[\d+\]", "", ours[0]), ours[1])) in every_rule:
            assert ours[1] in theirs, f"{meaning}\n{ours}\n{theirs}"
            unbroken.discard(rule)
    assert not unbroken, "no mutant breaks these rules first"
    assert 0.05 < sum(ours is None for ours in broken) / len(every) < 0.95


def test_every_class_of_entry_points_has_an_example(generate: ModuleType) -> None:
    records = [record for module in generate.MODULES for record in generate.records_of(module)]
    assert {r for r in records if issubclass(r, schema.Variant)} == {type(variant) for variant, _ in VARIANTS}


def test_the_library_refuses_entry_points_that_break_a_limit(tmp_path: Path) -> None:
    """Every field at each of its limits, of another type and missing; the error names the field."""
    expected, rows = [], []
    for variant, meaning in VARIANTS:
        assert variant.problem(meaning) is None
        changes = [(path, value) for path, value in damaged(variant) if not (path in ("role", "rows") and value is ...)]
        for path, value in (("", None), *changes):
            rows.append({**row(meaning), "variants": [copy.deepcopy(variant.to_json())]})
            if path:
                set_field(path, value)(rows[-1]["variants"][0])
            expected.append((type(variant), path, value))
    for (cls, path, value), error in zip(expected, verdicts(rows, tmp_path), strict=True):
        assert bool(error) == bool(path), f"{cls.__name__}: {path} = {value}: {error}"
        assert path.split(".")[-1] in error, f"{cls.__name__}: {path} = {value}: {error}"


def test_the_library_and_python_agree_on_entry_points(tmp_path: Path) -> None:
    """As on meanings."""
    numbers = [sum(type(one) is type(other) for other, _ in VARIANTS[:k]) for k, (one, _) in enumerate(VARIANTS)]
    every = [
        (m, meaning)
        for k, (one, meaning) in zip(numbers, VARIANTS, strict=True)
        for m in variant_mutants(one, meaning, k)
    ]
    every += BROKEN_VARIANTS
    said = verdicts([{**row(meaning), "variants": [variant.to_json()]} for variant, meaning in every], tmp_path)
    broken = [variant.problem(meaning) for variant, meaning in every]
    unbroken = {(type(variant), *rule) for variant, _ in VARIANTS for rule in rules(type(variant))} - UNBROKEN
    for (variant, meaning), ours, theirs in zip(every, broken, said, strict=True):
        assert (ours is None) == (theirs == ""), f"{variant}\n{meaning}\n{ours}\n{theirs}"
        if ours is not None and (type(variant), *ours) in unbroken:
            assert ours[1] in theirs, f"{variant}\n{meaning}\n{ours}\n{theirs}"
            unbroken.discard((type(variant), *ours))
    assert not unbroken, "no mutant breaks these rules first"
    assert 0.05 < sum(ours is None for ours in broken) / len(every) < 0.95
