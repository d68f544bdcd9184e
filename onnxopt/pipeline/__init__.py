"""The whole of onnxopt: a model in, a verified artifact folder out. flow.py has its steps, options.py their options."""
