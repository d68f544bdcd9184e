"""`python -m tests.fuzz.mutations`: damaged model files through the command, for as long as asked.

The files are the models of tests/support/hostile/hostile_models.py with bits, bytes, fields, names, dims, types and
references changed. Whatever a file holds, `onnxopt optimize` has to end within seconds, with exit code 0, 2 or 3: with
2 and 3 it prints one line that begins with "error:". It may never print a traceback, be killed by a signal, or leave
files.

Each file is opened in a process of its own, which is forked from one that has imported everything.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime

from onnxopt.pipeline import flow
from onnxopt.tools.cli import main as command
from onnxopt.tools.commands import optimize
from tests.support.hostile.hostile_models import MODELS

SECONDS = 20  # of one core's time, for one file
_PATIENCE = 300  # seconds, also on a busy machine
_MEMORY = 8 << 30  # bytes of address space
_CODES = {0, 2, 3}
_FOLDER = Path("build") / "fuzz"
_SAID_EVERY = 200
_DIMS = (0, -1, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 2**24)
_TEXTS = (
    "",
    "x",
    "y",
    "Add",
    "Loop",
    "Constant",
    "ai.onnx",
    "com.microsoft",
    "onnxopt",
    "a\nb",
    "\x1b[31m",
    "n*n",
    "é" * 40,
)
_SHARE_OF_BYTES = 0.25  # of the files: damaged as bytes; the others field by field
_preloaded = (optimize, flow, onnxruntime)


def mutated(seed: int) -> bytes:
    """The damaged file of a seed."""
    draw = random.Random(seed)
    name = draw.choice(sorted(MODELS))
    model = onnx.ModelProto()
    model.CopyFrom(MODELS[name]()[0])
    if draw.random() < _SHARE_OF_BYTES:
        return _damaged_bytes(draw, model.SerializeToString())
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        draw.choice(_MUTATIONS)(draw, model)
    return model.SerializePartialToString()


def _damaged_bytes(draw: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    kind = draw.randrange(5)
    if kind == 0:
        return data[: draw.randrange(len(data))]
    if kind == 1:  # a name or text that is not UTF-8, of the same length
        at = draw.randrange(len(data))
        damaged[at : at + 2] = b"\xff\xfe"
    elif kind == 2:
        at, end = sorted(draw.randrange(len(data)) for _ in range(2))
        del damaged[at : min(end, at + 16)]
    elif kind == 3:
        at = draw.randrange(len(data))
        damaged[at:at] = draw.randbytes(draw.randrange(1, 16))
    else:
        for _ in range(draw.choice((1, 1, 2, 8))):
            damaged[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


# --- fields ----------------------------------------------------------------------------------------------------------


def _messages(message: object) -> list:
    """A message and every message inside it."""
    found, pending = [], [message]
    while pending:
        owner = pending.pop()
        found.append(owner)
        for field, value in owner.ListFields():
            if field.message_type is not None:
                pending.extend(value if field.is_repeated else [value])
    return found


def _any_field(draw: random.Random, model: onnx.ModelProto) -> None:
    """Change, clear or repeat a field of any message."""
    owner = draw.choice(_messages(model))
    fields = owner.ListFields()
    if not fields:
        return
    field, value = draw.choice(fields)
    if draw.random() < 0.3:
        owner.ClearField(field.name)
    elif field.is_repeated:
        at = draw.randrange(len(value))
        if field.message_type is not None:
            if draw.random() < 0.5:
                value.add().CopyFrom(value[at])
            else:
                del value[at]
        elif draw.random() < 0.5:
            del value[at]
        else:
            value[at] = _other(draw, value[at])
    elif field.message_type is None:
        try:
            setattr(owner, field.name, _other(draw, value))
        except ValueError:  # an enum of few numbers, or an int of 32 bits
            owner.ClearField(field.name)


def _other(draw: random.Random, value: object) -> object:
    if isinstance(value, str):
        return draw.choice(_TEXTS)
    if isinstance(value, bytes):
        return draw.choice((b"", value[:-1], value + b"\0", draw.randbytes(len(value))))
    if isinstance(value, float):
        return draw.choice((0.0, -1.0, 1e38, float("inf"), float("nan")))
    return draw.choice((*_DIMS, int(value) + 1))  # type: ignore[call-overload]


def _dim(draw: random.Random, model: onnx.ModelProto) -> None:
    """Give a dim of an input, an output, a declared shape or a constant another size."""
    dims = [m for m in _messages(model) if isinstance(m, onnx.TensorShapeProto.Dimension | onnx.TensorProto)]
    if not dims:
        return
    owner = draw.choice(dims)
    if isinstance(owner, onnx.TensorProto):
        if owner.dims:
            owner.dims[draw.randrange(len(owner.dims))] = draw.choice(_DIMS)
        else:
            owner.dims.append(draw.choice(_DIMS))
    elif draw.random() < 0.3:
        owner.dim_param = draw.choice(_TEXTS)
    else:
        owner.dim_value = draw.choice(_DIMS)


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [m for m in _messages(model) if isinstance(m, onnx.NodeProto)]


def _edge(draw: random.Random, model: onnx.ModelProto) -> None:
    """Let a node read, or write, another value: cycles, values written twice, types that do not fit."""
    nodes = _nodes(model)
    names = [name for node in nodes for name in (*node.input, *node.output)] or ["x"]
    if not nodes:
        return
    node = draw.choice(nodes)
    ends = node.input if draw.random() < 0.7 else node.output
    if not ends or draw.random() < 0.1:
        ends.append(draw.choice(names))
    else:
        ends[draw.randrange(len(ends))] = draw.choice((*names, "", "nobody"))


def _operator(draw: random.Random, model: onnx.ModelProto) -> None:
    """Make a node another operator, or one of another domain."""
    nodes = _nodes(model)
    if nodes:
        node = draw.choice(nodes)
        schemas = onnx.defs.get_all_schemas()
        node.op_type = draw.choice([draw.choice(schemas).name, draw.choice(nodes).op_type])
        if draw.random() < 0.1:
            node.domain = draw.choice(_TEXTS)


def _attribute(draw: random.Random, model: onnx.ModelProto) -> None:
    """Give an attribute another type, or a node another node's attribute."""
    nodes = [node for node in _nodes(model) if node.attribute]
    if not nodes:
        return
    attribute = draw.choice(draw.choice(nodes).attribute)
    if draw.random() < 0.5:
        attribute.type = draw.choice(list(onnx.AttributeProto.AttributeType.values()))
    else:
        copied = onnx.AttributeProto.FromString(attribute.SerializeToString())  # the node may lie inside the attribute
        draw.choice(_nodes(model)).attribute.add().CopyFrom(copied)


def _dtype(draw: random.Random, model: onnx.ModelProto) -> None:
    """Give a value or a constant another dtype, also one that does not exist."""
    typed = [m for m in _messages(model) if isinstance(m, onnx.TypeProto.Tensor | onnx.TensorProto)]
    if typed:
        owner, number = draw.choice(typed), draw.choice([*range(24), 99, -1])
        if isinstance(owner, onnx.TensorProto):
            owner.data_type = number
        else:
            owner.elem_type = number


def _opset(draw: random.Random, model: onnx.ModelProto) -> None:
    """Another opset or IR version, or another domain's."""
    if model.opset_import and draw.random() < 0.8:
        opset = draw.choice(model.opset_import)
        opset.version = draw.choice((*range(1, 27), 0, -1, 2**31, 2**62))
    elif draw.random() < 0.5:
        model.ir_version = draw.choice((0, 1, 3, 4, 7, 13, 99, -1, 2**62))
    else:
        model.opset_import.add(domain=draw.choice(_TEXTS), version=draw.choice((1, 99)))


def _external(draw: random.Random, model: onnx.ModelProto) -> None:
    """Move a constant into a file that is not there, is the model itself, or is outside."""
    tensors = [m for m in _messages(model) if isinstance(m, onnx.TensorProto)]
    if tensors:
        tensor = draw.choice(tensors)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        places = ("m.onnx", "", ".", "w.bin", "/etc/passwd", "a\0b", "x" * 5000)
        tensor.external_data.add(key="location", value=draw.choice(places))
        for key in ("offset", "length"):
            if draw.random() < 0.7:
                tensor.external_data.add(key=key, value=draw.choice(("0", "-1", "4", "x", str(2**70), "")))


def _function(draw: random.Random, model: onnx.ModelProto) -> None:
    """Add functions that call themselves, each other, or two of the next."""
    kind, name = draw.randrange(3), draw.choice([node.op_type for node in _nodes(model)] or ["Add"])
    calls = {
        0: [("f0", 1, "f0")],
        1: [("f0", 1, "f1"), ("f1", 1, "f0")],
        2: [(f"f{k}", 2, f"f{k + 1}") for k in range(40)],
    }
    for own, times, called in calls[kind]:
        nodes = [onnx.helper.make_node(called, ["x"], [f"y{k}"], domain="f") for k in range(times)]
        opsets = [onnx.helper.make_opsetid("f", 1)]
        model.functions.append(onnx.helper.make_function("f", own, ["x"], ["y0"], nodes, opsets))
    last = onnx.helper.make_node("Neg", ["x"], ["y0"])
    opsets = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("f", "f40", ["x"], ["y0"], [last], opsets))
    model.opset_import.add(domain="f", version=1)
    for node in _nodes(model):
        if node.op_type == name and len(node.input) == len(node.output) == 1:
            node.op_type, node.domain = "f0", "f"
            del node.attribute[:]
            break


_MUTATIONS: tuple[Callable[[random.Random, onnx.ModelProto], None], ...] = (
    _any_field, _any_field, _any_field, _dim, _dim, _edge, _edge, _operator, _attribute, _dtype, _opset, _external,
    _function,
)  # fmt: skip


# --- running ---------------------------------------------------------------------------------------------------------


def problem(seed: int, folder: Path) -> str | None:
    """What is wrong with the command's answer to the file of a seed; None where nothing is."""
    work = folder / str(seed)
    work.mkdir()
    (work / "m.onnx").write_bytes(mutated(seed))
    errors = folder / f"{seed}.stderr"
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _run(work, errors)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    text = errors.read_text("utf-8", "replace")
    left = sorted(path.name for path in work.iterdir() if path.name != ".ses")  # which ONNX Runtime writes
    if "Traceback" in text or "please report" in text:
        return f"traceback or defect: {text.strip().splitlines()[-1]}"
    if code in (-signal.SIGALRM, -signal.SIGXCPU, -signal.SIGKILL):
        return f"took more than {SECONDS} s of computing, or {_PATIENCE} s"
    if code not in _CODES:
        return f"exit code {code} after {time.monotonic() - started:.1f} s: {text.strip()}"
    if code and not (text.startswith("error: ") and text.count("\n") == 1):
        return f"exit code {code} without one line: {text}"
    wanted = ["a", "m.onnx"] if code == 0 else ["m.onnx"]
    return None if left == wanted else f"exit code {code} leaves {left}"


def _run(work: Path, errors: Path) -> None:
    """The child: run the command, and end."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        signal.alarm(_PATIENCE)
        os.environ["TMPDIR"] = tempfile.tempdir = str(work)
        target = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(target, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        command(["optimize", str(work / "m.onnx"), "-o", str(work / "a"), "--arch", "none", "--quiet"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this long")
    parser.add_argument("--seed", type=int, default=0, help="first seed; later files take the numbers after it")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="stop after this many files")
    options = parser.parse_args()
    _FOLDER.mkdir(parents=True, exist_ok=True)
    start, seed, findings = time.monotonic(), options.seed, 0
    with tempfile.TemporaryDirectory(prefix="onnxopt.") as folder:
        while time.monotonic() - start < options.seconds and seed - options.seed < options.count:
            if text := problem(seed, Path(folder)):
                findings += 1
                (_FOLDER / f"mutation-{seed}.onnx").write_bytes(mutated(seed))
                print(f"seed {seed}: {text} (build/fuzz/mutation-{seed}.onnx)", flush=True)
            seed += 1
            if (seed - options.seed) % _SAID_EVERY == 0:
                print(f"{seed - options.seed} damaged files: {findings} findings", flush=True)
    print(f"seeds {options.seed} to {seed - 1}: {findings} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
