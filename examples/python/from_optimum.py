"""A folder of optimum with the kernels of its optimized models: python from_optimum.py FOLDER TEXT

FOLDER is what `onnxopt optimize EXPORTED -o FOLDER` made of an exported text classifier.
"""

from __future__ import annotations

import sys

import onnxruntime as ort
from optimum.onnxruntime import ORTModelForSequenceClassification
from transformers import AutoTokenizer, pipeline

folder, text = sys.argv[1:]
options = ort.SessionOptions()
options.register_custom_ops_library(f"{folder}/onnxopt/lib/libonnxopt_ops.so")  # leave it out: slower, same model
model = ORTModelForSequenceClassification.from_pretrained(folder, session_options=options)
print(pipeline("text-classification", model=model, tokenizer=AutoTokenizer.from_pretrained(folder))(text))
