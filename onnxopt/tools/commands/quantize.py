"""`onnxopt quantize`: a float32 model file into 8 or 4 bits, and how near the result is to it."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any

import click

from onnxopt.artifact.summary import data_text, quality_text
from onnxopt.tools import progress
from onnxopt.tools.commands import options
from onnxopt.tools.commands.printing import print_json
from onnxopt.tools.printable import printable
from onnxopt.tools.quantization import Quantization, Quantized, quantize

_FP8 = (
    "note: ONNX Runtime's CPU provider opens fp8 models with session.disable_quant_qdq=1 alone; CUDA needs no setting"
)
_EXAMPLES = 5


@click.command("quantize")
@click.argument("model", type=Path)
@click.option("-o", "--output", type=Path, required=True, help="Model file to write; must not exist.")
@options.of_fields(Quantization)
@options.quiet
@options.json_option
def command(
    model: Path,
    output: Path,
    quiet: bool,
    as_json: bool,
    **fields: Any,
) -> None:
    """Quantize MODEL, a float32 model file, into a standard ONNX model that `optimize` takes.

    ONNX Runtime's quantizers calibrate, choose scales and pack. The result is compared with MODEL.
    Where an output misses what --min-sqnr and its like ask for, nodes stay float32; exit code 1 where that does not do.
    """
    with progress.shown(quiet) as advance:
        chosen = Quantization(**{**fields, "shapes": options.parse_shapes(fields["shapes"])})
        found = quantize(model, output, chosen, progress=advance)
    if as_json:
        print_json({**dataclasses.asdict(found), "path": str(found.path)})
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
