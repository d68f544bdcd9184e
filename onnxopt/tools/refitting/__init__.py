"""Refit: new weights of the same network in the kernels of a finished artifact."""

from onnxopt.tools.refitting.flow import refit

__all__ = ["refit"]
