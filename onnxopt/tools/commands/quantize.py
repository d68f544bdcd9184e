"""`onnxopt quantize`: a float32 model file into 8 or 4 bits, and how near the result is to it."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any

import click

from onnxopt.artifact.summary import data_text, quality_text
from onnxopt.printable import printable
from onnxopt.tools import progress
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_json
from onnxopt.tools.quantization import Quantization, Quantized, quantize

_FP8 = (
    "note: ONNX Runtime's CPU provider opens fp8 models with session.disable_quant_qdq=1 alone; CUDA needs no setting"
)
_EXAMPLES = 5


@click.command("quantize")
@click.argument("model", type=Path)
@click.argument("file", type=Path, required=False)
@options.output("FILE")
@options.click_options(Quantization)
@options.quiet
@options.json_option
def command(
    model: Path,
    file: Path | None,
    output: Path | None,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Quantize MODEL, a float32 model file, into a standard ONNX model that `optimize` takes.

    FILE is the model file to write.

    ONNX Runtime's quantizers calibrate, choose scales and pack. The result is compared with MODEL.
    Where an output misses what --min-sqnr and its like ask for, nodes stay float32; exit code 1 where that does not do.
    """
    file = options.one_output(file, output, "FILE")
    with progress.shown(quiet) as advance:
        chosen = Quantization(**{**fields, "shapes": options.parse_shapes(fields["shapes"])})
        quantized = quantize(model, file, chosen, progress=advance)
    if as_json:
        print_json({**dataclasses.asdict(quantized), "path": str(quantized.path)})
    else:
        click.echo(printable(_text(model, quantized)))


def _text(model: Path, result: Quantized) -> str:
    how = f"{result.format}, {result.algorithm}" + (f", blocks of {result.block_size}" if result.block_size else "")
    places = len(result.products) + len(result.left)
    lines = [f"{model.name}: {len(result.products)} of {places} products and convolutions quantized ({how})"]
    for reason, count in collections.Counter(row.reason for row in result.left).most_common():
        lines.append(f"stays float32: {count} x {reason}")
    if result.times is not None:
        t = result.times
        how = f"{t.measured} of them measured" if t.measured else "predicted"
        lines.append(
            f"time of the quantized products alone on {t.gpu}, {how}: {t.sixteen_bits_ms:.4f} ms in 16 bits ->"
            f" {t.quantized_ms:.4f} ms"
        )
    lines.append(f"size: {result.bytes_before / 1e6:.1f} MB -> {result.bytes_after / 1e6:.1f} MB")
    lines.append(f"quality against float32, measured with {data_text(result.data)}:")
    lines += [f"    {quality_text(row)}" for row in result.quality]
    worst = sorted(result.alone, key=result.alone.__getitem__)[:_EXAMPLES]
    if worst:
        lines.append("quantized alone, these cost most: " + ", ".join(f"{n} {result.alone[n]:.1f} dB" for n in worst))
    lines += [_FP8] if result.format == "fp8" else []
    lines += [
        f"wrote {result.path}",
        f"next: onnxopt optimize {result.path} -o {result.path.with_suffix('')}.optimized",
    ]
    return "\n".join(lines)
