"""The names of an artifact's files and folders, relative to its folder; docs/artifact.md says what each holds.

Names that a room further down writes or looks for are that room's own.
"""

from __future__ import annotations

from onnxopt import paths
from onnxopt.artifact import existing
from onnxopt.codegen import kernels_json
from onnxopt.graph import write
from onnxopt.runtime import providers
from onnxopt.runtime.providers import tensorrt

MANIFEST, SIGNATURE, UNLISTED = existing.MANIFEST, existing.SIGNATURE, existing.UNLISTED
MODEL = write.MODEL_FILE
PORTABLE_MODEL = tensorrt.PORTABLE_MODEL  # without fused functions and operators of com.microsoft
REPORT = "report.html"
PROVIDERS = providers.FOLDER
SOURCE = "kernels.cu"  # what the fatbin was compiled from, with the headers of cuda_kernels/
LIBRARY_FOLDER = "lib"
LIBRARY = paths.library().name
LIBRARY_PATH = f"{LIBRARY_FOLDER}/{LIBRARY}"
RECORD_FOLDER, FOLDER_RECORD = existing.RECORD_FOLDER, existing.FOLDER_RECORD
MODEL_RECORDS = f"{RECORD_FOLDER}/models"  # a folder NAME.record for each model
# Beside the library:
KERNELS = "kernels.json"
FATBIN = kernels_json.FATBIN
PRODUCT_ALGORITHMS = "gemm_algos.json"  # written by `tune` only
CONVOLUTION_PLANS = "conv_plans.json"  # written by `tune` only
LAUNCH_CHOICES = "launches.json"  # written by `tune` only
