"""Each convolution of codes, and each Add, gets a DequantizeLinear of its own, so that a kernel may read the codes.

    DQ(x) read by Transpose -> Conv, by another one and by Add        -> three of them

A DequantizeLinear of one scale costs nothing in the kernel of its reader.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxopt.graph.codes import is_dequantize, is_plain
from onnxopt.graph.layout.mark import is_channels_last, mark
from onnxopt.graph.layout.orders import turns_first


def part(graph: ir.Graph) -> int:
    """Change the graph in place; how many nodes there are more."""
    count = 0
    for node in list(graph):
        result = node.outputs[0]
        if not is_dequantize(node) or not is_plain(node) or not is_channels_last(result):
            continue
        for reader, position in list(result.uses()):
            if len(result.uses()) < 2 or not (turns_first(reader) or (reader.domain, reader.op_type) == ("", "Add")):
                continue
            attributes = list(node.attributes.values())
            new = ir.Node(node.domain, node.op_type, node.inputs, attributes, num_outputs=1)
            new.name, own = f"{node.name}_{count}", new.outputs[0]
            own.name, own.type, own.shape = f"{result.name}_{count}", result.type, result.shape
            mark(own)
            graph.insert_after(node, new)
            reader.replace_input_with(position, own)
            count += 1
    return count
