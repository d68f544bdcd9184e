"""A module of PyTorch as a callable on tensors that runs its artifact: one line, as torch.compile is.

ONNX Runtime reads the tensors where they are, on a GPU too, and torch takes the memory of the outputs by DLPack. Only
what is not contiguous is copied. From the second call with the same shapes on, a GPU replays a CUDA graph over buffers
of its own (compiled_graphs.py).
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from onnxopt.errors import UsageError
from onnxopt.graph.model_source import arguments_of
from onnxopt.paths import StrPath
from onnxopt.phases import Progress
from onnxopt.pipeline import flow
from onnxopt.pipeline.making import Artifact
from onnxopt.pipeline.options import OptionChanges, Options
from onnxopt.runtime import devices
from onnxopt.runtime.configuration import configuration_for
from onnxopt.runtime.sessions import CUDA, element_type, one_line
from onnxopt.tools.compiled_graphs import Graphs

if TYPE_CHECKING:
    import torch


class Compiled:
    """A callable in place of a module of PyTorch, for inference. artifact: what runs, as `optimize` makes it."""

    def __init__(
        self, artifact: Artifact, module: torch.nn.Module, order: Sequence[str], outputs: Any, temporary: Any = None
    ) -> None:
        """order: of the arguments, by name. outputs: of the module, whose structure the callable's have.

        temporary: folder that goes with the callable.
        """
        from torch.utils import _pytree as pytree

        self.artifact = artifact
        self._temporary = temporary
        self._graphs = Graphs(artifact) if _has_graphs(artifact) else None
        self._session = self._graphs.session if self._graphs is not None else artifact.session()
        self._on_gpu = CUDA in self._session.get_providers()
        self._signature = inspect.signature(module.forward)
        self._order = order
        self._inputs = [row.name for row in self._session.get_inputs()]
        self._outputs = [(row.name, row.type) for row in self._session.get_outputs()]
        self._leaves, self._structure = pytree.tree_flatten(outputs)
        if len(self._outputs) != len(_tensors(self._leaves)):
            raise UsageError(f"the export has {len(self._outputs)} outputs, the module {len(_tensors(self._leaves))}")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The module's outputs in its own structure, without gradients. Arguments as the module takes them.

        UsageError where tensors are missing, of another dtype or shape, or on a GPU that the session does not run on.
        """
        from torch.utils import _pytree as pytree

        named = _named(self._signature, arguments, keywords)
        tensors = _tensors([named.get(name) for name in self._order])
        if len(tensors) != len(self._inputs):
            raise UsageError(f"{len(tensors)} tensors were given, the export takes {len(self._inputs)}: {self._inputs}")
        values = iter(self._results([tensor.detach().contiguous() for tensor in tensors]))
        leaves = [next(values) if _tensors([leaf]) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._structure)

    def _results(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """tensors: contiguous, as many as inputs."""
        if self._graphs is None:
            return self._run(tensors)
        outputs = self._graphs.replay(tensors)
        if outputs is None:
            outputs = self._run(tensors)
            self._graphs.prepare(tensors, outputs)
        return outputs

    def _run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A run over the tensors as they are."""
        import torch

        binding = self._session.io_binding()
        for name, tensor in zip(self._inputs, tensors, strict=True):
            if tensor.is_cuda and not self._on_gpu:
                raise UsageError(f"{name} is on {tensor.device}, and ONNX Runtime runs on the CPU here")
            dtype = element_type(str(tensor.dtype).removeprefix("torch."))
            device = (tensor.device.type, tensor.device.index or 0)
            binding.bind_input(name, *device, dtype, list(tensor.shape), tensor.data_ptr())
        for name, _ in self._outputs:
            binding.bind_output(name, "cuda" if self._on_gpu else "cpu")
        for gpu in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.current_stream(gpu).synchronize()  # ONNX Runtime's stream does not wait for torch's
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:  # ORT raises a dozen unrelated classes
            raise UsageError(f"ONNX Runtime refuses the run: {one_line(error)}") from error
        results = [torch.utils.dlpack.from_dlpack(value._get_c_value()) for value in binding.get_outputs()]
        types = [kind for _, kind in self._outputs]
        return [r.view(torch.bool) if kind == "tensor(bool)" else r for r, kind in zip(results, types, strict=True)]

    def __repr__(self) -> str:
        return repr(self.artifact)


def _has_graphs(artifact: Artifact) -> bool:
    """Whether a GPU runs the artifact here, as a CUDA graph."""
    chosen = configuration_for(artifact.path)
    return chosen.provider == CUDA and not chosen.blocking and chosen.blocking is not None


def _named(signature: inspect.Signature, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, in the order of the signature."""
    named: dict[str, Any] = dict(signature.bind(*arguments, **keywords).arguments)
    others = [row.name for row in signature.parameters.values() if row.kind is row.VAR_KEYWORD]
    return named | (named.pop(others[0], {}) if others else {})


def _tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of arguments or outputs, in the order in which torch.onnx.export takes them."""
    import torch
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def compile(
    module: torch.nn.Module,
    example_inputs: Any,
    output: StrPath | None = None,
    options: Options | None = None,
    *,
    dynamic_shapes: Any = None,
    progress: Progress | None = None,
    **changes: Unpack[OptionChanges],
) -> Compiled:
    """Optimize a module of PyTorch; returns a callable that takes its place for inference.

    example_inputs, dynamic_shapes, options, progress, changes: as for `optimize`. output: the artifact's folder, which
    must not exist yet; default a temporary one, which goes with the callable. Where archs are not given, kernels are
    compiled for this machine's GPUs alone.

    The callable takes contiguous tensors as they are, on the CPU or on the GPU that ONNX Runtime runs on, and returns
    tensors on the latter. Where a GPU can run the artifact as a CUDA graph, the second call with the same shapes
    captures one, for up to 8 sets of shapes. Later calls copy the tensors to its buffers, and wait for nothing: the
    outputs are there in the order of torch's current stream. Other calls wait for the run. Not for calls from several
    threads at a time. Raises as `optimize` does, and UsageError where the export has other inputs or outputs than the
    module.
    """
    import torch

    if options is None and "archs" not in changes:
        changes["archs"] = ("native",) if devices.devices() else ()
    positional, keywords = arguments_of(example_inputs)
    temporary = None
    if output is None:
        temporary = tempfile.TemporaryDirectory(prefix="onnxopt-")
        output = Path(temporary.name) / "artifact"
    artifact = flow.optimize(
        module, output, options, example_inputs=example_inputs, dynamic_shapes=dynamic_shapes, progress=progress,
        **changes,
    )  # fmt: skip
    order = list(keywords) or list(_named(inspect.signature(module.forward), positional, {}))
    with torch.no_grad():
        return Compiled(artifact, module, order, module(*positional, **keywords), temporary)
