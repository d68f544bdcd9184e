"""The architectures that are exported, one file a family: with exporting.py its text is the recipe of its models.

Each has BUILDERS: architecture -> a function of "tiny" that gives the PyTorch model in the form that is exported. A
change exports that family's models again, and no others.
"""

from __future__ import annotations

FAMILIES = {
    "bert": "encoders",
    "vit": "encoders",
    "whisper_encoder": "encoders",
    "convnext": "convolutions",
    "efficientnet": "convolutions",
    "llama": "decoders",
    "llama_decode": "decoders",
}  # architecture -> the module that has it
