"""Values that break a field's limits, and mutants at and beside the limits of meanings and entry points."""

from __future__ import annotations

import ast
import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from onnxopt.program import fields, schema
from onnxopt.program.core import Transform, TransformField


def damaged(meaning: schema.Record) -> Iterator[tuple[str, Any]]:
    """Paths in a meaning's JSON, and values there that break the limits of the field alone; `...` for no such key."""
    if not isinstance(meaning, schema.Meaning):
        yield from _damaged(meaning, "", 0)
        return
    for dtypes in ("inputs", "outputs"):
        yield from ((dtypes, value) for value in (..., "float16", [], ["half"], [7], ["float16"] * 99))
    yield from _damaged(meaning, "", len(meaning.inputs))


def _damaged(record: schema.Record, prefix: str, inputs: int) -> Iterator[tuple[str, Any]]:
    for name, field in record.schema().items():
        value, path = getattr(record, name), prefix + (field.key or name)
        if value is None or (field.beside and getattr(record, field.beside) is None) or (field.omit and not value):
            continue
        if not (field.optional or field.omit or field.beside):
            yield path, ...
        yield from ((path, wrong) for wrong in _wrong(field, value, inputs))
        if isinstance(field, fields.Nested):
            yield from _damaged(value, f"{path}.", inputs)
        if isinstance(field, TransformField):
            for k, one in enumerate(value.reads):
                yield from _damaged(one, f"{path}.reads.{k}.", inputs)
        if isinstance(field, fields.Several):
            for k, one in enumerate(value):
                yield from _damaged(one, f"{path}.{k}.", inputs)


def _wrong(field: fields.Field, value: Any, inputs: int) -> list[Any]:
    match field:
        case fields.Integer():
            multiples = [field.low + 1] if field.multiple > 1 else []
            return [field.low - 1, field.high + 1, 2**64, 0.5, "1", None, [1], *multiples]
        case fields.Integers(count=None):
            return [[field.high + 1], [field.low - 1], [field.low] * (field.max_count + 1), 1, ["1"]]
        case fields.Integers():
            return [list(value)[1:], [*value, 1], [field.low - 1, *value[1:]], [field.high + 1, *value[1:]], 1]
        case fields.Number():
            halves = [0.5] if field.whole else []
            low = field.low if field.above else -abs(field.low) * 2 - 1
            return ["1", None, float(field.high) * 2, low, *halves]
        case fields.Choice():
            return ["nonsense", "", 7, None]
        case fields.Flag():
            return [1, "true", None]
        case fields.Operand():
            return [inputs, -1, 0.5, "0", None]
        case fields.Unread():
            return [[inputs], [-1], 3]
        case fields.Several():
            return [*([[]] if field.low else []), [7], 7, {}]
        case _:
            return [7, None, []]


Path = tuple[str | int, ...]  # to a record of a meaning: names of fields, positions in tuples
RANDOM, PER_RULE = 150, 40  # mutants of a meaning, and more of each rule
_STORED = ("float16", "float32", "bfloat16", "uint8", "int64", "float8e4m3fn")


def mutants(meaning: schema.Meaning, seed: int) -> Iterator[schema.Meaning]:
    """The meaning with some of its fields at or beside their limits, of the right types: any one to three fields, each
    operand's dtype, and the fields that a rule reads, for each rule."""
    for k in range(RANDOM):
        rng, changed = random.Random(f"{seed} {meaning.KIND} {k}"), meaning
        for _ in range(rng.randint(1, 3)):
            changed = _mutant(changed, meaning, rng)
        if _is_whole(changed):
            yield changed
    for path, record in _records(meaning):
        for name, field in record.schema().items():
            if isinstance(field, fields.Operand) and (at := getattr(record, name)) is not None:
                for dtype in _STORED:
                    yield dataclasses.replace(meaning, inputs=(*meaning.inputs[:at], dtype, *meaning.inputs[at + 1 :]))
        for at, rule in enumerate(record.RULES):
            rng = random.Random(f"{seed} {meaning.KIND} {path} {at}")
            for _ in range(PER_RULE):
                changed = _replaced(meaning, path, lambda one, text=rule.holds, r=rng: _directed(one, text, meaning, r))
                if _is_whole(changed):
                    yield changed


def variant_mutants(variant: schema.Variant, meaning: schema.Meaning, seed: int) -> Iterator[schema.Variant]:
    """The entry point with one to three fields at or beside their limits, and with those that a rule reads."""
    for k in range(RANDOM):
        rng, changed = random.Random(f"{seed} {type(variant)} {k}"), variant
        for _ in range(rng.randint(1, 3)):
            changed = _mutant(changed, meaning, rng)
        yield changed
    for at, rule in enumerate(variant.RULES):
        rng = random.Random(f"{seed} {type(variant)} {at}")
        yield from (_directed(variant, rule.holds, meaning, rng) for _ in range(PER_RULE))


def rules(record: type[schema.Record], prefix: str = "") -> Iterator[tuple[str, str]]:
    """What `problem` returns for each rule of a record and of the records in it, without positions in tuples."""
    yield from ((prefix + rule.field, rule.problem) for rule in record.RULES)
    for name, field in record.schema().items():
        if isinstance(field, fields.Operand) and field.same_as:
            yield prefix + name, f"has another dtype than {field.same_as}"
        if isinstance(field, fields.Nested | fields.Several) and not issubclass(field.record, schema.Meaning):
            yield from rules(field.record, f"{prefix}{name}.")


def _records(record: schema.Record, path: Path = ()) -> Iterator[tuple[Path, schema.Record]]:
    yield path, record
    for name, field in record.schema().items():
        value = getattr(record, name)
        if isinstance(field, fields.Nested) and value is not None:
            yield from _records(value, (*path, name))
        elif isinstance(field, fields.Several):
            for k, one in enumerate(value):
                yield from _records(one, (*path, name, k))


def _replaced(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    first, *rest = path
    if isinstance(value, tuple):
        return tuple(_replaced(one, tuple(rest), change) if k == first else one for k, one in enumerate(value))
    return dataclasses.replace(value, **{first: _replaced(getattr(value, str(first)), tuple(rest), change)})


def _directed(record: Any, text: str, meaning: schema.Meaning, rng: random.Random) -> Any:
    """The record with some of the fields that a rule reads at or beside the rule's own numbers and names."""
    nodes = [*ast.walk(ast.parse(text, mode="eval"))]
    names = {n.id if isinstance(n, ast.Name) else n.attr for n in nodes if isinstance(n, ast.Name | ast.Attribute)}
    constants = tuple(n.value for n in nodes if isinstance(n, ast.Constant))
    computed = {field.name for field in dataclasses.fields(record) if not field.init}
    for name in sorted(names & {"inputs", "outputs"}):
        if isinstance(record, schema.Meaning) and rng.random() < 0.5:
            record = _retyped(record, name, rng, tuple(c for c in constants if c in _STORED))
    for name, field in _fields_of(record).items():
        value = getattr(record, name)
        if name not in names or rng.random() < 0.4:
            continue
        if isinstance(field, fields.Nested) and value is not None and rng.random() < 0.8:
            changed = _directed(value, text, meaning, rng)
        else:
            changed = _other(field, value, meaning, rng, constants)
        record = dataclasses.replace(record, **{n: v for n, v in [(name, changed)] if n not in computed})
        if name in computed:
            object.__setattr__(record, name, changed)
    return record


def _retyped(meaning: schema.Meaning, name: str, rng: random.Random, more: tuple[str, ...] = ()) -> schema.Meaning:
    """One of the inputs or outputs is of another dtype, or all inputs and outputs that were of its dtype."""
    stored = list(getattr(meaning, name))
    at, dtype = rng.randrange(len(stored)), rng.choice((*_STORED, *more, meaning.outputs[0]))
    if rng.random() < 0.5:
        old = stored[at]
        both = {n: tuple(dtype if d == old else d for d in getattr(meaning, n)) for n in ("inputs", "outputs")}
        return dataclasses.replace(meaning, **both)
    stored[at] = dtype
    return dataclasses.replace(meaning, **{name: tuple(stored)})


def _is_whole(record: schema.Record) -> bool:
    """Whether JSON has every field that is not the default."""
    for name, field in record.schema().items():
        value = getattr(record, name)
        if field.beside and getattr(record, field.beside) is None and value != getattr(type(record), name):
            return False
        inner = value.reads if isinstance(value, Transform) else value
        parts = inner if isinstance(inner, tuple) else (inner,)
        if not all(_is_whole(part) for part in parts if isinstance(part, schema.Record)):
            return False
    return True


@dataclasses.dataclass(frozen=True)
class OneOf(fields.Field):
    """One of some numbers, of an entry point."""

    numbers: tuple[int, ...]


def _fields_of(record: schema.Record) -> Mapping[str, fields.Field]:
    """The schema, and of an entry point also what all kinds' entry points have."""
    if not isinstance(record, schema.Variant):
        return record.schema()
    threads, unroll = OneOf((1, 32, 33, 64, 96, 128, 384, 1024)), OneOf((1, 2, 4, 8))
    index, vector = OneOf((32, 64)), OneOf((1, 2, 4, 8, 16, 32))
    return {**record.schema(), "threads": threads, "unroll": unroll, "index": index, "vector": vector}


def _mutant(record: Any, meaning: schema.Meaning, rng: random.Random) -> Any:
    own = _fields_of(record)
    names = [name for name in own if not isinstance(own[name], fields.Code)]
    if isinstance(record, schema.Meaning) and rng.random() < 0.2:
        return _retyped(record, rng.choice(("inputs", "outputs")), rng)
    name = rng.choice(names)
    if name not in {f.name for f in dataclasses.fields(record) if f.init}:
        return record
    value = _other(own[name], getattr(record, name), meaning, rng)
    return dataclasses.replace(record, **{name: value})


def _other(
    field: fields.Field, value: Any, meaning: schema.Meaning, rng: random.Random, constants: tuple[Any, ...] = ()
) -> Any:
    """Another value of a field. constants: of a rule that reads it."""
    numbers = [c + d for c in constants if type(c) in (int, float) for d in (-1, 0, 1)]
    if field.optional and rng.random() < 0.3:
        return None
    match field:
        case fields.Integer():
            near = [value + d for d in (-1, 1)] if value is not None else []
            limits = [field.low, field.low + 1, field.low + field.multiple, field.high]
            choices = [*limits, *numbers] if numbers and rng.random() < 0.6 else [*limits, 8, 32, *near]
            return rng.choice([n for n in choices if n >= 0])
        case OneOf():
            return rng.choice(field.numbers)
        case fields.Integers():
            several, near = list(value), [n for n in numbers if field.low <= n <= field.high]
            if several:
                several[rng.randrange(len(several))] = rng.choice((field.low, field.low + 1, 2, 3, *near))
            return tuple(several[:-1] if field.count is None and rng.random() < 0.3 else several)
        case fields.Number():
            return float(rng.choice((0.0, 1.0, -1.0, 0.5, field.low, field.high)))
        case fields.Choice():
            return rng.choice((*field.names, *(c for c in constants if c in field.names)))
        case fields.Flag():
            return not value
        case fields.Operand():
            return rng.randrange(len(meaning.inputs))
        case fields.Unread():
            return tuple(rng.sample(range(len(meaning.inputs)), rng.randint(0, 1)))
        case TransformField() if value is not None and value.reads:
            at = rng.randrange(len(value.reads))
            reads = (_mutant(one, meaning, rng) if k == at else one for k, one in enumerate(value.reads))
            return dataclasses.replace(value, reads=tuple(reads))
        case fields.Nested() if value is not None:
            return _mutant(value, meaning, rng)
        case fields.Several() if value:
            at = rng.randrange(len(value))
            return tuple(_mutant(one, meaning, rng) if k == at else one for k, one in enumerate(value))
    return value
