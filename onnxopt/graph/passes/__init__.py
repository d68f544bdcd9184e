"""Passes of our own: where onnx_ir's and onnxscript's passes do too little, too much, or not safely enough."""
