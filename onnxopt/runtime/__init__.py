"""ONNX Runtime on this machine: sessions, devices, GPUs, configurations. May import program to codegen."""
