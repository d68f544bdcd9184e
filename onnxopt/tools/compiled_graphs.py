"""Calls of a compiled module as CUDA graphs, over buffers that stay where they are.

A CUDA graph reads and writes the addresses that it was captured with. So each set of shapes that is called a second
time gets buffers: the tensors of a call are copied to them, and the outputs out of them, on the stream that runs go on.
It waits for torch's current stream, which then waits for it; the CPU waits for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxopt.errors import UsageError
from onnxopt.pipeline.making import Artifact
from onnxopt.runtime.sessions import element_type, one_line

if TYPE_CHECKING:
    import torch

_MAX = 8  # sets of shapes: each holds buffers and a graph's memory on the device
_NO_WAIT = "disable_synchronize_execution_providers"  # a run option of ONNX Runtime: the CPU does not wait for the end


class _Buffers(NamedTuple):
    """What a graph reads and writes. options: of its runs."""

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]
    binding: Any
    options: Any


class Graphs:
    """The graphs of one artifact, whose session runs on a stream of torch's."""

    def __init__(self, artifact: Artifact) -> None:
        import torch

        self._stream = torch.cuda.Stream(torch.device("cuda", 0))
        self.session = artifact.session(cuda_graph=True, stream=self._stream.cuda_stream)
        self._buffers: dict[tuple[Any, ...], _Buffers] = {}

    def replay(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The outputs by a graph; None where none is prepared for tensors of such shapes."""
        import torch

        buffers = self._buffers.get(_key(tensors))
        if buffers is None:
            return None
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        outputs = [torch.empty_like(output) for output in buffers.outputs]
        with torch.cuda.stream(self._stream):
            for buffer, tensor in zip(buffers.inputs, tensors, strict=True):
                buffer.copy_(tensor, non_blocking=True)
            try:
                self.session.run_with_iobinding(buffers.binding, buffers.options)
            except Exception as error:  # ORT raises a dozen unrelated classes
                raise UsageError(f"ONNX Runtime refuses the run: {one_line(error)}") from error
            for output, buffer in zip(outputs, buffers.outputs, strict=True):
                output.copy_(buffer)
        current.wait_stream(self._stream)
        for tensor in (*tensors, *outputs):
            if tensor.is_cuda:
                tensor.record_stream(self._stream)  # its memory is not given away before the copies end
        return outputs

    def prepare(self, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Make buffers for tensors of such shapes, after a run that gave the outputs; none where one is empty."""
        import onnxruntime as ort
        import torch

        if len(self._buffers) >= _MAX or not all(t.numel() for t in (*tensors, *outputs)):
            return
        on = self._stream.device
        binding, options = self.session.io_binding(), ort.RunOptions()
        options.add_run_config_entry(_NO_WAIT, "1")
        buffers = _Buffers(
            [torch.empty(t.shape, dtype=t.dtype, device=on) for t in tensors],
            [torch.empty(t.shape, dtype=t.dtype, device=on) for t in outputs],
            binding,
            options,
        )
        for bind, rows, tensors_of in (
            (binding.bind_input, self.session.get_inputs(), buffers.inputs),
            (binding.bind_output, self.session.get_outputs(), buffers.outputs),
        ):
            for row, buffer in zip(rows, tensors_of, strict=True):
                dtype = element_type(str(buffer.dtype).removeprefix("torch."))
                bind(row.name, "cuda", on.index, dtype, list(buffer.shape), buffer.data_ptr())
        self._buffers[_key(tensors)] = buffers


def _key(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return tuple((tensor.dtype, tensor.shape) for tensor in tensors)
