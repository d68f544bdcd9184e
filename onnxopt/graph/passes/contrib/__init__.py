"""Operators that ONNX Runtime's optimizers write become the standard operators that they were fused from, and back."""
