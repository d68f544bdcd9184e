"""Measurements: what onnxopt does to time, traffic and memory, beside the same work done by others."""
