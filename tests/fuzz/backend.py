"""`python -m tests.fuzz.backend`: ONNX's backend suite through the whole pipeline, every fused kernel on the CPU.

Every case that ONNX Runtime itself computes as the suite expects is optimized with generated inputs, then run on the
inputs of the suite, with the library and without it, and compared with the outputs of the suite.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
from google.protobuf.message import DecodeError

from onnxopt.errors import NotVerifiedError, OnnxoptError
from onnxopt.graph import read, traits
from onnxopt.pipeline import flow
from onnxopt.runtime import sessions
from onnxopt.verification.compare import Limit, compare
from tests.support.fusing import cpu_kernels_forced

_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
_FOLDERS = ("simple", "pytorch-operator", "pytorch-converted")
_BLOCK = 100  # cases a process; ONNX Runtime ends some processes
_SECONDS = 1200  # for a block

# The outcomes of a case. INVALID: ONNX Runtime itself does not compute what the suite expects.
PASSED, UNVERIFIED, INVALID, WRONG, CRASHED = "passed", "unverified", "invalid", "wrong", "crashed"


# Cases that verify cannot draw inputs for, or that give nothing to compare.
NOT_VERIFIABLE = {
    **{
        f"test_affine_grid_{dims}{corners}_expanded": "the size takes part in arithmetic before it is used"
        for dims in ("2d", "3d")
        for corners in ("", "_align_corners")
    },
    "test_identity_opt": "the input is an optional",
    "test_loop16_seq_none": "the input is an optional",
    "test_if_opt": "the output is an optional without a value",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One model of the suite. sets: inputs and expected outputs, in the model's order; None for an absent optional."""

    name: str
    model: onnx.ModelProto
    sets: list[tuple[list[Any], list[Any]]]
    rtol: float = 1e-3
    atol: float = 1e-7


@dataclasses.dataclass(frozen=True)
class Outcome:
    name: str
    outcome: str
    reason: str = ""
    kernels: int = 0

    @property
    def is_expected(self) -> bool:
        if self.name in NOT_VERIFIABLE:
            return self.outcome in (UNVERIFIED, INVALID)
        return self.outcome in (PASSED, INVALID)


@functools.cache
def cases(*, pools: bool = True) -> dict[str, Case]:
    """Every case of the suite that needs no download, by name.

    pools: also those of pools, whose expected outputs take Python 5 of the 6 s that all take.
    """
    from onnx.backend.test.case import node

    if not pools:
        for name in ("averagepool", "lppool", "maxpool"):
            sys.modules[f"{node.__name__}.{name}"] = types.ModuleType(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the NaNs that the cases are made of
        rows = [Case(c.name, c.model, list(c.data_sets or ()), c.rtol, c.atol) for c in node.collect_testcases(None)]
    rows += [_from_folder(path) for folder in _FOLDERS for path in sorted((_DATA / folder).iterdir())]
    rows += [_light(path) for path in sorted((_DATA / "light").glob("*.onnx"))]
    return {row.name: row for row in rows if row.sets}


def _from_folder(path: Path) -> Case:
    model = onnx.load(path / "model.onnx")
    sets = []
    for folder in sorted(path.glob("test_data_set_*")):
        inputs = [_value(folder / f"input_{k}.pb", i) for k, i in enumerate(_fed(model))]
        outputs = [_value(folder / f"output_{k}.pb", o) for k, o in enumerate(model.graph.output)]
        sets.append((inputs, outputs))
    return Case(path.name, model, sets)


def _light(path: Path) -> Case:
    """A model whose input the suite's runner makes: 0, 1, 2, ... over their count."""
    model = onnx.load(path)
    inputs = []
    for value in _fed(model):
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        count = int(np.prod(shape))
        inputs.append((np.arange(count) / count).reshape(shape).astype(np.float32))
    output = _value(path.with_name(f"{path.stem}_output_0.pb"), model.graph.output[0])
    return Case(path.stem, model, [(inputs, [output])])


def _fed(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {i.name for i in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in constants]


def _value(path: Path, declared: onnx.ValueInfoProto) -> Any:
    if not path.is_file():
        return None
    kind = declared.type.WhichOneof("value")
    with contextlib.suppress(DecodeError):
        if kind == "sequence_type":
            return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
        if kind == "optional_type":
            return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def examine(case: Case, folder: Path) -> Outcome:
    """Optimize one case and compare. folder: an empty one."""
    name, path, artifact = case.name, folder / "model.onnx", folder / "artifact"
    onnx.save(case.model, path)
    try:
        own = [_run(path, None, inputs) for inputs, _ in case.sets]
    except Exception as error:  # noqa: BLE001  (ORT's errors have no common class)
        return Outcome(name, INVALID, sessions.one_line(error))
    for outputs, (_, expected) in zip(own, case.sets, strict=True):
        if difference := _difference(expected, outputs, case.rtol, case.atol):
            return Outcome(name, INVALID, difference)
    precision = traits.of(read.load(path).model).precision
    try:
        with cpu_kernels_forced():
            manifest = flow.optimize(path, artifact, archs=()).manifest
    except NotVerifiedError as error:
        return Outcome(name, UNVERIFIED, str(error).partition(": ")[2])
    except OnnxoptError as error:
        return Outcome(name, WRONG, f"{type(error).__name__}: {error}")
    if manifest.left_out:
        return Outcome(name, WRONG, f"left out {manifest.left_out[0].name}: {manifest.left_out[0].reason}")
    library = artifact / "lib" / "libonnxopt_ops.so"
    for inputs, expected in case.sets:
        for lib in (None, library if manifest.kernels else None):
            try:
                outputs = _run(artifact / "model.onnx", lib, inputs)
            except Exception as error:  # noqa: BLE001  (as above)
                return Outcome(name, WRONG, f"{'with' if lib else 'without'} library: {sessions.one_line(error)}")
            difference = _difference(expected, outputs, case.rtol, case.atol)
            if difference and not _within_limit(expected, outputs, precision):
                return Outcome(name, WRONG, f"{'with' if lib else 'without'} library: {difference}")
    return Outcome(name, PASSED, kernels=len(manifest.kernels))


def _within_limit(expected: Sequence[Any], actual: Sequence[Any], precision: str) -> bool:
    """Whether tensors are within verify's own limit of the suite's: fused kernels round 16-bit floats less often."""
    limit = Limit.of(precision, float_decides=True)
    return all(
        isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and compare(one, other, limit).ok
        for one, other in zip(expected, actual, strict=True)
    )


def _run(model: Path, library: Path | None, inputs: Sequence[Any]) -> list[Any]:
    session = sessions.open_session(model, library=library)
    declared = session.get_inputs()
    feeds = {value.name: array for value, array in zip(declared, inputs, strict=False) if array is not None}
    if all(isinstance(array, np.ndarray) for array in feeds.values()):
        outputs = sessions.run(session, feeds)
        names = [o.name for o in session.get_outputs()]
        return [outputs[n] if n in outputs else _sequence(n, outputs) for n in names]
    return list(session.run(None, feeds))


def _sequence(name: str, outputs: dict[str, Any]) -> list[Any] | None:
    rows = [array for key, array in outputs.items() if key.startswith(f"{name}[")]
    return rows or None


def _difference(expected: Sequence[Any], actual: Sequence[Any], rtol: float, atol: float) -> str:
    """The first output that is not as expected, "" where all are."""
    for k, (one, other) in enumerate(zip(expected, actual, strict=False)):
        if isinstance(one, (list, tuple)):
            if inner := _difference(one, other or [], rtol, atol):
                return inner
            if len(one) != len(other or []):
                return f"output {k}: a sequence of {len(other or [])} instead of {len(one)}"
            continue
        if one is None:
            continue
        if other is None:
            return f"output {k} is missing"
        one, other = np.asarray(one), np.asarray(other)
        if one.shape != other.shape:
            return f"output {k}: shape {list(other.shape)} instead of {list(one.shape)}"
        if one.dtype.kind in "OUS":
            if not np.array_equal(one.astype(object), other.astype(object)):
                return f"output {k}: other text"
            continue
        if str(one.dtype) != str(other.dtype):
            return f"output {k}: dtype {other.dtype} instead of {one.dtype}"
        wide = np.complex128 if one.dtype.kind == "c" else np.float64
        if not np.allclose(one.astype(wide), other.astype(wide), rtol=rtol, atol=atol, equal_nan=True):
            return f"output {k}: other values"
    return ""


def run(names: Sequence[str]) -> Iterator[Outcome]:
    """The outcomes of many cases, in processes of their own, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        for outcomes in pool.map(_run_block, [names[k : k + _BLOCK] for k in range(0, len(names), _BLOCK)]):
            yield from outcomes


def _run_block(names: Sequence[str]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while len(outcomes) < len(names):
        rest = names[len(outcomes) :]
        command = [sys.executable, "-m", __spec__.name, "--block", *rest]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
            lines, code = ended.stdout, ended.returncode
        except subprocess.TimeoutExpired as error:
            lines, code = (error.stdout or b"").decode(), -1
        done = [Outcome(**json.loads(line)) for line in lines.splitlines() if line.startswith('{"name"')]
        outcomes += done
        if len(done) < len(rest):
            outcomes.append(Outcome(rest[len(done)], CRASHED, f"the process ended with {code}"))
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="cases; default all")
    parser.add_argument("--block", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    if options.block:
        for name in options.names:
            with tempfile.TemporaryDirectory() as folder:
                print(json.dumps(dataclasses.asdict(examine(cases()[name], Path(folder)))), flush=True)
        return
    counts: collections.Counter[str] = collections.Counter()
    kernels = findings = 0
    for outcome in run(options.names or list(cases())):
        counts[outcome.outcome] += 1
        kernels += outcome.kernels
        if not outcome.is_expected:
            findings += 1
            print(f"{outcome.outcome}: {outcome.name}: {outcome.reason}", flush=True)
    print(f"{dict(counts)}, {kernels} kernels, {findings} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
