"""Commands of `onnxopt` that have a file of their own; tools/cli.py registers them."""
