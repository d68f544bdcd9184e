"""ONNX to ONNX: reading, shapes, passes, rewrite rules, writing. May import program."""
