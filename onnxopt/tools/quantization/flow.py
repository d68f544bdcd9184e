"""Quantize a model file: place, quantize, compare with float32, put nodes back, write."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

import onnx
import onnx_ir as ir

from onnxopt import versions
from onnxopt.artifact.folder import check_output, staging, temporary_files, temporary_folder
from onnxopt.errors import ModelError, NotVerifiedError, UsageError, step
from onnxopt.graph import normalize, read, write
from onnxopt.graph import traits as model_traits
from onnxopt.graph.refusal import Refusal
from onnxopt.graph.traits import Traits
from onnxopt.paths import StrPath
from onnxopt.phases import Progress, silent
from onnxopt.pipeline.readable_source import readable
from onnxopt.runtime import time_limit
from onnxopt.runtime.sessions import CPU, RunError
from onnxopt.tools.quantization import lowering, products, times
from onnxopt.tools.quantization.asked import Asked, asked
from onnxopt.tools.quantization.by_library import Quantizer
from onnxopt.tools.quantization.options import Quantization, QuantizationChanges
from onnxopt.tools.quantization.products import Product
from onnxopt.tools.quantization.result import Quantized
from onnxopt.tools.quantization.sensitivity import Sensitivity
from onnxopt.tools.quantization.spelling import spell_out_gemms
from onnxopt.tools.quantization.times import Times
from onnxopt.verification.coverage import Coverage, ModelFile
from onnxopt.verification.lowering import restoring
from onnxopt.verification.lowering.goals import Goals, Quality
from onnxopt.verification.lowering.quality import check_inputs, quality_of, refuse_missed, worst
from onnxopt.verification.reference import NotRunnable, Reference
from onnxopt.verification.refusals import original_runs
from onnxopt.verification.sampling.user_data import UserData, check_alone, read_data
from onnxopt.verification.verify import references

MARK = "onnxopt.quantized"
_SECONDS = 30.0  # of each search for nodes that are not quantized


def quantize(
    model: StrPath,
    output: StrPath,
    options: Quantization | None = None,
    *,
    progress: Progress | None = None,
    **changes: Unpack[QuantizationChanges],
) -> Quantized:
    """Write the float32 model file `model`, quantized, as the new model file `output`, which `optimize` takes.

    options: how. changes: fields of `Quantization` by name, in place of those of `options`: quantize("m.onnx",
    "q.onnx", format="int4"). calibrate, needed for activations: .npz files or mappings of arrays by name. measured:
    files that `tune` wrote.

    Calibration, scales and packing are ONNX Runtime's. A failure leaves no partial file. Raises ModelError,
    UsageError, NotVerifiedError where ONNX Runtime does not run the model here, or not in time, and DisagreementError
    where an output misses what was asked for.
    """
    model, output = Path(model), Path(output)
    options = dataclasses.replace(options or Quantization(), **changes)
    want = asked(options)
    for path in (output, _weights_of(output)):
        check_output(path)
    time_limit.check(options.timeout)
    say = progress or silent
    with temporary_folder() as scratch, temporary_files(), contextlib.ExitStack() as stack:
        opened = _opened(model, want, scratch, say)
        shapes = options.shapes or {}
        check_alone(options.calibrate, options.shapes)
        data = read_data(options.calibrate, opened.traits.inputs)
        stack.enter_context(time_limit.runs_end_within(time_limit.limit_of(options.timeout, opened.file.bytes)))
        original = _run(opened, data, shapes, scratch)
        source = _placed(opened, want, original, scratch, say)
        chosen = _chosen(source, want, original, data, scratch, say)
        if want.precision is not None and not want.format.activations:
            chosen = _with_lower_precision(chosen, want.precision, original, data, shapes, scratch, say)
        if want.goals.stated:
            refuse_missed(chosen.quality, want.goals, _ADVICE)
        say("package", "", 0, 0)
        names = tuple(row.name for row in data)
        after = _publish(chosen.path, output, _record(want, chosen, names))
    restored = [Refusal(p.node, p.op_type, "", _RESTORED) for p in source.chosen if p.node in chosen.restored]
    return Quantized(
        path=output,
        format=want.name,
        algorithm=want.algorithm,
        block_size=want.block,
        products=tuple(p for p in source.chosen if p.node not in chosen.restored),
        left=(*source.unchosen, *restored),
        restored=chosen.restored,
        bytes_before=opened.file.bytes,
        bytes_after=after,
        quality=chosen.quality,
        data=names,
        alone=chosen.alone,
        times=source.times,
    )


class _Opened(NamedTuple):
    """A float32 model and its normalized form."""

    file: read.Source
    traits: Traits
    normalized: ir.Model


class _Source(NamedTuple):
    """What is quantized.

    chosen: of `normalized`. unchosen: what stays float. file: the float32 model. times: of `chosen`.
    """

    file: read.Source
    normalized: ir.Model
    chosen: Sequence[Product]
    unchosen: Sequence[Refusal]
    times: Times | None = None


def _opened(model: Path, want: Asked, scratch: Path, say: Progress) -> _Opened:
    """Read and normalize a model. ModelError where it is quantized already."""
    say("load", "", 0, 0)
    source = readable(read.load(model), scratch / "readable")
    normalize.refuse_optimized(source.model, source.path)
    traits = model_traits.of(source.model)
    if kind := products.codes_in(source.model):
        raise ModelError(f"{model}: has {kind} nodes: it is quantized already. Give the float32 model")
    if want.precision is not None and traits.precision != "float32":
        raise UsageError(f"{model}: is a {traits.precision} model; lower precision is for float32 models")
    say("normalize", "", 0, 0)
    with step(f"{model}: the step 'normalize'"):
        normalized = normalize.normalize(source.model).model
        if not want.format.activations:
            spell_out_gemms(normalized)
    return _Opened(source, model_traits.completed(traits, model_traits.of(normalized)), normalized)


def _run(opened: _Opened, data: Sequence[UserData], shapes: Mapping[str, tuple[int, ...]], scratch: Path) -> Reference:
    """The float32 model's outputs. Errors as `original_runs` says, UsageError where they say nothing."""
    file = opened.file
    with original_runs(file, "does not run here, so that it cannot be calibrated"):
        original = _reference(ModelFile(file.path, opened.traits, file.bytes), data, shapes, scratch)
    check_inputs(original)
    return original


def _reference(
    file: ModelFile, data: Sequence[UserData], shapes: Mapping[str, tuple[int, ...]], scratch: Path
) -> Reference:
    return references(file, Coverage(file.pinned(shapes), data), folder=scratch, providers=(CPU,))[0]


def _placed(opened: _Opened, want: Asked, original: Reference, scratch: Path, say: Progress) -> _Source:
    """Choose what to quantize, of the model of lower precision where activations become codes of its values.

    UsageError where there is nothing.
    """
    model = opened.normalized
    if want.precision is not None and want.format.activations:
        say("precision", "", 0, 0)
        model = lowering.normalized_file(lowering.lowered(model, original, want.precision, scratch))
    chosen, unchosen = products.place(model, want)
    predicted = None
    if want.timing is not None:
        cases = [dict(case.sizes) for case in original.outputs]
        bits = 0 if want.format.activations else want.format.bits
        chosen, slow, predicted = times.place(model, chosen, cases, bits, want.timing)
        unchosen = [*unchosen, *slow]
    if not chosen:
        reasons = sorted({row.reason for row in unchosen}) or ["it has no product or convolution with constant weights"]
        raise UsageError(f"{opened.file}: nothing to quantize: {'; '.join(reasons)}")
    return _Source(opened.file, model, chosen, unchosen, predicted)


def _chosen(
    source: _Source,
    want: Asked,
    original: Reference,
    data: Sequence[UserData],
    scratch: Path,
    say: Progress,
) -> _Trial:
    """The model with the most products quantized that reaches the goals, as far as that was found."""
    write.save(source.normalized, scratch)
    quantizer = Quantizer(scratch / write.MODEL_FILE, want, [row.inputs for row in data], scratch)
    trials = _Trials(quantizer, original, [p.node for p in source.chosen], scratch, say)
    chosen = trials.run(())
    if not want.goals.stated:
        return chosen
    sensitivity = Sensitivity(source.chosen, trials.alone)
    chosen = restoring.restored(trials, chosen, trials.names, sensitivity.loss, want.goals, seconds=_SECONDS)
    return dataclasses.replace(chosen, alone=sensitivity.alone)


def _with_lower_precision(
    chosen: _Trial,
    dtype: ir.DataType,
    original: Reference,
    data: Sequence[UserData],
    shapes: Mapping[str, tuple[int, ...]],
    scratch: Path,
    say: Progress,
) -> _Trial:
    """The same weights in blocks, between values of 16 bits. Ranges are those of the quantized model."""
    say("precision", "", 0, 0)
    file = read.load(chosen.path)
    try:
        quantized = _reference(ModelFile(file.path, model_traits.of(file.model), file.bytes), data, shapes, scratch)
    except NotRunnable as error:
        raise NotVerifiedError(f"the quantized model does not run in ONNX Runtime: {error}") from error
    path = lowering.lowered(lowering.normalized_file(chosen.path), quantized, dtype, scratch)
    return dataclasses.replace(chosen, path=path, quality=_quality(original, path))


def _quality(original: Reference, path: Path, until: Goals | None = None) -> tuple[Quality, ...]:
    try:
        return quality_of(original, path, None, until=until)
    except RunError as error:
        raise NotVerifiedError(f"the quantized model does not run in ONNX Runtime: {error}") from error


_ADVICE = "choose a format or an algorithm that rounds less, name more nodes with --keep-float, or ask for less"
_RESTORED = "an output misses what was asked for where it is quantized"


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A quantized model. narrow: how many products are quantized. quality: against float32. alone: as in Quantized."""

    path: Path
    narrow: int
    restored: tuple[str, ...]
    quality: tuple[Quality, ...]
    alone: Mapping[str, float] = dataclasses.field(default_factory=dict)


class _Trials:
    """Models with different products quantized. names: of all products that may be."""

    def __init__(
        self, quantizer: Quantizer, original: Reference, names: Sequence[str], folder: Path, say: Progress
    ) -> None:
        self.names = names
        self._quantizer, self._original, self._folder, self._say = quantizer, original, folder, say

    def run(self, restored: Collection[str], until: Goals | None = None) -> _Trial:
        """Quantize all but some products, run, compare. until: as for `restoring.Trials`."""
        excluded = set(restored)
        quantized = [name for name in self.names if name not in excluded]
        self._say("quantize", f"{len(quantized)} of {len(self.names)} nodes" if excluded else "", 0, 0)
        path = Path(tempfile.mkdtemp(dir=self._folder)) / write.MODEL_FILE
        with step("ONNX Runtime's quantizer"):
            self._quantizer.write(quantized, path)
        self._say("verify", "", 0, 0)
        return _Trial(path, len(quantized), tuple(restored), _quality(self._original, path, until))

    def alone(self, name: str) -> tuple[Quality, ...]:
        """The quality of the model with this product quantized and no other one."""
        trial = self.run([other for other in self.names if other != name])
        self.discard(trial)
        return trial.quality

    def discard(self, trial: _Trial) -> None:
        """Remove the files of a model, which may be large."""
        shutil.rmtree(trial.path.parent, ignore_errors=True)


def _record(want: Asked, trial: _Trial, data: Sequence[str]) -> str:
    """How the model was made, for its metadata."""
    row = worst(trial.quality)
    return json.dumps(
        {
            "format": want.name,
            "algorithm": want.algorithm,
            "block_size": want.block,
            "zero_points": want.zero_points,
            **({} if want.precision is None else {"precision": want.precision.name.lower()}),
            "data": list(data),
            "sqnr_db": row.sqnr_db if row is not None else None,
            "onnxopt": versions.onnxopt(),
        }
    )


def _weights_of(output: Path) -> Path:
    """The file of the weights that do not fit the model file."""
    return output.with_name(output.name + ".data")


def _publish(source: Path, output: Path, record: str) -> int:
    """Move a model, and weights beside it, to where they are wanted. Bytes of both."""
    with step("writing the quantized model"):
        model = ir.load(source)
        model.metadata_props[MARK] = record
        proto = ir.to_proto(model)
    with staging(output, file=True) as staged:
        if not any(onnx.external_data_helper.uses_external_data(t) for t in proto.graph.initializer):
            onnx.save(proto, staged)
            return staged.stat().st_size
        onnx.external_data_helper.load_external_data_for_model(proto, str(source.parent))
        beside = _weights_of(output)
        with staging(beside, file=True) as weights:
            onnx.save(proto, weights.with_name(output.name), save_as_external_data=True, location=beside.name)
            weights.with_name(output.name).rename(staged)
            size = staged.stat().st_size + weights.stat().st_size
    return size
