"""`onnxopt NAME` is `command` in the module of that name; tools/cli.py lists them. May import every room."""
