"""Quantize a model file: place, quantize, compare with float32, put nodes back, write."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxopt import versions
from onnxopt.artifact.folder import check_output, staging, temporary_files, temporary_folder
from onnxopt.errors import DisagreementError, ModelError, NotVerifiedError, UsageError, step
from onnxopt.graph import normalize, read, signature, write
from onnxopt.graph import traits as model_traits
from onnxopt.graph.refusal import Refusal
from onnxopt.runtime.sessions import CPU, RunError
from onnxopt.tools.quantization import formats, products
from onnxopt.tools.quantization.by_library import Quantizer
from onnxopt.tools.quantization.formats import Asked
from onnxopt.tools.quantization.products import Product
from onnxopt.tools.quantization.result import Quantized
from onnxopt.tools.quantization.spelling import spell_out_gemms
from onnxopt.verification.bisect import bisect
from onnxopt.verification.quality import Quality, qualities, worst
from onnxopt.verification.reference import Check, NotRunnable, Reference
from onnxopt.verification.user_data import DataSource, check_alone, read_data
from onnxopt.verification.verify import references

MARK = "onnxopt.quantized"
_SECONDS = 60.0  # of looking for nodes at fault
_MOST_RESTORED = 0.5  # share of the products; a model that needs more is no model of this format
_MOST_AT_FAULT = 0.25  # share of the products; more are no culprits, but a sum of roundings
_FEW = 4
Progress = Callable[[str, str], None]


def quantize(
    model: str | Path,
    output: str | Path,
    *,
    format: str,
    calibrate: Sequence[DataSource] = (),
    algorithm: str | None = None,
    block_size: int | None = None,
    zero_points: bool = False,
    exclude: str | None = None,
    min_sqnr: float | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Write the float32 model file `model`, quantized, as the new model file `output`, which `optimize` takes.

    format: "fp8" (e4m3 weights and activations, a scale a tensor), "int8" (weights with a scale a column, activations
    with a scale a tensor), "int4" or "int8-weights" (weights alone, in blocks). calibrate: inputs of the model, .npz
    files or mappings of arrays by name: activations get their ranges from them, and quality is measured with them.
    algorithm: how scales are chosen; "minmax", "entropy" or "percentile" of activations, "rtn", "hqq" or "k_quant" of
    4-bit weights. block_size: rows of a weight that share a scale, 16 to 256, default 32. zero_points: blocks have one.
    exclude: a regular expression of the names of nodes that stay float32. min_sqnr: signal to noise in dB that every
    output has to keep; nodes stay float32 for that, up to half of them. shapes: sizes of generated inputs.

    Calibration, scales and packing are ONNX Runtime's. Nothing is left behind where something fails. Raises ModelError,
    UsageError, NotVerifiedError where ONNX Runtime does not run the model here, and DisagreementError where an output
    misses min_sqnr.
    """
    model, output = Path(model), Path(output)
    want = formats.asked(
        format, algorithm=algorithm, block_size=block_size, zero_points=zero_points, exclude=exclude,
        min_sqnr=min_sqnr, calibrated=bool(calibrate),
    )  # fmt: skip
    for path in (output, _weights_of(output)):
        check_output(path)
    say = progress or (lambda phase, detail: None)
    say("load", "")
    source = read.load(model)
    normalize.refuse_optimized(source.model, source.path)
    traits = model_traits.of(source.model)
    if kind := products.codes_in(source.model):
        raise ModelError(f"{model}: has {kind} nodes: it is quantized already. Give the float32 model")
    signature.pin(traits.inputs, shapes or {})
    check_alone(calibrate, shapes)
    data = read_data(calibrate, traits.inputs)
    say("normalize", "")
    with step(f"{model}: the step 'normalize'"):
        normalized = normalize.normalize(source.model).model
        if not want.format.activations:
            spell_out_gemms(normalized)
    taken, left = products.place(normalized, want)
    if not taken:
        reasons = sorted({row.reason for row in left}) or ["it has no product or convolution with constant weights"]
        raise UsageError(f"{model}: nothing to quantize: {'; '.join(reasons)}")
    with temporary_folder() as scratch, temporary_files():
        write.save(normalized, scratch)
        try:
            original = references(
                source.path,
                traits,
                folder=scratch,
                model_bytes=source.bytes,
                shapes=shapes,
                providers=(CPU,),
                data=data,
            )[0]
        except NotRunnable as error:
            raise NotVerifiedError(f"{model}: does not run here, so that it cannot be calibrated: {error}") from error
        quantizer = Quantizer(scratch / write.MODEL_FILE, want, [row.inputs for row in data], scratch)
        trials = _Trials(quantizer, original, want, taken, scratch, say)
        chosen = _chosen(trials, want)
        _refuse_below(chosen.quality, want)
        say("package", "")
        names = tuple(row.name for row in data)
        after = _publish(chosen.path, output, _record(want, chosen, names))
    restored = set(chosen.restored)
    return Quantized(
        path=output,
        format=want.name,
        algorithm=want.algorithm,
        block_size=want.block,
        products=tuple(p for p in taken if p.node not in restored),
        left=(*left, *(Refusal(p.node, p.op_type, "", _RESTORED) for p in taken if p.node in restored)),
        restored=chosen.restored,
        bytes_before=source.bytes,
        bytes_after=after,
        quality=chosen.quality,
        data=names,
    )


_RESTORED = "an output misses min_sqnr where it is quantized"


class _Trial:
    """A model with all products quantized but `restored`, and how near it is to float32."""

    def __init__(self, path: Path, restored: tuple[str, ...], quality: tuple[Quality, ...]) -> None:
        self.path, self.restored, self.quality = path, restored, quality


class _Trials:
    """Models with different products quantized."""

    def __init__(
        self,
        quantizer: Quantizer,
        original: Reference,
        want: Asked,
        taken: Sequence[Product],
        folder: Path,
        say: Progress,
    ) -> None:
        self._quantizer, self._original, self._want = quantizer, original, want
        self._folder, self._say, self._count = folder, say, 0
        self.names = [p.node for p in taken]
        self.noisiest = [p.node for p in sorted(taken, key=lambda p: -p.noise)]
        self._deadline = time.monotonic() + _SECONDS

    def run(self, restored: Collection[str]) -> _Trial:
        """Quantize, run, compare."""
        self._count += 1
        self._say("quantize", f"{len(self.names) - len(restored)} of {len(self.names)} nodes" if restored else "")
        folder = self._folder / f"trial{self._count}"
        folder.mkdir()
        path = folder / write.MODEL_FILE
        left = set(restored)
        with step("ONNX Runtime's quantizer"):
            self._quantizer.write([name for name in self.names if name not in left], path)
        self._say("verify", "")
        pairs = []
        try:
            for case, actual in self._original.outputs_of(path, None):
                if isinstance(actual, RunError):
                    raise actual
                pairs.append((self._original.outputs[case], actual))
        except RunError as error:
            raise NotVerifiedError(f"the quantized model does not run in ONNX Runtime: {error}") from error
        return _Trial(path, tuple(restored), qualities(CPU, False, pairs))

    def in_time(self) -> bool:
        return time.monotonic() < self._deadline

    def reaches(self, trial: _Trial) -> bool:
        goal = self._want.min_sqnr
        return goal is None or all(row.reaches(goal) for row in trial.quality)

    def culprits(self) -> tuple[str, ...]:
        """The products that miss the goal alone, () where there is no time to find them, or too many."""

        def failure_of(enabled: Sequence[str]) -> Check | None:
            if not self.in_time():
                raise TimeoutError
            trial = self.run([name for name in self.names if name not in set(enabled)])
            row = worst(trial.quality)
            if row is None or self.reaches(trial):
                return None
            return Check(row.provider, False, "", row.output, None, error="too far from float32")

        try:
            found = tuple(bisect(self.names, failure_of, str))
        except TimeoutError:
            return ()
        return found if len(found) <= max(_FEW, _MOST_AT_FAULT * len(self.names)) else ()


def _chosen(trials: _Trials, want: Asked) -> _Trial:
    """The trial with the most products quantized that reaches min_sqnr, as far as there is time to find it."""
    first = trials.run(())
    if want.min_sqnr is None or trials.reaches(first):
        return first
    culprits, best, count = trials.culprits(), first, 0
    while count <= _MOST_RESTORED * len(trials.names):
        restored = tuple(dict.fromkeys((*culprits, *trials.noisiest[:count])))
        if restored and len(restored) <= _MOST_RESTORED * len(trials.names):
            best = trials.run(restored)
            if trials.reaches(best):
                break
        if not trials.in_time():
            break
        count = 2 * count or 1
    return best


def _refuse_below(quality: Sequence[Quality], want: Asked) -> None:
    row = worst(quality)
    if want.min_sqnr is None or row is None or row.reaches(want.min_sqnr):
        return
    found = f"{row.invalid} elements are invalid" if row.invalid else f"{row.sqnr_db} dB"
    raise DisagreementError(
        f"output {row.output}: {found} from float32, at least {want.min_sqnr:g} dB were asked for, also with "
        "nodes that stay float32; choose a format or an algorithm that rounds less, name more nodes with --exclude, "
        "or lower --min-sqnr"
    )


def _record(want: Asked, trial: _Trial, data: Sequence[str]) -> str:
    """How the model was made, for its metadata."""
    row = worst(trial.quality)
    return json.dumps(
        {
            "format": want.name,
            "algorithm": want.algorithm,
            "block_size": want.block,
            "zero_points": want.zero_points,
            "data": list(data),
            "sqnr_db": row.sqnr_db if row is not None else None,
            "onnxopt": versions.onnxopt(),
        }
    )


def _weights_of(output: Path) -> Path:
    """The file of the weights that do not fit the model file."""
    return output.with_name(output.name + ".data")


def _publish(made: Path, output: Path, record: str) -> int:
    """Move a model, and weights beside it, to where they are wanted. Bytes of both."""
    with step("writing the quantized model"):
        model = ir.load(made)
        model.metadata_props[MARK] = record
        proto = ir.to_proto(model)
    with staging(output, file=True) as staged:
        if not any(onnx.external_data_helper.uses_external_data(t) for t in proto.graph.initializer):
            onnx.save(proto, staged)
            return staged.stat().st_size
        onnx.external_data_helper.load_external_data_for_model(proto, str(made.parent))
        beside = _weights_of(output)
        with staging(beside, file=True) as weights:
            onnx.save(proto, weights.with_name(output.name), save_as_external_data=True, location=beside.name)
            weights.with_name(output.name).rename(staged)
            size = staged.stat().st_size + weights.stat().st_size
    return size
