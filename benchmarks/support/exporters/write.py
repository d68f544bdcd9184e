"""Writes one network by its exporters: `python -m benchmarks.support.exporters.write NETWORK FOLDER`.

Runs in an environment of the exporters, one process a network. FOLDER gets NETWORK.EXPORTER.onnx, or a text file
NETWORK.EXPORTER.failed with the exporter's error.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.support.exporters.networks import NETWORKS, Network

Exporter = Callable[[Network, pathlib.Path], None]


def _torch(opset: int, dynamo: bool) -> Exporter:
    def export(network: Network, file: pathlib.Path) -> None:
        import torch

        module, feeds = network.build()
        if not dynamo:
            _trace_masks()
        options: dict[str, Any] = {"dynamic_axes": network.dynamic}
        if dynamo:
            dims = {name: torch.export.Dim(name) for axes in network.dynamic.values() for name in axes.values()}
            shapes = [{axis: dims[dim] for axis, dim in network.dynamic.get(name, {}).items()} for name in feeds]
            options = {"dynamic_shapes": tuple(shapes)}
        torch.onnx.export(
            _plain(module, list(feeds)), tuple(feeds.values()), str(file), input_names=list(feeds), output_names=["y"],
            opset_version=opset, dynamo=dynamo, external_data=False, **options,
        )  # fmt: skip

    return export


def _trace_masks() -> None:
    """Let transformers make masks by operators that TorchScript traces, as optimum does; it maps them by default."""
    from optimum.exporters.onnx import model_patcher
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    ALL_MASK_ATTENTION_FUNCTIONS.register("eager", model_patcher.eager_mask_without_vmap)


def _optimum(network: Network, file: pathlib.Path) -> None:
    from optimum.exporters.onnx import onnx_export_from_model

    module, _ = network.build()
    with tempfile.TemporaryDirectory() as folder:
        onnx_export_from_model(module, folder, task=network.task, do_validation=False)
        shutil.copy(pathlib.Path(folder) / "model.onnx", file)


def _tf2onnx(network: Network, file: pathlib.Path) -> None:
    import tensorflow as tf
    import tf2onnx

    model, feeds = network.build()
    specs = [tf.TensorSpec((None, *array.shape[1:]), tf.float32, name=name) for name, array in feeds.items()]
    tf2onnx.convert.from_function(tf.function(model.call), input_signature=specs, opset=17, output_path=str(file))


def _keras(network: Network, file: pathlib.Path) -> None:
    model, feeds = network.build()
    model(*feeds.values())
    model.export(str(file), format="onnx", verbose=False)


def _ultralytics(half: bool = False, dynamic: bool = False) -> Exporter:
    def export(network: Network, file: pathlib.Path) -> None:
        import ultralytics

        name, _ = network.build()
        model = ultralytics.YOLO(name, verbose=False)
        _normalize_by_batch(model.model)
        with tempfile.TemporaryDirectory() as folder:
            model.model.pt_path = str(pathlib.Path(folder) / "model.pt")
            model.ckpt_path = model.model.pt_path
            path = model.export(format="onnx", imgsz=64, half=half, dynamic=dynamic, simplify=False, verbose=False)
            shutil.move(path, file)

    return export


def _genai(precision: str, provider: str) -> Exporter:
    """The model builder of onnxruntime-genai, which reads a folder with weights and a tokenizer."""

    def export(network: Network, file: pathlib.Path) -> None:
        import onnx
        import transformers
        from tokenizers import Tokenizer, models

        module, _ = network.build()
        words = Tokenizer(models.WordLevel({f"w{k}": k for k in range(module.config.vocab_size)}, unk_token="w0"))
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=words, unk_token="w0", bos_token="w1", eos_token="w2", pad_token="w2"
        )
        with tempfile.TemporaryDirectory() as folder:
            source, target, cache = (f"{folder}/{part}" for part in ("source", "target", "cache"))
            for part in (module, tokenizer):
                part.save_pretrained(source)
            options = ("-i", source, "-o", target, "-p", precision, "-e", provider, "-c", cache)
            command = [sys.executable, "-m", "onnxruntime_genai.models.builder", *options]
            built = subprocess.run(command, capture_output=True, encoding="utf-8")
            if built.returncode:
                raise RuntimeError(built.stderr.strip().splitlines()[-1])
            onnx.save(onnx.load(f"{target}/model.onnx"), file)

    return export


def _paddle(opset: int) -> Exporter:
    def export(network: Network, file: pathlib.Path) -> None:
        import paddle

        module, inputs = network.build()
        try:
            paddle.onnx.export(module, str(file.with_suffix("")), input_spec=list(inputs.values()), opset_version=opset)
        except SystemExit as error:  # which paddle2onnx raises after it has printed the reason
            raise RuntimeError(f"paddle2onnx ended with {error}") from error

    return export


def _normalize_by_batch(module: Any) -> None:
    """Give every BatchNorm the statistics of some random images, as training does.

    Without them, values fade from layer to layer, and float16 loses them.
    """
    import torch

    torch.manual_seed(0)
    norms = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        module.train()(torch.randn(32, 3, 64, 64))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    module.eval()


def _after(source: str, change: Callable[[pathlib.Path, pathlib.Path, Network], None]) -> Exporter:
    """What another tool makes of the file of the exporter `source`."""

    def export(network: Network, file: pathlib.Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            first = pathlib.Path(folder) / "first.onnx"
            EXPORTERS[source](network, first)
            change(first, file, network)

    return export


def _session_model(level: str) -> Callable[[pathlib.Path, pathlib.Path, Network], None]:
    def change(source: pathlib.Path, file: pathlib.Path, _: Network) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(file)
        ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])

    return change


def _transformers_optimizer(half: bool) -> Callable[[pathlib.Path, pathlib.Path, Network], None]:
    def change(source: pathlib.Path, file: pathlib.Path, network: Network) -> None:
        from onnxruntime.transformers import optimizer

        kind = {"gpt2": "gpt2", "vit": "vit", "dinov2": "vit", "swin": "swin", "cliptext": "clip"}
        module, _ = network.build()
        name = module.config.model_type if hasattr(module, "config") else "bert"
        optimized = optimizer.optimize_model(
            str(source), model_type=kind.get(name, "bert"), num_heads=4, hidden_size=64, opt_level=0
        )
        if half:
            optimized.convert_float_to_float16()
        optimized.save_model_to_file(str(file))

    return change


def _half(source: pathlib.Path, file: pathlib.Path, _: Network) -> None:
    import onnx
    from onnxconverter_common import float16

    onnx.save(float16.convert_float_to_float16(onnx.load(source), keep_io_types=True), file)


def _slim(source: pathlib.Path, file: pathlib.Path, _: Network) -> None:
    import onnx
    import onnxslim

    onnx.save(onnxslim.slim(str(source)), file)


def _simplified(source: pathlib.Path, file: pathlib.Path, _: Network) -> None:
    import onnx
    import onnxsim

    onnx.save(onnxsim.simplify(onnx.load(source))[0], file)


EXPORTERS: dict[str, Exporter] = {
    "dynamo18": _torch(18, True), "dynamo20": _torch(20, True), "dynamo23": _torch(23, True),
    "torchscript11": _torch(11, False), "torchscript13": _torch(13, False), "torchscript17": _torch(17, False),
    "optimum": _optimum, "tf2onnx": _tf2onnx, "keras": _keras,
    "ultralytics": _ultralytics(), "ultralytics-half": _ultralytics(half=True),
    "ultralytics-dynamic": _ultralytics(dynamic=True),
    "genai": _genai("fp32", "cpu"), "genai-half": _genai("fp16", "cuda"), "genai-int4": _genai("int4", "cpu"),
    "genai-int4-half": _genai("int4", "cuda"), "paddle13": _paddle(13), "paddle17": _paddle(17),
    "ort-transformers": _after("torchscript17", _transformers_optimizer(False)),
    "ort-transformers-half": _after("torchscript17", _transformers_optimizer(True)),
    "ort-basic": _after("torchscript17", _session_model("ORT_ENABLE_BASIC")),
    "ort-extended": _after("torchscript17", _session_model("ORT_ENABLE_EXTENDED")),
    "converter-half": _after("torchscript17", _half), "onnxslim": _after("torchscript17", _slim),
    "onnxsim": _after("torchscript17", _simplified),
}  # fmt: skip


def exporters_of(network: Network) -> list[str]:
    """The exporters that take a network."""
    if network.framework == "keras":
        return ["tf2onnx", "keras"]
    if network.framework in ("ultralytics", "genai", "paddle"):
        return [name for name in EXPORTERS if name.startswith(network.framework)]
    of_transformers = [name for name in EXPORTERS if name.startswith("ort-transformers")]
    apart = ("tf2onnx", "keras", "ultralytics", "genai", "paddle")
    others = [name for name in EXPORTERS if not name.startswith(apart)]
    left_out = {*([] if network.task else ["optimum"]), *([] if network.attentions else of_transformers)}
    return [name for name in others if name not in left_out]


def _plain(module: Any, names: list[str]) -> Any:
    """The module with positional inputs and its first tensor as output: exporters flatten classes differently."""
    import torch

    def first(result: Any) -> Any:
        return result if isinstance(result, torch.Tensor) else result[0]

    def call(*values: Any) -> Any:
        return module(*values) if names == ["x"] else module(**dict(zip(names, values, strict=True)), return_dict=False)

    class One(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, a: Any) -> Any:
            return first(call(a))

    class Two(One):
        def forward(self, a: Any, b: Any) -> Any:
            return first(call(a, b))

    return (One if len(names) == 1 else Two)().eval()


def write(name: str, folder: pathlib.Path, exporters: Sequence[str] = ()) -> None:
    """Write a network by all exporters that take it, or by some of these."""
    for exporter in exporters or exporters_of(NETWORKS[name]):
        file = folder / f"{name}.{exporter}.onnx"
        try:
            EXPORTERS[exporter](NETWORKS[name], file)
        except Exception as error:  # noqa: BLE001 - whatever an exporter raises is a row of the table
            file.unlink(missing_ok=True)
            text = " ".join(str(error).split())[:300]
            file.with_suffix(".failed").write_text(f"{type(error).__name__}: {text}\n", "utf-8")


if __name__ == "__main__":
    write(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:])
