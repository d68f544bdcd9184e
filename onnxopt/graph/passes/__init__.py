"""Passes beside those of onnx_ir and onnxscript, a file each. Part of graph: may import program."""
