"""The names of an artifact's files and folders, relative to its folder; docs/artifact.md says what each holds.

Names that a room further down writes or looks for are that room's own.
"""

from __future__ import annotations

from onnxopt import paths
from onnxopt.codegen import kernels_json
from onnxopt.graph import write
from onnxopt.runtime import providers
from onnxopt.runtime.providers import tensorrt

MANIFEST = "manifest.json"
SIGNATURE = f"{MANIFEST}.minisig"
UNLISTED = (MANIFEST, SIGNATURE)  # the files that no manifest lists
MODEL = write.MODEL_FILE
PORTABLE_MODEL = tensorrt.PORTABLE_MODEL  # without fused functions and operators of com.microsoft
REPORT = "report.html"
PROVIDERS = providers.FOLDER
LIBRARY_FOLDER = "lib"
LIBRARY = paths.library().name
LIBRARY_PATH = f"{LIBRARY_FOLDER}/{LIBRARY}"
# What an optimized folder of models has, beside its models:
RECORD_FOLDER = "onnxopt"
FOLDER_RECORD = f"{RECORD_FOLDER}/folder.json"
MODEL_RECORDS = f"{RECORD_FOLDER}/models"  # a folder NAME.record for each model
# Beside the library:
KERNELS = "kernels.json"
FATBIN = kernels_json.FATBIN
PRODUCT_ALGORITHMS = "gemm_algos.json"  # written by `tune` only
CONVOLUTION_PLANS = "conv_plans.json"  # written by `tune` only
LAUNCH_CHOICES = "launches.json"  # written by `tune` only
