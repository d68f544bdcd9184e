"""Where ONNX Runtime runs each node of a graph on a machine with a GPU, and what that costs."""
