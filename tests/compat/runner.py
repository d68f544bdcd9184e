"""Runs one model on the ONNX Runtime that PYTHONPATH names, in plain onnxruntime and numpy; argument: a job as JSON.

job: release expected, model, library or null, names of the inputs, npz of the feeds, npz to write the outputs to.
"""

import json
import sys

import numpy as np
import onnxruntime as ort

job = json.loads(sys.argv[1])
if ort.__version__ != job["release"]:
    sys.exit(f"found onnxruntime {ort.__version__} in {ort.__file__}, not {job['release']}")
options = ort.SessionOptions()
options.log_severity_level = 3
if job["library"]:
    options.register_custom_ops_library(job["library"])
session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
with np.load(job["feeds"]) as feeds:
    outputs = session.run(None, {name: feeds[f"input{k}"] for k, name in enumerate(job["inputs"])})
arrays = [
    np.array([[row[k] for k in sorted(row)] for row in output]) if isinstance(output, list) else output
    for output in outputs
]
np.savez(job["outputs"], **{f"output{k}": array for k, array in enumerate(arrays)})
