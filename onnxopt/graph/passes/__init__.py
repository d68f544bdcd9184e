"""Passes beside those of onnx_ir and onnxscript, a file each. May import program, graph/shapes, graph/placement."""
