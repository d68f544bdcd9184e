"""`onnxopt quantize`: a float32 model file into 8 or 4 bits, and how near the result is to it."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path

import click

from onnxopt.artifact.summary import data_text, quality_text
from onnxopt.tools import progress
from onnxopt.tools.commands import options
from onnxopt.tools.printable import printable
from onnxopt.tools.quantization import Quantized, formats, quantize

_FP8 = (
    "note: ONNX Runtime's CPU provider opens fp8 models with session.disable_quant_qdq=1 alone; CUDA needs no setting"
)
_EXAMPLES = 5
_ALGORITHMS = sorted({name for row in formats.FORMATS.values() for name in row.algorithms})


@click.command("quantize")
@click.argument("model", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Model file to write; must not exist.")
@click.option(
    "--format",
    "form",
    type=click.Choice([*formats.FORMATS]),
    required=True,
    help="fp8, int8: weights and activations. int4, int8-weights: weights alone, in blocks.",
)
@click.option(
    "--calibrate",
    metavar="FILE.npz",
    multiple=True,
    type=Path,
    help="Your own inputs by name, as numpy.savez writes them: ranges of activations and quality; repeat for more.",
)
@click.option(
    "--algorithm",
    type=click.Choice(_ALGORITHMS),
    help="How scales are chosen. Default: minmax for fp8 and int8, rtn for weights alone.",
)
@click.option("--block-size", type=int, help="Rows of a weight that share a scale, for weights alone. Default: 32.")
@click.option("--zero-points", is_flag=True, help="Give every block of weights a zero point.")
@click.option("--exclude", metavar="REGEX", help="Names of nodes that stay float32.")
@click.option(
    "--precision",
    type=click.Choice(["float16"]),
    help="Store the other values of a float32 model in 16 bits where their ranges allow it. Not for int8.",
)
@click.option(
    "--gpu",
    metavar="NAME",
    help="GPU of the catalogue, as h200: products that gain no time there are not quantized. Not for int8.",
)
@click.option(
    "--measured",
    metavar="FILE",
    multiple=True,
    type=Path,
    help="Products that tune measured (*.gemm_algos.json), whose times count, not predicted ones; repeat for more.",
)
@options.goals
@options.shape
@options.timeout
@options.quiet
@options.json_option
def command(
    model: Path,
    output: Path,
    form: str,
    calibrate: tuple[Path, ...],
    algorithm: str | None,
    block_size: int | None,
    zero_points: bool,
    exclude: str | None,
    precision: str | None,
    gpu: str | None,
    measured: tuple[Path, ...],
    shapes: tuple[str, ...],
    timeout: float | None,
    quiet: bool,
    as_json: bool,
    **goals: float | None,
) -> None:
    """Quantize MODEL, a float32 model file, into a standard ONNX model that `optimize` takes.

    ONNX Runtime's quantizers calibrate, choose scales and pack. The result is compared with MODEL.
    Where an output misses what --min-sqnr and its like ask for, nodes stay float32; exit code 1 where that does not do.
    """
    with progress.shown(quiet) as advance:
        found = quantize(
            model,
            output,
            format=form,
            calibrate=calibrate,
            algorithm=algorithm,
            block_size=block_size,
            zero_points=zero_points,
            exclude=exclude,
            precision=precision,
            gpu=gpu,
            measured=measured,
            shapes=options.parse_shapes(shapes),
            timeout=timeout,
            progress=advance,
            **goals,
        )
    if as_json:
        options.print_json({**dataclasses.asdict(found), "path": str(found.path)})
    else:
        click.echo(printable(_text(model, found)))


def _text(model: Path, found: Quantized) -> str:
    how = f"{found.format}, {found.algorithm}" + (f", blocks of {found.block_size}" if found.block_size else "")
    places = len(found.products) + len(found.left)
    lines = [f"{model.name}: {len(found.products)} of {places} products and convolutions quantized ({how})"]
    for reason, count in collections.Counter(row.reason for row in found.left).most_common():
        lines.append(f"stays float32: {count} x {reason}")
    if found.times is not None:
        t = found.times
        how = f"{t.measured} of them measured" if t.measured else "predicted"
        lines.append(
            f"time of the quantized products alone on {t.gpu}, {how}: {t.sixteen_bits_ms:.4f} ms in 16 bits ->"
            f" {t.quantized_ms:.4f} ms"
        )
    lines.append(f"size: {found.bytes_before / 1e6:.1f} MB -> {found.bytes_after / 1e6:.1f} MB")
    lines.append(f"quality against float32, measured with {data_text(found.data)}:")
    lines += [f"    {quality_text(row)}" for row in found.quality]
    worst = sorted(found.alone, key=found.alone.__getitem__)[:_EXAMPLES]
    if worst:
        lines.append("quantized alone, these cost most: " + ", ".join(f"{n} {found.alone[n]:.1f} dB" for n in worst))
    lines += [_FP8] if found.format == "fp8" else []
    lines += [f"wrote {found.path}", f"next: onnxopt optimize {found.path} -o {found.path.with_suffix('')}.optimized"]
    return "\n".join(lines)
